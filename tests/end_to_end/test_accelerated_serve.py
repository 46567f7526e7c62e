"""`isotherm serve --accelerator` as a process: the answers, what is told of the accelerator, and giving memory back."""

import json
from pathlib import Path

import httpx
import pytest
from support.daemon_process import Daemon, command, running
from support.kept_machine import keep_profile
from support.tiny import write_gguf

CARD = "emulated:vram=1GiB,link=16GBps,launch=0us,hop=0us"  # so that it pays even for a model as small as here


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "qwen2_moe", "Q4_0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keep_profile(threads=2)
    return tmp_path / "tiny.gguf"


def chat(daemon: Daemon) -> str:
    body = {
        "messages": [{"role": "user", "content": "hello there"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def test_it_answers_as_the_cpu_alone_and_gives_memory_back(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, model, "--context", "256") as daemon:
        expected = chat(daemon)
    with running(tmp_path, model, "--context", "256", "--accelerator", CARD) as daemon:
        assert chat(daemon) == expected
        port = daemon.url.rpartition(":")[2]
        shown = json.loads(command(tmp_path, "status", "--port", port, "--json").stdout)["accelerators"]
        assert shown["devices"][0]["name"] == "emulated:0" and shown["devices"][0]["experts"] > 0
        assert shown["hit_rate"] > 0 and shown["measured"]["decode_tok_s"] > 0
        assert "prediction" in command(tmp_path, "status", "--port", port).stdout
        metrics = daemon.metrics()
        assert metrics['isotherm_experts{device="gpu0"}'] == shown["devices"][0]["experts"]
        placement = httpx.get(f"{daemon.url}/admin/placement", timeout=60, trust_env=False).json()
        assert {at for layer in placement["layers"] for at in layer["experts"]} >= {"gpu0"}
        fixed = shown["devices"][0]["used_bytes"] - shown["devices"][0]["expert_bytes"]
        given = httpx.post(f"{daemon.url}/admin/vram", json={"gpu0": fixed}, timeout=60, trust_env=False).json()
        assert given["devices"][0]["experts"] == 0 and given["devices"][0]["used_bytes"] == fixed
        assert chat(daemon) == expected
        assert daemon.metrics()['isotherm_fallback_events_total{name="vram_given_back"}'] == 1
        assert daemon.stop() == 0


def talk(daemon: Daemon) -> list[str]:
    """Four prompts in turn, three times."""
    said = []
    for prompt in [f"tell me of the number {number}, and of all the others" for number in range(4)] * 3:
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        response = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert response.status_code == 200, response.text
        said.append(str(response.json()["choices"][0]["text"]))
    return said


def test_prompts_that_it_has_no_room_for_are_kept_in_ram(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, model, "--context", "80") as daemon:
        expected = talk(daemon)
    with running(tmp_path, model, "--context", "80", "--accelerator", CARD, "--kv-offload-gib", "0.001") as daemon:
        assert talk(daemon) == expected
        port = daemon.url.rpartition(":")[2]
        shown = json.loads(command(tmp_path, "status", "--port", port, "--json").stdout)
        (device,), kv = shown["accelerators"]["devices"], shown["kv"]
        assert (device["kv_blocks"], kv["blocks"]) == (5, 5) and kv["prefix_blocks"] > 50
        assert device["kv_offloaded"] > 5 and device["kv_brought_back"] > 5
        assert shown["prefix_cache"]["hit"] >= 8 * 16 and shown["audit_failures"] == 0
        assert f"of 5 KV blocks {device['kv_offloaded']} " in command(tmp_path, "status", "--port", port).stdout
        metrics = daemon.metrics()
        for way, name in (("to_ram", "kv_offloaded"), ("from_ram", "kv_brought_back")):
            labels = f'{{device="gpu0",direction="{way}"}}'
            assert metrics[f"isotherm_kv_offload_blocks_total{labels}"] == device[name]
            assert metrics[f"isotherm_kv_offload_bytes_total{labels}"] == device[name] * device["kv_block_bytes"]
        assert metrics['isotherm_kv_device_blocks{device="gpu0"}'] == 5
        assert daemon.stop() == 0


def test_what_is_no_accelerator_is_a_wrong_setting(tmp_path: Path, model: Path) -> None:
    done = command(tmp_path, "serve", model, "--port", 0, "--threads", 2, "--accelerator", "gpu7")
    assert done.returncode == 2
    assert "--accelerator: 'gpu7' is no accelerator" in done.stderr
