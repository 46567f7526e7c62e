"""What clients may send to the OpenAI endpoints. Fields not named here land in `model_extra`; see `fields`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ...daemon.errors import InvalidRequestError

TokenId = Annotated[int, Field(strict=True, ge=0)]


class StreamOptions(BaseModel):
    include_usage: bool = False


class CompletionFields(BaseModel):
    """The fields that chat and plain completions share. An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
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


class ChatRequest(CompletionFields):
    messages: list[dict[str, Any]]  # the chat template checks and normalises them
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
    prompt: Any = None
    echo: bool | None = None
    logprobs: int | None = None
