"""A real daemon and its packed store: written while it serves, read by the next, and tidied."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import tiny
from support.daemon_process import PATIENCE_S, Daemon, running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny-moe.gguf"
    tiny.write_gguf(path, "mixtral", "Q6_K", hidden_size=256, intermediate_size=256)
    return path


def pack_cache(daemon: Daemon) -> Any:
    return httpx.get(f"{daemon.url}/admin/status", timeout=60, trust_env=False).json()["pack_cache"]


def test_the_first_daemon_writes_the_store_and_the_second_reads_it(tmp_path: Path, model: Path) -> None:
    packed = tmp_path / "cache" / "isotherm" / "packed"
    packed.mkdir(parents=True)
    (packed / "killed.packed.part").touch()
    with running(tmp_path, model, cache=tmp_path / "cache") as daemon:
        end = time.monotonic() + PATIENCE_S
        while pack_cache(daemon)["state"] != "written":
            assert time.monotonic() < end, pack_cache(daemon)
            time.sleep(0.05)
        assert daemon.stop() == 0
        log = daemon.output.read_text()
    assert "the packed weights are kept in" in log
    assert "killed.packed.part: its writer was killed" in log
    assert {path.suffix for path in packed.iterdir()} == {".lock", ".model", ".packed"}
    with running(tmp_path, model, cache=tmp_path / "cache") as daemon:
        assert pack_cache(daemon)["state"] == "read"
        assert daemon.stop() == 0
