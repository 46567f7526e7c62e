"""The routing of the tokens that `isotherm bench` measures with, so that a plan can be made for just that traffic."""

from pathlib import Path
from typing import Any

from ..experts.model import Model
from ..placement.trace_file import save_trace
from .bench_driver import Driver
from .config import ConfigError, readable
from .routing_recorder import RoutingRecorder
from .runner import DecoderRunner
from .step import StepPlan

_TOKENS = 64  # of each stream, at least


class _Recorded:
    """A runner whose steps are recorded."""

    def __init__(self, model: Model, runner: DecoderRunner) -> None:
        self.recorder = RoutingRecorder(model, runner)
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan) -> Any:
        logits = self._runner.execute(plan)
        self.recorder.record(plan)
        return logits


def write_trace(
    path: Path, model: Model, runner: DecoderRunner, *, prompt: int, streams: int, start: int, gen: int
) -> None:
    """Run a prompt, and streams that decode `gen` tokens after `start`, again, and write where they were routed, as
    `isotherm profile --out` does. Raises ConfigError where the file cannot be written."""
    recorded = _Recorded(model, runner)
    driver = Driver(recorded)
    driver.prefill(1, prompt)
    for _ in range(-(-_TOKENS // gen)):
        driver.decode(streams, gen, start)
    try:
        save_trace(path, recorded.recorder.take())
    except OSError as error:
        raise ConfigError(
            f"{readable(path)} cannot be written: {error.strerror or error}; name another file"
        ) from error
