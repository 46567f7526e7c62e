"""Config: what one daemon is told, checked once. Each default stands here and nowhere else."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.seating import Affinity

LogLevel = Literal["debug", "info", "warning", "error"]
MetricsAlias = Literal["vllm"]

DEMO_ID = "isotherm-demo"
_LONGEST_S = 86400
_RANGES = {  # of settings without a flag
    "max_default_context": (16, 1 << 24),
    "max_step_tokens": (1, 1 << 20),
    "step_target_s": (0.001, _LONGEST_S),
    "step_limit_s": (1, 1 << 20),
    "memory_stall": (0, 100),
    "memory_free_gib": (0, 1 << 20),
    "vram_free_gib": (0, 1 << 20),
    "max_queued_tokens": (1, 1 << 40),
    "drain_s": (0, _LONGEST_S),
    "max_body_mib": (0.001, 1 << 20),
    "max_bodies_mib": (0.001, 1 << 20),
    "body_timeout_s": (0.001, _LONGEST_S),
    "max_choices": (1, 4096),
    "ping_interval_s": (0.001, _LONGEST_S),
    "write_timeout_s": (0.001, _LONGEST_S),
    "max_responses": (0, 1 << 20),
    "max_responses_mib": (0, 1 << 20),
}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


class ConfigError(ValueError):
    """A setting has a wrong value; the message names it and says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of `isotherm serve`.

    name: by which the model is known; None is what its file or folder is called. model: a .gguf file or a safetensors
    folder; None is the embedded demo model. keep_s: after how many seconds an idle model is unloaded; 0 is never.
    threads: None is one per physical core. affinity: what they are bound to, see `Seating`. context: tokens of prompt
    and answer together; None is the model's own, at most `max_default_context`. kv_gib: memory of the KV cache; None
    is decided by `memory.plan_blocks`. kv_offload_gib: RAM of a KV cache larger than what accelerators have room for;
    None is for no more than that.
    pack_cache: whether packed weights are kept on the disk for the next start. plan: a file of `isotherm plan`, which
    says context, KV cache and where weights lie. accelerators: names by which they are opened, the first is "gpu0" of
    a plan. cors_origins: sites whose pages browsers let in. access_log: a file with a line for each request; - is the
    standard error. metrics_alias: names under which metrics are told once more. traces: the URL of an OTLP collector.
    reasoning_alias: whether OpenAI's messages tell reasoning as `reasoning` beside `reasoning_content`.
    The rest has no flag:
    max_step_tokens bounds a step of the model, step_target_s is how long one with running streams should take, one that
    takes longer than step_limit_s hangs, and its engine is restarted; memory is short where something waits for it for
    more than memory_stall per cent of the time, or less than memory_free_gib is free;
    where other programs leave less than vram_free_gib of an accelerator free, experts leave it;
    max_queued_tokens bounds the prompts that wait, drain_s is what open requests get when the daemon is told to stop.
    From max_body_mib on: what one client may take, see `api.service.Limits`.
    """

    name: str | None = None
    model: Path | None = None
    keep_s: float = 0.0
    host: str = "127.0.0.1"
    port: int = 8440
    threads: int | None = None
    affinity: Affinity = "none"
    context: int | None = None
    kv_gib: float | None = None
    kv_offload_gib: float | None = None
    max_running: int = 64
    max_queued: int = 256
    kv_cache: KvCache = "int16"
    pack_cache: bool = True
    plan: Path | None = None
    accelerators: tuple[str, ...] = ()
    api_key_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    access_log: Path | None = None
    metrics_alias: MetricsAlias | None = None
    traces: str | None = None
    reasoning_alias: bool = False
    log_level: LogLevel = "info"
    max_default_context: int = 32768
    max_step_tokens: int = 512
    step_target_s: float = 0.25
    step_limit_s: float = 300.0
    memory_stall: float = 20.0
    memory_free_gib: float = 0.25
    vram_free_gib: float = 0.125
    max_queued_tokens: int = 1 << 20
    drain_s: float = 30.0
    max_body_mib: float = 8.0
    max_bodies_mib: float = 64.0
    body_timeout_s: float = 60.0
    max_choices: int = 128
    ping_interval_s: float = 10.0
    write_timeout_s: float = 60.0
    max_responses: int = 1000
    max_responses_mib: float = 64.0

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65535)
        _check_range("keep", self.keep_s, 0, 1 << 30)
        _check_range("threads", self.threads, 1, 1024)
        _check_range("context", self.context, 16, 1 << 24)
        _check_range("kv-gib", self.kv_gib, 0, 1 << 20)
        _check_range("kv-offload-gib", self.kv_offload_gib, 0, 1 << 20)
        if self.kv_offload_gib and not self.accelerators:
            raise ConfigError(
                "--kv-offload-gib is for keys and values that an --accelerator has no room for; "
                "without one, --kv-gib is the memory of the KV cache"
            )
        for name, (low, high) in _RANGES.items():
            _check_range(name.replace("_", "-"), getattr(self, name), low, high)
        _check_range("max-running", self.max_running, 1, self.max_step_tokens)
        _check_range("max-queued", self.max_queued, 1, 1 << 20)
        for origin in self.cors_origins:
            _check_origin(origin)
        _check_choice("kv-cache", self.kv_cache, get_args(KvCache))
        if self.metrics_alias is not None:
            _check_choice("metrics-alias", self.metrics_alias, get_args(MetricsAlias))
        if self.traces is not None and not self.traces.startswith(("http://", "https://")):
            raise ConfigError(f"--traces is {self.traces!r}; name a collector, such as http://localhost:4318/v1/traces")
        _check_choice("affinity", self.affinity, get_args(Affinity))
        _check_choice("log-level", self.log_level, get_args(LogLevel))

    @property
    def model_id(self) -> str:
        """The model's name in the API: a GGUF file's stem, without the count of a split one, or the folder's name."""
        if self.name is not None:
            return self.name
        if self.model is None:
            return DEMO_ID
        path = self.model.resolve()
        name = readable((path.parent if path.suffix == ".safetensors" else path).name)
        return name.removesuffix(".gguf").split("-00001-of-")[0]


def readable(path: str | os.PathLike[str]) -> str:
    """A path as text that JSON can hold: bytes in a name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:  # NaN fails too
        raise ConfigError(f"--{name} is {value}; it must lie between {low} and {high}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"--{name} is {value!r}; it must be one of {', '.join(choices)}")


def _check_origin(origin: str) -> None:
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ConfigError(
            f"--cors-origin is {origin!r}; name a site as browsers do, such as https://chat.example or "
            'http://localhost:3000, or "*" for all'
        )


def key_digest(key: str) -> bytes:
    """The sha256 by which a key is known to the server."""
    return hashlib.sha256(key.encode()).digest()
