"""The options of `isotherm bench`, and what goes together."""

from pathlib import Path
from typing import Annotated

import typer

from .output import ExitCode, fail

MOST_STREAMS, MOST_THREADS, MOST_TOKENS, MOST_WIDTH = 512, 1024, 65536, 1 << 20
_MODEL, _MOE, _KERNELS, _URL = "a model", "--moe", "--kernels", "--url"
_URL_ONLY = (
    "url", "served_model", "rate", "requests", "duration", "warm_up", "spread", "shared_prefix", "prompts",
    "structured", "ignore_eos", "seed", "timeout", "ttft_limit", "tpot_limit", "api_key_file", "plot",
)  # fmt: skip
_MODES = {  # the parameters that belong to some of the things to measure
    **dict.fromkeys(("model", "affinity", "rounds", "context", "kv_cache", "no_pack_cache", "trace"), (_MODEL,)),
    **dict.fromkeys(("prompt", "gen", "streams"), (_MODEL, _URL)),
    **dict.fromkeys(("moe", "weight_format", "tokens"), (_MOE,)),
    "threads": (_MODEL, _MOE, _KERNELS),
    "kernels": (_KERNELS,),
    **dict.fromkeys(_URL_ONLY, (_URL,)),
}

Model = Annotated[
    Path | None,
    typer.Argument(help="A .gguf file or a safetensors folder; none is the embedded demo model.", show_default=False),
]
Threads = Annotated[
    str | None,
    typer.Option(
        help="CPU threads of the engine; auto measures which number decodes fastest.",
        show_default="one per physical core",
    ),
]
Bound = Annotated[
    str, typer.Option("--affinity", help="What threads are bound to, as for `isotherm serve`.", metavar="none|cores")
]
Prompt = Annotated[
    int, typer.Option(help="Tokens of the prompt that prefill is measured with, or of each one with --url.", min=1)
]
Gen = Annotated[int, typer.Option(help="Tokens to generate.", min=1)]
Streams = Annotated[str, typer.Option(help="How many streams to decode at the same time, one measurement each.")]
Rounds = Annotated[int, typer.Option(help="How often to measure all; medians count.", min=1)]
Context = Annotated[
    int,
    typer.Option(help="Tokens in the context before decoding.", min=0, show_default="none, with --streams 128 each"),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Write where the tokens were routed, for `isotherm plan --trace`.", metavar="FILE", show_default=False
    ),
]
Moe = Annotated[
    str | None,
    typer.Option(
        help="Measure one MoE layer of random weights instead: EXPERTSxACTIVExHIDDENxINTERMEDIATE.",
        show_default=False,
    ),
]
Format = Annotated[str, typer.Option("--format", help="The format of the weights of --moe.")]
Tokens = Annotated[str, typer.Option(help="Tokens in a step of --moe, one measurement each.")]
Kernels = Annotated[bool, typer.Option("--kernels", help="Measure the products of the kernels instead.")]
_SERVER = "A server"

Url = Annotated[
    str | None,
    typer.Option(
        help="Measure any server that speaks OpenAI's API instead.", rich_help_panel=_SERVER, show_default=False
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        help="The model to ask for.",
        metavar="NAME",
        rich_help_panel=_SERVER,
        show_default="the first one that it names",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        help="Requests a second, at random moments, instead of --streams; one measurement each.",
        metavar="R,...",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        help="Requests of each measurement.",
        min=1,
        rich_help_panel=_SERVER,
        show_default="8 for each stream, 64 of a rate, no limit with --duration",
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(
        help="Seconds in which a measurement sends requests; those that are open then may finish.",
        rich_help_panel=_SERVER,
        show_default="no limit",
    ),
]
WarmUp = Annotated[
    int,
    typer.Option(help="Requests before each measurement that do not count.", min=0, max=1000, rich_help_panel=_SERVER),
]
Spread = Annotated[
    float,
    typer.Option(
        help="How far lengths lie around --prompt and --gen: 0.5 is from half to one and a half.",
        min=0.0,
        max=1.0,
        rich_help_panel=_SERVER,
    ),
]
SharedPrefix = Annotated[
    int, typer.Option(help="Tokens of each prompt that are the same in all.", min=0, rich_help_panel=_SERVER)
]
Prompts = Annotated[
    str | None,
    typer.Option(
        help="Ask these by turns instead of random words: a .jsonl or text file, a folder, or - for standard input.",
        metavar="FILE",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
Structured = Annotated[
    bool, typer.Option("--structured", help="Hold each answer to a JSON schema.", rich_help_panel=_SERVER)
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        help="Have each answer as long as --gen by a field that OpenAI itself does not know.", rich_help_panel=_SERVER
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="What prompts and moments are drawn from; another one meets nothing cached.", rich_help_panel=_SERVER
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds that one answer may take.", rich_help_panel=_SERVER)]
TtftLimit = Annotated[
    float | None,
    typer.Option(
        help="Milliseconds to the first token; count the requests that keep to it.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
TpotLimit = Annotated[
    float | None,
    typer.Option(help="The same for each token after it.", rich_help_panel=_SERVER, show_default=False),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        help="A file whose first line is the key to send.",
        rich_help_panel=_SERVER,
        show_default="the variable ISOTHERM_API_KEY, if set",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Draw how the latencies are distributed.", metavar="PNG", rich_help_panel=_SERVER, show_default=False
    ),
]


def check_together(ctx: typer.Context, mode: str) -> None:
    """Refuse what would be passed over in this mode."""
    for name, option in _given(ctx).items():
        if mode not in _MODES.get(name, (mode,)):
            shown = "a model" if name == "model" else option
            fail(f"{shown} does not go with {mode}; measure one thing at a time", ExitCode.USAGE)


def check_apart(ctx: typer.Context, chosen: str, others: tuple[str, ...]) -> None:
    """Refuse options that another one makes useless."""
    given = _given(ctx)
    for name in others:
        if chosen in given and name in given:
            fail(f"{given[name]} does not go with {given[chosen]}; leave one out", ExitCode.USAGE)


def _given(ctx: typer.Context) -> dict[str, str]:
    """The options on the command line, by the names of their parameters."""
    given = {}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            given[str(parameter.name)] = parameter.opts[0]
    return given
