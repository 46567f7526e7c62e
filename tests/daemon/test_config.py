"""Config, API key files, paths, and the memory plan of a load."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isotherm.cpu_kernels.kv_layout import KV_KINDS, KvCache
from isotherm.daemon import paths
from isotherm.daemon.assembly import context_of
from isotherm.daemon.config import Config, ConfigError
from isotherm.daemon.memory import (
    AUTO_CONTEXTS,
    GIB,
    RESERVE,
    Demand,
    MemoryPlanError,
    plan_blocks,
    plan_offload,
)

KIB = 2**10


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("port", 65536, "--port"),
        ("keep_s", -1.0, "--keep"),
        ("threads", 0, "--threads"),
        ("context", 1, "--context"),
        ("kv_gib", float("nan"), "--kv-gib"),
        ("kv_gib", -1.0, "--kv-gib"),
        ("max_running", 513, "--max-running"),
        ("max_queued", 0, "--max-queued"),
        ("kv_cache", "q8", "--kv-cache"),
        ("log_level", "loud", "--log-level"),
        ("affinity", "sockets", "--affinity"),
    ],
)
def test_wrong_setting_is_named_with_what_would_be_right(field: str, value: object, flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"{flag} is .*must (lie between|be one of)"):
        Config(**{field: value})


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "model_id"),
    [
        (None, "isotherm-demo"),
        ("/models/Qwen3-30B.Q4_0.gguf", "Qwen3-30B.Q4_0"),
        ("/models/Big-00001-of-00003.gguf", "Big"),
        ("/models/OLMoE-1B-7B/", "OLMoE-1B-7B"),
        ("/models/OLMoE-1B-7B/model.safetensors", "OLMoE-1B-7B"),
    ],
)
def test_model_id_is_the_name_of_the_file_or_folder(path: str | None, model_id: str) -> None:
    assert Config(model=None if path is None else Path(path)).model_id == model_id


def test_model_id_is_valid_text_whatever_the_name_of_the_file() -> None:
    """A surrogate, by which Python carries a foreign byte, could not be sent as JSON."""
    assert Config(model=Path("mod\udcffel.gguf")).model_id == "mod\ufffdel"


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://", "null"])
def test_what_no_browser_sends_as_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        Config(cors_origins=(origin,))


@pytest.mark.parametrize("origin", ["*", "https://chat.example", "http://localhost:3000", "moz-extension://abc"])
def test_sites_are_named_as_browsers_do(origin: str) -> None:
    assert Config(cors_origins=(origin,)).cors_origins == (origin,)


def test_paths_follow_the_xdg_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_folder() == tmp_path / "c" / "isotherm"
    assert paths.state_file(8440) == tmp_path / ".local/state/isotherm/serve-8440.json"


def demand(**changes: object) -> Demand:
    values: dict[str, object] = {"weight_bytes": GIB, "block_bytes": 64 * KIB, "block_size": 16, "context": 4096}
    return Demand(**values | changes)  # type: ignore[arg-type]


def test_cache_of_a_roomy_machine_holds_some_full_requests() -> None:
    assert plan_blocks(demand(), 64 * GIB) == AUTO_CONTEXTS * 256


def test_weights_that_do_not_fit_are_refused_with_what_is_missing() -> None:
    with pytest.raises(MemoryPlanError, match=r"need 8\.00 GiB, but only 3\.50 GiB .* free 4\.50 GiB more"):
        plan_blocks(demand(weight_bytes=8 * GIB), 4 * GIB)


def test_context_that_does_not_fit_is_refused_with_one_that_does() -> None:
    free = GIB + RESERVE + 100 * 64 * KIB
    with pytest.raises(MemoryPlanError, match="--context 1600 would fit"):
        plan_blocks(demand(), free)
    assert plan_blocks(demand(context=1600), free) == 100


def test_a_cache_of_int8_is_the_remedy_where_it_suffices() -> None:
    free = GIB + RESERVE + 200 * 64 * KIB
    with pytest.raises(MemoryPlanError, match="--kv-cache int8 would fit"):
        plan_blocks(demand(int8_bytes=34 * KIB), free)
    with pytest.raises(MemoryPlanError, match="--context 3200 would fit"):
        plan_blocks(demand(int8_bytes=60 * KIB), free)


def test_cache_that_was_asked_for_is_given() -> None:
    assert plan_blocks(demand(kv_bytes=GIB), 8 * GIB) == GIB // (64 * KIB)


def test_cache_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    with pytest.raises(MemoryPlanError, match=r"--kv-gib 2\.5 would"):
        plan_blocks(demand(kv_bytes=4 * GIB), 4 * GIB)


def test_cache_too_small_for_one_request_is_refused_with_both_remedies() -> None:
    with pytest.raises(MemoryPlanError, match=r"--context 256 would fit, or --kv-gib 0\.02"):
        plan_blocks(demand(kv_bytes=2**20), 8 * GIB)


def test_cache_without_room_for_a_block_offers_no_context_of_zero() -> None:
    with pytest.raises(MemoryPlanError, match=r"less than a request of 4096; give it --kv-gib 0\.02"):
        plan_blocks(demand(kv_bytes=0), 8 * GIB)


def test_keys_and_values_on_accelerators_take_no_ram() -> None:
    free = GIB + RESERVE + 100 * 16 * KIB
    there = demand(context=1600, kv_bytes=100 * 64 * KIB, device_bytes=48 * KIB)
    assert plan_blocks(there, free) == 100
    with pytest.raises(MemoryPlanError, match="does not fit beside the packed weights"):
        plan_blocks(there, free - 1)
    assert plan_blocks(demand(context=1600, kv_bytes=101 * 64 * KIB - 1, device_bytes=64 * KIB), GIB + RESERVE) == 100


def test_offloaded_blocks_have_room_in_ram_for_every_layer() -> None:
    there, free = demand(device_bytes=48 * KIB), GIB + RESERVE + GIB // 2
    assert plan_offload(there, 256, GIB // 2, free) == GIB // 2 // (64 * KIB)
    with pytest.raises(MemoryPlanError, match=r"--kv-offload-gib 0\.5 does not fit .*; 0\.49 would, or leave it out"):
        plan_offload(there, 256, GIB // 2, free - 1)
    with pytest.raises(MemoryPlanError, match=r"\(1\.00 GiB\); leave it out"):
        plan_offload(there, 256, GIB // 2, GIB + RESERVE + 256 * 64 * KIB)


def test_room_for_no_more_blocks_than_accelerators_have_is_refused() -> None:
    told = r"--kv-offload-gib 0\.015625 holds 4096 tokens, no more than the 4096 that .* give it more than 0\.02"
    with pytest.raises(MemoryPlanError, match=told):
        plan_offload(demand(), 256, 256 * 64 * KIB, 8 * GIB)
    assert plan_offload(demand(), 256, 257 * 64 * KIB, 8 * GIB) == 257


def test_there_is_nothing_to_offload_without_an_accelerator() -> None:
    with pytest.raises(ConfigError, match="--kv-offload-gib is for keys and values that an --accelerator has no room"):
        Config(kv_offload_gib=1.0)
    assert Config(kv_offload_gib=1.0, accelerators=("cuda:0",)).kv_offload_gib == 1.0


def test_context_beyond_the_models_own_is_refused() -> None:
    """Serving less than was asked for would be a silent loss."""
    model = SimpleNamespace(spec=SimpleNamespace(max_context=4096))
    assert context_of(model, Config(context=4096)) == 4096  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--context is 4097; this model takes at most 4096 tokens"):
        context_of(model, Config(context=4097))  # type: ignore[arg-type]


@given(
    weights=st.integers(0, 16 * GIB),
    block=st.integers(KIB, GIB),
    context=st.integers(16, 1 << 18),
    kv=st.none() | st.integers(0, 16 * GIB),
    free=st.integers(0, 64 * GIB),
)
def test_planned_blocks_fit_and_hold_a_request(
    weights: int, block: int, context: int, kv: int | None, free: int
) -> None:
    wanted = demand(weight_bytes=weights, block_bytes=block, context=context, kv_bytes=kv)
    try:
        blocks = plan_blocks(wanted, free)
    except MemoryPlanError:
        return
    assert weights + blocks * block + RESERVE <= free
    assert blocks * 16 >= context


def test_every_kind_of_the_cache_can_be_chosen() -> None:
    assert get_args(KvCache) == tuple(KV_KINDS)
