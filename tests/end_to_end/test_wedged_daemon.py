"""A daemon whose engine hangs: its clients are answered, and it goes on without losing its HTTP side."""

import json
import os
from pathlib import Path

import httpx
from support import tiny
from support.daemon_process import command, running

# A step hangs for good when a file is there, which is taken away. It is too long after a second; others, which may be
# slow beside other tests, have as long as ever.
PROGRAM = """
import os, time
from isotherm.daemon import runner
from isotherm.daemon.cli import main
from isotherm.daemon.fleet import host

real, ailment_of, hung = runner.DecoderRunner.execute, host.ailment_of, []

def execute(self, plan):
    try:
        os.remove({hang!r})
    except FileNotFoundError:
        return real(self, plan)
    hung.append(self)
    time.sleep(3600)

runner.DecoderRunner.execute = execute
host.ailment_of = lambda engine, limit: ailment_of(engine, 1.0 if engine._runner in hung else limit)
main()
"""


def test_a_wedged_engine_is_restarted_under_its_clients(tmp_path: Path) -> None:
    model, hang = tmp_path / "tiny.gguf", tmp_path / "hang"
    tiny.write_gguf(model, "mixtral", "Q4_0", max_position_embeddings=512)
    body = {"prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with (
        running(tmp_path, model, program=PROGRAM.format(hang=os.fspath(hang))) as daemon,
        httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as client,
    ):
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        hang.touch()
        stream = client.post("/v1/completions", json=body | {"stream": True})
        assert stream.status_code == 200
        assert "a step of the model has been running" in stream.text
        assert stream.text.endswith("data: [DONE]\n\n")
        again = client.post("/v1/completions", json=body)  # at once: it waits for the new engine
        assert again.json()["choices"][0]["text"] == whole
        assert client.get("/health").status_code == 200
        status = json.loads(command(tmp_path, "status", "--url", daemon.url, "--json").stdout)
        assert [(row["state"], row["restarts"]) for row in status["models"]] == [("ready", 1)]
        assert status["events"]["counts"]["engine_restarted"] == 1
        assert daemon.metrics()["isotherm_engine_restarts_total"] == 1.0
        log = daemon.output.read_text()
        assert "Current thread" in log
        assert "in execute" in log
        assert daemon.stop() == 0
