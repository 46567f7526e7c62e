"""The CPU runner: plans outside its limits are refused before anything is written, and its figures are true."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.daemon.events import EventLog
from isotherm.daemon.runner import DecoderRunner, kv_block_bytes, load_weights
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import open_model
from support.engines import engine, feed
from support.tiny import ARCHITECTURES, VOCAB_SIZE, write_gguf, write_hf

LIMITS = {"num_blocks": 8, "max_context": 48, "max_step_tokens": 32, "max_running": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixtral")
    write_hf(path, "mixtral")
    return path


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[DecoderRunner]:
    with engine(folder, **LIMITS) as runner:
        yield runner


def chunk(tokens: list[int], start: int = 0, table: tuple[int, ...] = (0, 1, 2)) -> Chunk:
    return Chunk("bad one", tokens, start, table, True)


BROKEN = {
    "too many tokens": (chunk([1] * 33),),
    "too many tokens together": (chunk([1] * 16), chunk([1] * 17)),
    "too many sequences": tuple(chunk([1], table=(block,)) for block in range(4)),
    "no tokens": (chunk([]),),
    "a token beyond the vocabulary": (chunk([1, VOCAB_SIZE]),),
    "a negative token": (chunk([-1]),),
    "a position beyond the context": (chunk([1, 1], start=47),),
    "a negative position": (chunk([1], start=-1),),
    "a block beyond the pool": (chunk([1], table=(8,)),),
    "a negative block": (chunk([1], table=(-1,)),),
    "a table that is too short": (chunk([1] * 17, table=(0,)),),
    "a table that is too long": (chunk([1], table=(0, 1, 2, 3)),),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plan_is_refused_and_changes_nothing(fault: str, runner: DecoderRunner) -> None:
    before = feed(runner, [5, 6, 7], 0, (0, 1, 2))
    with pytest.raises(ValueError, match=r"bad one: |exceeds the runner's"):
        runner.execute(StepPlan(BROKEN[fault]))
    # Position 3 sees 0 to 2 in the cache, where the broken plan would have written.
    after = feed(runner, [8], 3, (0, 1, 2))
    assert np.array_equal(feed(runner, [5, 6, 7], 0, (0, 1, 2)), before)
    assert np.array_equal(feed(runner, [8], 3, (0, 1, 2)), after)


def test_the_largest_plan_is_accepted(runner: DecoderRunner) -> None:
    feed(runner, [1] * 32, 0, (7, 0, 1))
    assert np.isfinite(feed(runner, [VOCAB_SIZE - 1] * 16, 32, (7, 0, 1))).all()


def test_the_last_layer_is_run_for_the_tokens_that_are_sampled(runner: DecoderRunner) -> None:
    runner.execute(StepPlan((chunk([1, 2, 3]), replace(chunk([4, 5], table=(3,)), sample=False), chunk([6], 0, (4,)))))
    routes = runner._ops.buffers.branches["experts"].routes
    assert routes.offsets[-1] == 2 * routes.top_k


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_who_is_sampled_changes_neither_the_others_nor_what_comes_later(architecture: str, tmp_path: Path) -> None:
    write_hf(tmp_path, architecture)
    prompts, tables = [list(range(1, 12)), list(range(20, 40)), [50]], [(0, 1), (2, 3), (4, 5)]
    with engine(tmp_path, **LIMITS, threads=2) as runner:

        def one_more() -> list[np.ndarray]:
            return [feed(runner, [7], len(prompt), table) for prompt, table in zip(prompts, tables, strict=True)]

        alone = [feed(runner, prompt, 0, table) for prompt, table in zip(prompts, tables, strict=True)]
        later = one_more()
        for sampled in ((0, 2), (1,), (2,), ()):
            for table in tables:
                feed(runner, [9] * 30, 0, table)  # other keys and values
            chunks = [
                Chunk("a", prompt, 0, table, number in sampled)
                for number, (prompt, table) in enumerate(zip(prompts, tables, strict=True))
            ]
            got = runner.execute(StepPlan(tuple(chunks)))
            assert np.array_equal(got, np.array([alone[i] for i in sampled]).reshape(-1, VOCAB_SIZE))
            assert np.array_equal(one_more(), later)


def test_a_plan_without_samples_has_no_rows(runner: DecoderRunner) -> None:
    logits = runner.execute(StepPlan((Chunk("a", [1, 2], 0, (0,), False),)))
    assert logits.shape == (0, VOCAB_SIZE)


def test_rows_come_in_the_order_of_the_chunks_that_sample(runner: DecoderRunner) -> None:
    first, third = feed(runner, [1, 2], 0, (0,)), feed(runner, [3], 0, (2,))
    plan = StepPlan(
        (Chunk("a", [1, 2], 0, (0,), True), Chunk("b", [9] * 5, 0, (1,), False), Chunk("c", [3], 0, (2,), True))
    )
    assert np.array_equal(runner.execute(plan), np.stack([first, third]))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "F16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_number_of_threads_gives_the_same_bits(architecture: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, architecture, name)
    rows = []
    for threads in (1, 2, 4):
        with engine(path, threads=threads, **LIMITS) as runner:
            feed(runner, list(range(30)), 0, (3, 0, 1))
            rows.append(feed(runner, [7, 8, 9], 30, (3, 0, 1)))
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[0], rows[2])


def test_the_context_ends_where_the_model_does(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", max_position_embeddings=40)
    with engine(tmp_path, num_blocks=8, max_context=48) as runner:
        assert runner.max_context == 40
        feed(runner, [1] * 40, 0, (0, 1, 2))
        with pytest.raises(ValueError, match="context of 40"):
            feed(runner, [1], 40, (0, 1, 2))


def test_memory_follows_the_served_context_not_the_model_s(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", max_position_embeddings=1 << 27)
    with engine(tmp_path, num_blocks=8, max_context=48) as runner:
        assert runner.max_context == 48
        assert np.isfinite(feed(runner, [1] * 48, 0, (0, 1, 2))).all()


def test_a_closed_runner_refuses_to_run(folder: Path) -> None:
    with engine(folder, **LIMITS) as runner:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        feed(runner, [1], 0, (0,))


# Per layer and KV head in a block of 16: keys and values of 16 elements each; with codes also the scales of a group of
# keys and of each value, both padded to a line of 64 bytes.
PART_BYTES = {"f32": 2048, "f16": 1024, "bf16": 1024, "int16": 1024 + 128, "int8": 512 + 128}


@pytest.mark.parametrize("kind", KV_KINDS)
def test_kv_bytes_are_those_of_keys_values_and_scales(kind: str, folder: Path) -> None:
    spec = open_model(folder).spec
    assert spec.head_dim == 16
    with engine(folder, kv_cache=kind, **LIMITS) as runner:
        assert kv_block_bytes(spec, kind) == spec.num_layers * spec.num_kv_heads * PART_BYTES[kind]
        assert kv_block_bytes(spec, kind) == 16 * runner.kv_bytes_per_token


def test_a_token_reads_the_chosen_share_of_the_experts(folder: Path) -> None:
    with engine(folder, **LIMITS) as runner:
        # Two layers of: 2 of 4 experts of 3 x 64 x 96; q, o 64 x 64; k, v 32 x 64; router 4 (padded to 32) x 64.
        # The head is 320 x 64. All float32, columns padded to 64.
        experts = 2 * (2 * 96 * 64 + 64 * 128)
        layer = experts + 2 * 64 * 64 + 2 * 32 * 64 + 32 * 64
        assert runner.active_weight_bytes_per_token == 4 * (2 * layer + 320 * 64)


def test_reencoded_formats_are_told(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", "IQ3_S", hidden_size=256, intermediate_size=256)
    events, stages = EventLog(), []
    load_weights(
        open_model(path),
        threads=1,
        events=events,
        progress=lambda stage, done, total: stages.append((stage, done, total)),
    )
    # q, k, v, o, gate, up, down in each of two layers, the embedding and the head
    (event,) = [event for event in events.recent() if event.name == "weights_reencoded"]
    assert "16 matrices of format IQ3_S" in event.detail
    packing = [(done, total) for stage, done, total in stages if stage == "packing weights"]
    assert packing[-1][0] == packing[-1][1] and packing == sorted(packing)
