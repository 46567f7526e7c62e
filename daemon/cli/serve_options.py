"""The options of `isotherm serve`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import Config

_DEFAULT = Config()
_NO_SETTINGS = ("models", "config", "background")
_FIELDS = {"keep": "keep_s", "accelerator": "accelerators", "cors_origin": "cors_origins"}

Models = Annotated[
    list[Path] | None,
    typer.Argument(
        help="A .gguf file or a safetensors folder; none is the embedded demo model. Of several the first is the "
        "default, and the others are loaded when they are asked for.",
        metavar="[MODEL]...",
        show_default=False,
    ),
]
Keep = Annotated[
    float,
    typer.Option("--keep", help="Unload a model that was idle for so many seconds; 0 is never.", metavar="SECONDS"),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of the engine.", show_default="one per physical core")]
AffinityName = Annotated[
    str,
    typer.Option(
        "--affinity",
        help="What threads are bound to; none is their memory node, if there are several.",
        metavar="none|cores",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of prompt and answer together.",
        show_default=f"the model's own, at most {_DEFAULT.max_default_context}",
    ),
]
KvGib = Annotated[
    float | None,
    typer.Option(help="Memory of the KV cache in GiB.", show_default="4 full contexts, less if memory is short"),
]
KvOffloadGib = Annotated[
    float | None,
    typer.Option(
        "--kv-offload-gib",
        help="RAM in GiB for a KV cache of prompts that accelerators have no more room for.",
        show_default="none",
    ),
]
Level = Annotated[
    str, typer.Option(help="The least grave that the log holds: debug, info, warning, error.", metavar="LEVEL")
]
MaxQueued = Annotated[int, typer.Option(help="Requests that may wait; the next one is answered 429.")]
NoPackCache = Annotated[
    bool, typer.Option("--no-pack-cache", help="Pack the weights in memory at each start, and keep no file of them.")
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", help="Serve as a plan says that isotherm plan --out wrote.", metavar="FILE", show_default=False
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        help="Ask for an API key: a file of accepted ones, one a line, or their digests by isotherm key.",
        show_default="no key is asked for",
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        help="A site whose pages browsers let in, such as http://localhost:3000; several times for several, * for all.",
        metavar="ORIGIN",
        show_default="none",
    ),
]
AccessLog = Annotated[
    Path | None,
    typer.Option(
        help="Write a line of JSON for each request, without its text; - is the standard error.",
        metavar="FILE",
        show_default="none",
    ),
]
Alias = Annotated[
    str | None,
    typer.Option(help="Tell metrics by these names too, for dashboards.", metavar="vllm", show_default="none"),
]
Traces = Annotated[
    str | None,
    typer.Option(
        help="Send a trace of each request to an OTLP collector; needs the extra otel.",
        metavar="URL",
        show_default="none",
    ),
]
ReasoningAlias = Annotated[
    bool,
    typer.Option("--reasoning-alias", help="Tell reasoning in the field reasoning too, beside reasoning_content."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A file of settings, before which flags go; isotherm config shows what comes of both.",
        metavar="FILE",
        show_default="the user's or the system's, if any",
    ),
]


def given_flags(ctx: typer.Context) -> dict[str, Any]:
    """The options that were given, by the field of `Config`."""
    given = {name: value for name, value in ctx.params.items() if name not in _NO_SETTINGS and _is_given(ctx, name)}
    if "no_pack_cache" in given:
        given["pack_cache"] = not given.pop("no_pack_cache")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return {_FIELDS.get(name, name): value for name, value in values.items()}


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
