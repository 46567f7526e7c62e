"""Commands of isotherm in this process, and daemons that exist as a state file only."""

import os
from collections.abc import Sequence
from typing import Any

from isotherm.daemon.cli.app import app
from isotherm.daemon.process_start import process_start
from isotherm.daemon.state import DaemonState
from support.scripted_engine import ByteTokenizer, ScriptedEngine, Step
from typer.testing import CliRunner, Result


def run(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def daemon_state(**changes: Any) -> DaemonState:
    values = {"pid": os.getpid(), "started": process_start(), "port": 8440, "url": "http://127.0.0.1:8440"}
    return DaemonState(**values | {"model": "m", "log": None, "drain_s": 30.0} | changes)


def scripted(*answers: Sequence[Step]) -> ScriptedEngine:
    """An engine that answers by turns, the last answer again and again."""
    turns = iter(range(100))
    return ScriptedEngine(lambda submit: answers[min(next(turns), len(answers) - 1)])


def prompts(engine: ScriptedEngine) -> list[str]:
    return [ByteTokenizer().decode(submit.prompt) for submit in engine.submitted]
