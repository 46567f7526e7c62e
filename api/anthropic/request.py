"""What clients may send to /v1/messages. Fields not named here land in `model_extra`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class AnthropicThinking(BaseModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class AnthropicFormat(BaseModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class AnthropicOutput(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    format: AnthropicFormat | None = None


class CountRequest(BaseModel):
    """The fields that make the prompt. An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutput | None = None
    output_format: AnthropicFormat | None = None


class MessagesRequest(CountRequest):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: int | None = None
    top_p: float | None = None


HARMLESS = frozenset({"metadata", "service_tier", "speed", "cache_control", "diagnostics", "inference_geo", "betas"})
REFUSED: dict[str, tuple[object, ...]] = {"container": (), "mcp_servers": ()}
