"""The packed store as the daemon uses it: where it lies, what a second start does, and how to do without."""

from dataclasses import replace
from pathlib import Path

import pytest
from isotherm.daemon.assembly import Assembly, assemble
from isotherm.daemon.config import Config
from isotherm.daemon.paths import packed_folder
from support.tiny import write_gguf


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A tiny model, and a cache folder of its own for what is not a kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", "mixtral", "Q4_0")
    return Config(model=tmp_path / "tiny.gguf", threads=1, context=32)


def start(config: Config) -> tuple[Assembly, set[str]]:
    """A loaded daemon that was closed again, and the stages of its load."""
    stages = set()
    assembly = assemble(config, lambda stage, done, total: stages.add(stage))
    assembly.runner.close()
    return assembly, stages


def test_the_second_start_packs_nothing(config: Config) -> None:
    _, first = start(config)
    assembly, second = start(config)
    assert {"packing weights", "storing packed weights"} <= first
    assert second == {"reading packed weights", "compiling kernels"}
    assert assembly.status()["events"]["counts"] == {}


def test_a_damaged_store_is_told_by_the_status(config: Config, tmp_path: Path) -> None:
    start(config)
    (file,) = (tmp_path / "cache" / "isotherm" / "packed").glob("*.packed")
    file.write_bytes(b"")
    assembly, stages = start(config)
    assert "packing weights" in stages
    (event,) = assembly.status()["events"]["recent"]
    assert event["name"] == "packed_store_rejected"
    assert "it is cut short" in event["detail"]


def test_without_the_cache_no_file_is_kept(config: Config) -> None:
    _, stages = start(replace(config, pack_cache=False))
    assert stages == {"packing weights", "compiling kernels"}
    assert not packed_folder().exists()
