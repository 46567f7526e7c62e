"""`isotherm doctor`: what is wrong with this machine, the settings and the files, and what to do about it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..api_keys import first_key
from ..config import Config
from .daemon_options import ApiKeyFile
from .model_options import AcceleratorNames
from .output import ExitCode, out, refusals, show
from .progress import progress_bars

if TYPE_CHECKING:
    from ..doctor.finding import Finding

_CONFIG = Config()
_MARKS = {"good": ("ok", "green"), "advice": ("could be better", "yellow"), "fault": ("wrong", "red")}


def doctor(
    model: Annotated[
        Path | None,
        typer.Argument(help="Look at this model too, a .gguf file or a safetensors folder.", show_default="no model"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that is to be listened on.")] = _CONFIG.host,
    port: Annotated[int, typer.Option(help="Port that is to be listened on, or that a daemon serves.")] = _CONFIG.port,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads that are to serve.", min=1, show_default="one per physical core")
    ] = None,
    accelerator: AcceleratorNames = None,
    plan: Annotated[
        Path | None, typer.Option(help="Hold this plan against the model and the daemon.", show_default="none")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Hold this trace against the model.", show_default="none")] = None,
    api_key_file: ApiKeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Examine the machine, the settings and the files: what is wrong, and its remedy. It takes some seconds.

    Exits with 1 if something is wrong.

    Example: isotherm doctor model.gguf --threads 8
    """
    from ..doctor.examination import examine
    from ..doctor.finding import worst
    from ..doctor.patient import Patient

    with refusals(), progress_bars() as report:
        patient = Patient(
            model=model,
            host=host,
            port=port,
            told_threads=threads,
            accelerators=tuple(accelerator or ()),
            plan=plan,
            trace=trace,
            api_key=None if api_key_file is None else first_key(api_key_file),
        )
        findings = examine(patient, report)
    if as_json:
        out.out(json.dumps([asdict(finding) for finding in findings], indent=2), highlight=False)
    else:
        show(_table(findings))
    if worst(findings) == "fault":
        raise typer.Exit(ExitCode.FAILURE)


def _table(findings: "Sequence[Finding]") -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("looked at", "", "found", "remedy"):
        table.add_column(title, overflow="fold", no_wrap=title in ("looked at", ""))
    for finding in findings:
        mark, style = _MARKS[finding.grade]
        table.add_row(finding.subject, Text(mark, style=style), Text(finding.told), Text(finding.remedy))
    return table
