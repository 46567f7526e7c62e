"""What clients may send to the OpenAI endpoints. Fields not named here land in `model_extra`; see `fields`."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Pooling
from ...daemon.request import RANGES

TokenId = Annotated[int, Field(strict=True, ge=0)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Many = Annotated[list[str] | list[_Ids], Field(min_length=1)]
# Looked through by `prompts`, once: a long list of ids is no work for a checker of all sorts of things.
Prompts = Annotated[Any, WithJsonSchema(TypeAdapter(str | _Ids | _Many).json_schema())]
LogitBias = dict[str, float | bool] | list[tuple[int | str, float | bool]]


_ROLES = ["system", "developer", "user", "assistant", "tool", "function"]
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"type": "string", "enum": _ROLES}, "content": _CONTENT},
}
# Looked through by the chat template.
Messages = Annotated[list[dict[str, Any]], WithJsonSchema({"type": "array", "minItems": 1, "items": _MESSAGE})]


def _told(name: str, alias: str | None = None) -> Any:
    """A field of `SamplingParams`, which checks it; the document says how. alias: what some clients call it."""
    low, high = RANGES[name]
    told: dict[str, Any] = {"minimum": low, "maximum": high}
    return Field(None, validation_alias=AliasChoices(name, alias or name), json_schema_extra=told)


class StreamOptions(BaseModel):
    include_usage: bool = False


class CompletionFields(BaseModel):
    """The fields that chat and plain completions share. An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = Field(None, validation_alias=AliasChoices("max_tokens", "n_predict"))
    temperature: float | None = _told("temperature")
    top_p: float | None = _told("top_p")
    top_k: int | None = None
    min_p: float | None = _told("min_p")
    repetition_penalty: float | None = _told("repetition_penalty", "repeat_penalty")
    presence_penalty: float | None = _told("presence_penalty")
    frequency_penalty: float | None = _told("frequency_penalty")
    logit_bias: LogitBias | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    seed: int | None = _told("seed", "sampling_seed")
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = Field(
        None, validation_alias=AliasChoices("include_stop_str_in_output", "no_stop_trim")
    )
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = _told("prompt_logprobs")
    return_token_ids: bool | None = None
    n: int | None = Field(None, json_schema_extra={"minimum": 1, "maximum": 128})
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(None, min_length=1)
    priority: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None

    @property
    def include_usage(self) -> bool:
        """Raises InvalidRequestError for stream options without a stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequestError("stream_options needs stream: true", "stream_options")
        return self.stream_options.include_usage


class ReasoningFields(BaseModel):
    """As routers of many models spell it. exclude: do not tell it."""

    effort: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    exclude: bool | None = None
    enabled: bool | None = None


class ChatRequest(CompletionFields):
    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = Field(
        None, ge=-1, validation_alias=AliasChoices("thinking_token_budget", "thinking_budget", "thinking_budget_tokens")
    )
    reasoning: ReasoningFields | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(CompletionFields):
    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = _told("logprobs")
    truncate_prompt_tokens: int | None = None
    return_tokens_as_token_ids: bool | None = None


class EmbeddingRequest(BaseModel):
    """pooling: the mean of all tokens' states, or the last one's. normalize: to length 1, which is the default."""

    model_config = ConfigDict(extra="allow")

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = Field(None, min_length=1)
    priority: int | None = None
