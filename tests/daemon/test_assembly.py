"""What `isotherm status` tells of a model's formats and of what had to give way."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from isotherm.cpu_kernels.features import tier_of
from isotherm.cpu_kernels.topology import Core, Topology
from isotherm.daemon import assembly as assembly_module
from isotherm.daemon.assembly import assemble, formats_of, seat
from isotherm.daemon.config import Config
from isotherm.daemon.events import EventLog
from isotherm.experts.model import open_model
from safetensors.numpy import load_file, save_file
from support.tiny import write_gguf, write_hf

pytestmark = pytest.mark.usefixtures("own_folders")


def test_formats_are_those_of_the_matrices_with_what_becomes_of_them(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "mixtral", {"": "Q8_0", "v_proj": "Q5_1"})
    assert formats_of(open_model(path)) == {
        "F32": {"tensors": 2, "packed": "f32", "exact": True},
        "Q5_1": {"tensors": 2, "packed": "q5m", "exact": True},
        "Q8_0": {"tensors": 14, "packed": "q8", "exact": True},
    }


def test_a_tensor_that_the_model_does_not_use_is_not_told(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "position_ids": np.arange(8)[None]}, file)
    assert formats_of(open_model(tmp_path)).keys() == {"F32"}


def test_a_context_that_is_asked_for_is_kept_to_the_token(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    config = Config(model=tmp_path / "tiny.gguf", threads=1, context=50)  # the cache has blocks of 16
    assembly = assemble(config, lambda stage, done, total: None)
    try:
        assert assembly.engine.client.max_context == 50
    finally:
        assembly.engine.stop()


def test_each_fallback_of_a_load_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda writer, pre: None)
    monkeypatch.setattr(assembly_module, "host_tier", lambda: tier_of(frozenset({"sse2"})))
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", {"": "Q4_1", "v_proj": "IQ3_S"}, hidden_size=256)
    config = Config(model=path, threads=1, context=64, pack_cache=False)
    assembly = assemble(config, lambda stage, done, total: None)
    try:
        counts = assembly.status()["events"]["counts"]
        page = assembly.engine.metrics.render().decode()
    finally:
        assembly.engine.stop()
    assert counts == {"tokenizer_guessed": 1, "portable_kernels": 1, "weights_reencoded": 1}
    assert all(f'isotherm_fallback_events_total{{name="{name}"}} 1.0' in page for name in counts)


HYBRID = Topology((Core((0, 1)), Core((2,), fast=False), Core((3,), fast=False)))


@pytest.mark.parametrize(("asked", "threads", "told"), [(None, 1, True), (1, 1, True), (2, 2, False)])
def test_slow_cores_that_are_left_out_are_told(asked: int | None, threads: int, told: bool) -> None:
    events = EventLog()
    assert seat(Config(threads=asked), HYBRID, events).threads == threads
    assert events.counts() == ({"slow_cores_unused": 1} if told else {})


def test_threads_that_cannot_be_bound_are_told_and_the_daemon_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Topology((Core((100_000,), 0), Core((100_001,), 1)))
    monkeypatch.setattr(assembly_module, "read_topology", lambda: nowhere)
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    config = Config(model=tmp_path / "tiny.gguf", threads=2, context=64, pack_cache=False)
    assembly = assemble(config, lambda stage, done, total: None)
    try:
        status = assembly.status()
    finally:
        assembly.engine.stop()
    assert (status["threads"], status["affinity"], status["memory_nodes"]) == (2, "none", 2)
    assert status["events"]["counts"]["thread_not_bound"] >= 2  # one at each node packs weights
