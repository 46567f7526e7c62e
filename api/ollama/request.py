"""What clients may send to /api/chat and /api/generate. Fields not named here land in `model_extra`."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class OllamaOptions(BaseModel):
    """Those that change the text. Others concern how a model is loaded, or samplers that are not here."""

    model_config = ConfigDict(extra="allow")

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class OllamaRequest(BaseModel):
    """An explicit null means the default."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChat(OllamaRequest):
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerate(OllamaRequest):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class OllamaShow(BaseModel):
    model: str = ""
    name: str = ""  # as it was called before


# Refused unless null, false or empty.
REFUSED: dict[str, tuple[object, ...]] = {"suffix": (), "template": (), "context": (), "images": ()}
REFUSED_OPTIONS: dict[str, tuple[object, ...]] = {
    "mirostat": (),
    "repeat_last_n": (-1,),
    "tfs_z": (1.0,),
    "typical_p": (1.0,),
}
HARMLESS = frozenset(
    {
        "f16_kv",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "use_mlock",
        "use_mmap",
    }
)
