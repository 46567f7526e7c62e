"""A daemon with an accelerator as a process: experts are moved on request, and a kill loses nothing of that."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from isotherm.placement.plan_file import save_plan
from isotherm.placement.shape import CPU
from support import tiny
from support.accelerated import CARD, plan_of
from support.daemon_process import Daemon, running
from support.kept_machine import keep_profile

HOT = [0, CPU, 0, CPU, 0, 0, CPU, 0]
QUESTION = {"prompt": "the cat", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


def post(daemon: Daemon, path: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{daemon.url}{path}", json=fields, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(daemon: Daemon) -> list[str]:
    return [post(daemon, "/v1/completions", **QUESTION)["choices"][0]["text"] for _ in range(6)]


def lies(daemon: Daemon) -> list[str]:
    layers = httpx.get(f"{daemon.url}/admin/placement", timeout=60, trust_env=False).json()["layers"]
    found: list[str] = layers[0]["experts"]
    return found


def test_what_was_moved_before_a_kill_is_there_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = tmp_path / "tiny.gguf", tmp_path / "plan.json"
    tiny.write_gguf(model, "qwen3_moe", "Q4_0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keep_profile(threads=2)
    save_plan(plan_of(model, experts=HOT), plan)
    with running(tmp_path, model, "--accelerator", CARD, "--plan", plan) as daemon:
        before = lies(daemon)
        assert post(daemon, "/admin/rebalance", automatic=False)["automatic"] is False
        answers = said(daemon)
        swaps = post(daemon, "/admin/rebalance")["swaps"]
        assert swaps and lies(daemon) == before
        post(daemon, "/admin/rebalance", dry_run=False)
        while post(daemon, "/admin/rebalance")["under_way"]:
            pass
        assert said(daemon) == answers
        moved = lies(daemon)
        assert moved != before
        daemon.stop(signal.SIGKILL)
    with running(tmp_path, model, "--accelerator", CARD, "--plan", plan) as daemon:
        assert lies(daemon) == moved
        assert said(daemon) == answers
        told = post(daemon, "/admin/rebalance", rollback=True, dry_run=False)
        assert len(told["swaps"]) == len(swaps)
        while post(daemon, "/admin/rebalance")["under_way"]:
            pass
        assert lies(daemon) == before and said(daemon) == answers
        assert daemon.stop() == 0
