"""The keys of a configuration file, as data: reading, checking, showing and the sample are made of this table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Reader = Callable[[Any, Path], Any]  # of a value as TOML gives it, and the folder that paths start from


class WrongTypeError(TypeError):
    """A value is of a type that its key does not take."""


@dataclass(frozen=True, slots=True)
class Kind:
    """words: what a value must be, in words. sample: one, as TOML."""

    words: str
    read: Reader
    sample: str


@dataclass(frozen=True, slots=True)
class Key:
    """field: of `Config`. live: whether a reload changes it. flag: of `isotherm serve`, empty where there is none."""

    table: str
    name: str
    field: str
    kind: Kind
    help: str
    flag: str = ""
    live: bool = False

    @property
    def path(self) -> str:
        return f"{self.table}.{self.name}"


def _is(*types: type) -> Reader:
    def read(value: Any, folder: Path) -> Any:
        if type(value) not in types:
            raise WrongTypeError
        return value

    return read


def _path(value: Any, folder: Path) -> Path:
    path = Path(_TEXT.read(value, folder)).expanduser()
    return path if str(path) == "-" else folder / path


def _model(value: Any, folder: Path) -> Path:
    """A path, or a pulled model's name as it is."""
    path = _path(value, folder)
    return path if path.exists() or path.suffix in (".gguf", ".safetensors") else Path(value).expanduser()


def _number(value: Any, folder: Path) -> float:
    return float(_is(int, float)(value, folder))


def _texts(value: Any, folder: Path) -> tuple[str, ...]:
    if type(value) is not list:
        raise WrongTypeError
    return tuple(_TEXT.read(each, folder) for each in value)


_TEXT = Kind("text", _is(str), '"..."')
_WHOLE = Kind("a whole number", _is(int), "1")
_NUMBER = Kind("a number", _number, "1.0")
_MODEL = Kind("a path or a name as text", _model, '"..."')
_SWITCH = Kind("true or false", _is(bool), "true")
_PATH = Kind("a path as text", _path, '"..."')
_TEXTS = Kind("a list of texts", _texts, '["..."]')

KEYS = (
    Key("server", "host", "host", _TEXT, "address to listen on", "--host"),
    Key("server", "port", "port", _WHOLE, "port to listen on; 0 takes a free one", "--port"),
    Key("server", "api_key_file", "api_key_file", _PATH, "accepted keys or their digests", "--api-key-file", True),
    Key("server", "cors_origins", "cors_origins", _TEXTS, "sites whose pages browsers let in", "--cors-origin", True),
    Key("server", "drain_s", "drain_s", _NUMBER, "seconds that open requests get when the daemon ends", live=True),
    Key("server", "reasoning_alias", "reasoning_alias", _SWITCH, "tell reasoning twice", "--reasoning-alias"),
    Key("log", "level", "log_level", _TEXT, "debug, info, warning or error", "--log-level", True),
    Key("log", "access", "access_log", _PATH, "a file with a line of JSON for each request", "--access-log", True),
    Key("log", "metrics_alias", "metrics_alias", _TEXT, "vllm: metrics by those names too", "--metrics-alias"),
    Key("log", "traces", "traces", _TEXT, "URL of an OTLP collector", "--traces"),
    Key("engine", "threads", "threads", _WHOLE, "CPU threads", "--threads"),
    Key("engine", "affinity", "affinity", _TEXT, "none, or cores to bind each thread", "--affinity"),
    Key("engine", "max_running", "max_running", _WHOLE, "requests in one step of the model", "--max-running"),
    Key("engine", "max_queued", "max_queued", _WHOLE, "requests that may wait", "--max-queued", True),
    Key("engine", "max_queued_tokens", "max_queued_tokens", _WHOLE, "prompt tokens that may wait", live=True),
    Key("engine", "max_step_tokens", "max_step_tokens", _WHOLE, "tokens in one step"),
    Key("engine", "step_target_s", "step_target_s", _NUMBER, "seconds that a step with running streams should take"),
    Key("engine", "step_limit_s", "step_limit_s", _NUMBER, "seconds after which a step hangs; its engine is restarted"),
    Key("pool", "memory_stall", "memory_stall", _NUMBER, "per cent of time waited for memory that is too much"),
    Key("pool", "vram_free_gib", "vram_free_gib", _NUMBER, "memory of each card that other programs find free"),
    Key("pool", "memory_free_gib", "memory_free_gib", _NUMBER, "memory that is to stay free"),
    Key("limits", "max_body_mib", "max_body_mib", _NUMBER, "MiB of one request", live=True),
    Key("limits", "max_bodies_mib", "max_bodies_mib", _NUMBER, "MiB of all open requests together", live=True),
    Key("limits", "body_timeout_s", "body_timeout_s", _NUMBER, "seconds that sending a request may take", live=True),
    Key("limits", "max_choices", "max_choices", _WHOLE, "completions of one request; at most max_queued", live=True),
    Key("limits", "ping_interval_s", "ping_interval_s", _NUMBER, "longest silence of a stream in seconds", live=True),
    Key("limits", "write_timeout_s", "write_timeout_s", _NUMBER, "seconds that a stream may be left unread", live=True),
    Key("limits", "max_responses", "max_responses", _WHOLE, "responses that /v1/responses keeps, of all clients"),
    Key("limits", "max_responses_mib", "max_responses_mib", _NUMBER, "MiB of them"),
    Key("model", "context", "context", _WHOLE, "most tokens of prompt and answer together", "--context"),
    Key("model", "max_default_context", "max_default_context", _WHOLE, "most of a context that is not told"),
    Key("model", "kv_gib", "kv_gib", _NUMBER, "memory of the KV cache", "--kv-gib"),
    Key("model", "kv_offload_gib", "kv_offload_gib", _NUMBER, "RAM for more keys and values", "--kv-offload-gib"),
    Key("model", "kv_cache", "kv_cache", _TEXT, "int16, int8, f16, bf16 or f32", "--kv-cache"),
    Key("model", "pack_cache", "pack_cache", _SWITCH, "keep packed weights on the disk", "--no-pack-cache"),
    Key("model", "plan", "plan", _PATH, "a plan by isotherm plan --out", "--plan"),
    Key("model", "accelerators", "accelerators", _TEXTS, "cards to use, such as cuda:0", "--accelerator"),
    Key("pool", "keep_s", "keep_s", _NUMBER, "seconds until an idle model is unloaded; 0 is never", "--keep", True),
)
MODEL_PATH = Key("models.NAME", "path", "model", _MODEL, "a .gguf file, a safetensors folder or a pulled model")
POOL_DEFAULT = Key("pool", "default", "", _TEXT, "the model of requests that name none")
TABLES = tuple(dict.fromkeys(key.table for key in KEYS))


def keys_of(table: str) -> Sequence[Key]:
    """Those of a table; of a single model's, those of [model] and its path."""
    if table.startswith("models."):
        return (MODEL_PATH, *keys_of("model"))
    return [key for key in (*KEYS, POOL_DEFAULT) if key.table == table]
