"""What clients may send to /v1/responses. Fields not named here land in `model_extra`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(max_length=256)]


class ResponsesReasoning(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    summary: str | None = None


class ResponsesFormat(BaseModel):
    type: str
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponsesText(BaseModel):
    format: ResponsesFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(BaseModel):
    """An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    input: str | list[dict[str, Any]] = []
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ResponsesReasoning | None = None
    text: ResponsesText | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    prompt_cache_key: Name | None = None
    safety_identifier: Name | None = None
    user: Name | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


SAMPLING = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
}
# Refused unless null, false or empty: to ignore them would change what the client gets.
REFUSED: dict[str, tuple[object, ...]] = {
    "background": (),
    "context_management": (),
    "conversation": (),
    "moderation": (),
    "prompt": (),
    "top_logprobs": (),
}
HARMLESS = frozenset({"stream_options", "service_tier", "prompt_cache_retention", "prompt_cache_options", "image"})
INCLUDABLE = frozenset({"reasoning.encrypted_content"})  # there is none, but agents ask for it always
