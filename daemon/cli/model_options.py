"""Options that several commands on a model have."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from ...cpu_kernels.kv_layout import KvCache
from .output import ExitCode, fail

AcceleratorNames = Annotated[
    list[str] | None,
    typer.Option(
        "--accelerator",
        help="A graphics card to use, such as cuda:0, or emulated:vram=2GiB,link=16GBps; several times for several.",
        metavar="NAME",
        show_default=False,
    ),
]
KvKind = Annotated[
    str, typer.Option("--kv-cache", help="Numbers of the KV cache: int16, int8, f16, bf16, f32.", metavar="KIND")
]
NoPackCache = Annotated[
    bool, typer.Option("--no-pack-cache", help="Pack the weights in memory, and keep no file of them.")
]
Trace = Annotated[
    Path | None,
    typer.Option(help="Which experts the traffic goes to.", metavar="FILE", show_default="the model's own, if any"),
]


def kv_kind(text: str) -> KvCache:
    """What `KvKind` names, if there is such a kind."""
    if text not in get_args(KvCache):
        fail(f"--kv-cache is {text!r}; it must be one of {', '.join(get_args(KvCache))}", ExitCode.USAGE)
    return cast(KvCache, text)
