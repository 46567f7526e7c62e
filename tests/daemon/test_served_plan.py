"""`serve --plan`: what is taken from a plan, and what contradicts it."""

from dataclasses import replace
from pathlib import Path

import pytest
from isotherm.daemon.assembly import assemble, plan_memory
from isotherm.daemon.config import Config, ConfigError
from isotherm.daemon.planning import PlanOptions, make_plan
from isotherm.daemon.served_plan import obeyed, read_plan
from isotherm.experts.checkpoint.gguf_header import read_header
from isotherm.experts.checkpoint.mapping import map_file
from isotherm.experts.model import Model, open_model
from isotherm.placement import draft
from isotherm.placement.hardware_file import save_profile
from isotherm.placement.plan import Plan, PlanError
from isotherm.placement.plan_file import save_plan
from support.plans import GIB, layers_first, with_cards
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    return open_model(tmp_path / "tiny.gguf")


def plan_of(model: Model, *cards: int, monkeypatch: pytest.MonkeyPatch, path: Path | None = None) -> Plan:
    """path: of what the plan is made from, if not the model itself."""
    monkeypatch.setattr(draft, "plan_placement", layers_first)
    profile = model.checkpoint.path.parent / "machine.json"
    save_profile(with_cards(*cards), profile)
    options = PlanOptions(model=path or model.checkpoint.path, hardware=str(profile), context=256, kv_cache="int8")
    return make_plan(options, lambda stage, done, total: None)


def config(tmp_path: Path, plan: Plan, **changes: float) -> Config:
    save_plan(plan, tmp_path / "plan.json")
    return Config(plan=tmp_path / "plan.json", **changes)


def served_by(given: Config, model: Model) -> Config:
    return obeyed(given, read_plan(given, model))


def test_context_and_cache_are_the_plans(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(model, monkeypatch=monkeypatch)
    served = served_by(config(tmp_path, plan), model)
    assert (served.context, served.kv_cache) == (256, "int8")
    asked = Config(context=256, kv_cache="int8")
    assert plan_memory(model, served, 16 * GIB) == plan_memory(model, asked, 16 * GIB)


def test_without_a_plan_nothing_changes(model: Model) -> None:
    assert served_by(Config(), model) == Config()


def test_a_setting_that_contradicts_is_refused(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(model, monkeypatch=monkeypatch)
    assert served_by(config(tmp_path, plan, context=256), model).context == 256
    with pytest.raises(ConfigError, match="--context is 128, but the plan is for 256"):
        served_by(config(tmp_path, plan, context=128), model)
    with pytest.raises(ConfigError, match="--kv-gib is 2, but the plan is for"):
        served_by(config(tmp_path, plan, kv_gib=2), model)
    with pytest.raises(ConfigError, match="--kv-cache is f32, but the plan is for int8"):
        served_by(replace(config(tmp_path, plan), kv_cache="f32"), model)


def test_a_plan_of_another_model_is_refused(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_of(model, monkeypatch=monkeypatch), fingerprint="cd" * 32)
    with pytest.raises(PlanError, match=r"plan\.json: the plan is of tiny \(cdcdcdcdcdcd\), not of tiny"):
        served_by(config(tmp_path, plan), model)


def header_of(model: Model, folder: Path) -> Path:
    whole = model.checkpoint.path
    folder.mkdir()
    (folder / "head.gguf").write_bytes(whole.read_bytes()[: read_header(whole, map_file(whole)).end])
    return folder / "head.gguf"


def test_a_plan_of_a_header_is_served_with_the_weights_of_its_sizes(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(model, monkeypatch=monkeypatch, path=header_of(model, tmp_path / "cut"))
    assert served_by(config(tmp_path, plan), model).context == 256
    write_gguf(tmp_path / "other.gguf", "qwen3_moe", "Q8_0")
    with pytest.raises(
        PlanError, match=r"plan\.json: .* before the weights of head were there, and those of other have other sizes"
    ):
        served_by(config(tmp_path, plan), open_model(tmp_path / "other.gguf"))


def test_parts_that_cannot_be_served_where_they_should_lie_are_refused(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(model, 24 * GIB, monkeypatch=monkeypatch)
    with pytest.raises(PlanError, match=r"plan\.json: keeps parts on gpu0, and no accelerators are given"):
        served_by(config(tmp_path, plan), model)
    plain = plan_of(model, monkeypatch=monkeypatch)
    on_disk = replace(plain, layers=(replace(plain.layers[0], from_disk=1), *plain.layers[1:]))
    with pytest.raises(PlanError, match="keeps parts on disk"):
        served_by(config(tmp_path, on_disk), model)


def test_a_daemon_is_put_together_by_its_plan(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(model, monkeypatch=monkeypatch)
    served = replace(config(tmp_path, plan), model=model.checkpoint.path, threads=1, pack_cache=False)
    assembly = assemble(served, lambda stage, done, total: None)
    try:
        assert assembly.engine.client.max_context == 256
        assert (assembly.config.kv_cache, assembly.kv_bytes) == ("int8", plan.ledger[0].of("KV cache"))
    finally:
        assembly.engine.stop()
