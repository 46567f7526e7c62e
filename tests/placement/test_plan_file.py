"""Plans as files: the same after writing and reading, and refused with file, key and remedy where they are unsound."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.placement.plan import Plan, PlanError, digest
from isotherm.placement.plan_file import from_json, load_plan, ranges, save_plan, to_json
from support.plans import GIB, large, plan_of


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of([2 * GIB, 2 * GIB])


def test_a_plan_is_the_same_after_writing_and_reading(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_equal_plans_are_equal_files(plan: Plan) -> None:
    assert to_json(plan_of([2 * GIB, 2 * GIB])) == to_json(plan)


def test_a_placement_comes_back_as_it_was_planned(plan: Plan) -> None:
    placement = plan.placement
    assert len(placement.experts) == 4
    assert all(
        at.dtype == np.int8 and tuple(at) == own.experts for at, own in zip(placement.experts, plan.layers, strict=True)
    )
    assert placement.dense == tuple(layer.dense for layer in plan.layers)
    assert {-1, 0, 1} == {device for layer in plan.layers for device in layer.experts}


def test_a_failed_write_leaves_the_old_plan(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PlanError, match=r"plan\.json: cannot be written \(No space left"):
        save_plan(plan, file)
    assert (file.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)


def test_of_several_writers_at_once_one_plan_is_left_whole(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plans = [replace(plan, policy=f"policy {number}") for number in range(4)]

    def write(own: Plan) -> None:
        for _ in range(5):
            save_plan(own, file)
            assert load_plan(file) in plans

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, plans))
    assert [found.name for found in tmp_path.iterdir()] == ["plan.json"]


Change = Callable[[dict[str, Any]], Any]


def set_to(*path: Any) -> Change:
    *keys, last, value = path

    def change(content: dict[str, Any]) -> None:
        for key in keys:
            content = content[key]
        content[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("policy"), "key 'policy' is missing"),
        (set_to("context", 0), "key 'context' is 0, not an integer within 1"),
        (set_to("traffic", "streams", "two"), "key 'traffic.streams' is 'two', not an integer"),
        (set_to("traffic", "chunk", True), "key 'traffic.chunk' is True, not an integer"),
        (set_to("reasons", 0, 7), "key 'reasons' holds something else than texts"),
        (set_to("step_ms", float("nan")), "key 'step_ms' is nan, not a finite number"),
        (set_to("predicted_decode_tok_s", "low", 1e9), r"key 'predicted_decode_tok_s\.value' is .* not within"),
        (set_to("head", "gpu7"), "key 'head' names the device 'gpu7', which the ledger has not"),
        (set_to("layers", {}), "key 'layers' is not a list"),
        (set_to("layers", 2, "dense", "tpu"), r"key 'layers\[2\]\.dense' names the device 'tpu'"),
        (set_to("layers", 0, "experts", "gpu0", "0-9999"), r"key 'layers\[0\]\.experts\.gpu0' names experts 0-9999"),
        (set_to("layers", 0, "experts", "gpu0", "3-1"), r"key 'layers\[0\]\.experts\.gpu0' names experts 3-1"),
        (set_to("layers", 0, "experts", "gpu0", "x"), r"key 'layers\[0\]\.experts\.gpu0' is no list of experts"),
        (
            set_to("layers", 0, "experts", {"gpu0": "0-3", "cpu": "3-7"}),
            r"key 'layers\[0\]\.experts\.cpu' names expert 3 a second time",
        ),
        (set_to("layers", 0, "experts", {"cpu": "1-7"}), r"key 'layers\[0\]\.experts' leaves out experts below 7"),
        (set_to("layers", 0, "slots", 99), r"key 'layers\[0\]\.slots' is 99, not an integer within 0 to"),
        (set_to("ledger", "ram", "terms", "experts", -1), r"key 'ledger\.ram\.terms\.experts' is -1"),
        (set_to("ledger", "ram", "total_bytes", 5), r"key 'ledger\.ram\.total_bytes' is not the sum of the terms"),
        (set_to("ledger", "ram", "budget_bytes", 5), r"key 'ledger\.ram\.total_bytes' is \d+, more than the budget"),
        (set_to("considered", 0, []), r"key 'considered\[0\]' is not an object"),
        (set_to("schema_version", 0), "key 'schema_version' is 0.*an older isotherm; make the plan anew"),
        (set_to("schema_version", 2), "key 'schema_version' is 2.*a newer isotherm; update isotherm"),
        (set_to("policy", "another"), "key 'digest' does not match, so the file was changed"),
        (set_to("layers", 0, "experts", {"cpu": "0-7"}), "key 'digest' does not match"),
    ],
)
def test_an_unsound_plan_is_refused_by_its_key(plan: Plan, change: Change, message: str) -> None:
    content = json.loads(json.dumps(to_json(plan)))
    change(content)
    with pytest.raises(PlanError, match=f"plan.json: {message}"):
        from_json(content, "plan.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ('{"kind": "isotherm plan"', "is not valid JSON"),
        ("[" * 100000, "is not valid JSON"),
        ("[]", "key 'kind' is not 'isotherm plan', so it is no plan"),
        ('{"kind": "isotherm trace"}', "key 'kind' is not 'isotherm plan', so it is no plan"),
        (b"\xff\xfe\x00", "is not valid JSON"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=rf"plan\.json: {message}"):
        load_plan(file)


def test_a_missing_and_an_endless_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "none.json")
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PlanError, match="more than 32 MiB"):
        load_plan(tmp_path / "big.json")


def test_a_plan_of_another_model_is_refused(plan: Plan) -> None:
    plan.check_model(large())
    with pytest.raises(PlanError, match=r"the plan is of large \(abababababab\), not of other \(cdcd"):
        plan.check_model(large(name="other", fingerprint="cd" * 32))
    with pytest.raises(PlanError, match="other layers or experts"):
        plan.check_model(large(5))


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0-3,7"), ([0, 2, 4], "0,2,4"), ([1, 2], "1-2")]
)
def test_lists_of_experts_are_compact(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_a_digest_sees_every_number() -> None:
    shape = large()
    assert digest(shape) == digest(large())
    assert digest(shape) != digest(large(max_context=shape.max_context + 1))
    array = np.arange(4)
    assert digest({"a": array}) != digest({"a": array + 1})
    assert digest(None) == ""
