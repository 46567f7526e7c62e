"""A daemon that serves two models."""

import json
from pathlib import Path

import httpx
from support import tiny
from support.daemon_process import command, running


def test_two_models_are_served_by_one_daemon(tmp_path: Path) -> None:
    paths = []
    for name, architecture in (("first", "mixtral"), ("second", "qwen3_moe")):
        paths.append(tmp_path / f"{name}.gguf")
        tiny.write_gguf(paths[-1], architecture, "Q4_0", max_position_embeddings=512)
    with (
        running(tmp_path, paths[0], paths[1]) as daemon,
        httpx.Client(base_url=daemon.url, trust_env=False, timeout=120) as client,
    ):

        def ask(model: str) -> str:
            body = {"model": model, "prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body).json()
            assert answer["model"] == model
            return str(answer["choices"][0]["text"])

        assert "isotherm_model_loaded" in client.get("/metrics").text
        assert ask("first") != ask("second")
        shown = command(tmp_path, "status", "--url", daemon.url)
        assert "second: ready" in shown.stdout
        status = json.loads(command(tmp_path, "status", "--url", daemon.url, "--json").stdout)
        assert [(row["id"], row["state"], row["loads"]) for row in status["models"]] == [
            ("first", "ready", 1),
            ("second", "ready", 1),
        ]
        client.post("/api/generate", json={"model": "second", "keep_alive": 0})
        daemon.wait_for('isotherm_model_loaded{model="second"}', 0.0)
        assert ask("second") == ask("second")
        assert daemon.stop() == 0
