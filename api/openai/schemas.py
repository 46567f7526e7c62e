"""What clients may send to the OpenAI endpoints. Fields not named here land in `model_extra`; see `fields`."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Pooling

TokenId = Annotated[int, Field(strict=True, ge=0)]
# Looked through by `prompts`, once: a long list of ids is no work for a checker of all sorts of things.
Prompts = Annotated[
    Any, WithJsonSchema(TypeAdapter(str | list[str] | list[TokenId] | list[list[TokenId]]).json_schema())
]
LogitBias = dict[str, float | bool] | list[tuple[int | str, float | bool]]


def _also(name: str, alias: str) -> Any:
    """A field that some clients know by another name."""
    return Field(None, validation_alias=AliasChoices(name, alias))


class StreamOptions(BaseModel):
    include_usage: bool = False


class CompletionFields(BaseModel):
    """The fields that chat and plain completions share. An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = _also("max_tokens", "n_predict")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = _also("repetition_penalty", "repeat_penalty")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(None, min_length=1)
    priority: int | None = None

    @property
    def include_usage(self) -> bool:
        """Raises InvalidRequestError for stream options without a stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequestError("stream_options needs stream: true", "stream_options")
        return self.stream_options.include_usage


Messages = Annotated[list[dict[str, Any]], Field(description="The chat template checks and normalises them.")]


class ChatRequest(CompletionFields):
    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(CompletionFields):
    prompt: Prompts = None
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
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
