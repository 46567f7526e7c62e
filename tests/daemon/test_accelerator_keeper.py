"""What a daemon with accelerators tells of them, and how it gives their memory back and takes it again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from isotherm.daemon.assembly import Assembly
from isotherm.daemon.errors import EngineError, InvalidRequestError
from isotherm.daemon.paths import packed_folder
from isotherm.daemon.vram import SetVram, ShowPlacement
from isotherm.experts.model import open_model
from isotherm.gpu_kernels.device import DeviceMemoryError
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.plan_file import save_plan
from isotherm.placement.shape import CPU
from support.accelerated import answers, assembled, config, plan_of
from support.engine_runs import PATIENCE_S, messages_of, request, tokens_of, until
from support.hybrid import residency_of
from support.kept_machine import keep_profile
from support.mapped_arena import mapped_weights, small_pages
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
HOT = [0, CPU, 0, CPU, 0, 0, CPU, 0]


@pytest.fixture
def assembly(tmp_path: Path) -> Iterator[Assembly]:
    """Half of the first layer's experts are on gpu0, all else is the CPU's."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    save_plan(plan_of(tmp_path / "tiny.gguf", experts=HOT), tmp_path / "plan.json")
    card = "emulated:vram=1GiB"
    with assembled(config(tmp_path / "tiny.gguf", card, context=None, plan=tmp_path / "plan.json")) as made:
        yield made


def card_of(assembly: Assembly) -> Emulated:
    (card,) = residency_of(assembly.runner).accelerators
    assert isinstance(card, Emulated)
    return card


def say(assembly: Assembly, name: str = "a") -> list[int]:
    return tokens_of(messages_of(assembly.engine.client.submit(request(name, PROMPT, max_tokens=6))))


def ask(assembly: Assembly, command: SetVram | ShowPlacement) -> dict:
    return assembly.engine.client.ask(command).result(PATIENCE_S)


def hot(assembly: Assembly) -> list[int]:
    return residency_of(assembly.runner).where[0].tolist()


def limited(assembly: Assembly, nbytes: int | None) -> dict:
    return ask(assembly, SetVram(limits={"gpu0": nbytes}))["devices"][0]


def test_placement_says_where_everything_lies(assembly: Assembly) -> None:
    shown = ask(assembly, ShowPlacement())
    assert [layer["dense"] for layer in shown["layers"]] == ["ram", "ram"]
    names = {0: "gpu0", CPU: "ram"}
    assert [layer["experts"] for layer in shown["layers"]] == [[names[at] for at in HOT], ["ram"] * 8]
    assert (shown["embed"], shown["head"], shown["devices"][0]["experts"]) == ("ram", "ram", 5)


def test_choices_are_counted_by_the_device_that_had_the_expert(assembly: Assembly) -> None:
    say(assembly)
    until(lambda: assembly.engine.stats().steps == 6 and assembly.accelerators.show()["hit_rate"] is not None)
    client = assembly.engine.client
    ask(assembly, ShowPlacement())  # the last step has been looked at by then
    shown = assembly.accelerators.show()
    device, ram = shown["devices"][0], shown["ram"]
    assert device["hits"] + ram["hits"] == 5 * 2 * 2  # decoded tokens, layers, choices
    assert ram["hits"] >= 5 * 2 and device["hits"] > 0
    assert shown["hit_rate"] == device["hits"] / 20
    page = assembly.engine.metrics.render().decode()
    assert f'isotherm_expert_choices_total{{device="gpu0"}} {float(device["hits"])}' in page
    assert 'isotherm_experts{device="ram"} 11.0' in page and client.stats().state == "ready"


def test_the_foretold_stands_beside_the_measured(assembly: Assembly) -> None:
    say(assembly)
    ask(assembly, ShowPlacement())
    shown = assembly.accelerators.show()
    assert shown["predicted"]["as_planned"]
    assert shown["predicted"]["decode_tok_s"]["value"] > 0
    assert shown["measured"]["decode_tok_s"] > 0 and shown["measured"]["prefill_tok_s"] > 0
    page = assembly.engine.metrics.render().decode()
    for name in ("predicted", "measured"):
        assert f'isotherm_{name}_tokens_per_second{{phase="decode"}}' in page


def test_memory_is_given_back_and_taken_again_and_no_answer_changes(assembly: Assembly) -> None:
    expected = say(assembly)
    before = limited(assembly, None)
    fixed = before["used_bytes"] - before["expert_bytes"]
    given = limited(assembly, fixed)
    assert (given["used_bytes"], given["limit_bytes"], given["experts"]) == (fixed, fixed, 0)
    assert card_of(assembly).used_bytes == fixed and hot(assembly) == [CPU] * 8
    until(lambda: assembly.accelerators.show()["predicted"]["decode_tok_s"] is not None)
    foretold = assembly.accelerators.show()["predicted"]
    assert not foretold["as_planned"] and foretold["decode_tok_s"]["value"] > 0
    assert say(assembly, "b") == expected
    limited(assembly, None)
    until(lambda: hot(assembly).count(0) == 5 and not assembly.accelerators.show()["devices"][0]["growing"])
    assert card_of(assembly).used_bytes == before["used_bytes"]
    assert say(assembly, "c") == expected
    assert assembly.engine.events.counts() == {"vram_given_back": 1}
    residency_of(assembly.runner).check_integrity()


def test_ram_that_experts_give_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a second start, whose weights are mapped from the pack cache."""
    small_pages(monkeypatch)
    model, plan = tmp_path / "tiny.gguf", tmp_path / "plan.json"
    write_gguf(model, "qwen3_moe", "Q4_0")
    mapped_weights(open_model(model), packed_folder())
    keep_profile(threads=2)
    save_plan(plan_of(model, experts=[0] * 8), plan)
    with assembled(config(model, "emulated:vram=1GiB", context=None, plan=plan, pack_cache=True)) as made:
        given = made.accelerators.show()["ram"]["given_back_bytes"]
        assert given > 0 and ask(made, ShowPlacement())["ram"]["given_back_bytes"] == given
        assert f"isotherm_ram_given_back_bytes {float(given)}" in made.engine.metrics.render().decode()
        full = limited(made, None)
        limited(made, full["used_bytes"] - full["expert_bytes"])
        assert made.accelerators.show()["ram"]["given_back_bytes"] == 0


def test_memory_comes_and_goes_while_answers_are_given(assembly: Assembly) -> None:
    expected = say(assembly)
    fixed = (full := limited(assembly, None))["used_bytes"] - full["expert_bytes"]
    mailboxes = [assembly.engine.client.submit(request(str(n), PROMPT, max_tokens=6)) for n in range(4)]
    for limit in (fixed, None, fixed + full["expert_bytes"] // 2, None) * 2:
        limited(assembly, limit)
    assert [tokens_of(messages_of(mailbox)) for mailbox in mailboxes] == [expected] * 4
    until(lambda: hot(assembly).count(0) == 5)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"gpu1": 1 << 30}, "there is no 'gpu1'; there is gpu0"),
        ({"gpu0": 16}, "gpu0: emulated:0 needs .* for layers and buffers that cannot be moved"),
        ({"gpu0": 1 << 40}, "gpu0: emulated:0 has 1 GiB of memory"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(limits: dict[str, int], told: str, assembly: Assembly) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        ask(assembly, SetVram(limits=limits))
    assert hot(assembly) == HOT


def test_whoever_wants_memory_of_a_lost_device_is_told_so(assembly: Assembly) -> None:
    full, expected = limited(assembly, None), say(assembly)
    card_of(assembly).faults.fail("copy")
    limited(assembly, full["used_bytes"] - full["expert_bytes"] // 2)
    until(lambda: "vram_not_taken" in assembly.engine.events.counts())
    with pytest.raises(EngineError, match=r"gpu0: emulated:0: .* is lost"):
        limited(assembly, full["used_bytes"] - full["expert_bytes"])
    assert say(assembly, "b") == expected


def test_a_step_whose_memory_runs_out_goes_on_with_fewer_experts_there(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = say(assembly)
    gate_up, failures = TorchKernels.gate_up, iter([True])

    def short(*args: object) -> None:
        if next(failures, False):
            raise DeviceMemoryError("emulated:0 is out of memory")
        gate_up(*args)

    monkeypatch.setattr(TorchKernels, "gate_up", staticmethod(short))
    before = residency_of(assembly.runner).nbytes(0)
    assert say(assembly, "b") == expected
    assert next(failures, None) is None  # it did run out
    assert assembly.engine.events.counts() == {"accelerator_out_of_memory": 1}
    assert residency_of(assembly.runner).nbytes(0) < before
    assert assembly.status()["state"] == "ready"


def test_where_memory_stays_short_more_and_more_is_given_back(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = say(assembly)

    def short(*args: object) -> None:
        raise DeviceMemoryError("emulated:0 is out of memory")

    monkeypatch.setattr(TorchKernels, "gate_up", staticmethod(short))
    assert say(assembly, "b") == expected
    assert hot(assembly).count(0) < 4  # of five; nobody has asked for the others since
    assert assembly.engine.events.counts()["accelerator_out_of_memory"] > 1


def test_memory_that_cannot_be_taken_again_is_told_and_tried_when_asked_for(assembly: Assembly) -> None:
    full = limited(assembly, None)
    limited(assembly, full["used_bytes"] - full["expert_bytes"])
    card_of(assembly).faults.fail("allocation")
    limited(assembly, None)
    until(lambda: "vram_not_taken" in assembly.engine.events.counts())
    assert set(hot(assembly)) == {CPU}
    limited(assembly, None)
    until(lambda: hot(assembly) == HOT)


def test_a_model_without_experts_is_served_too(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    keep_profile(threads=2)
    card = "emulated:vram=1GiB,launch=0us,hop=0us"
    assert answers(config(tmp_path / "tiny.gguf", card)) == answers(config(tmp_path / "tiny.gguf"))


def test_where_one_bound_is_refused_none_is_set(tmp_path: Path) -> None:
    write_gguf(tmp_path / "two.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    save_plan(plan_of(tmp_path / "two.gguf", experts=HOT), tmp_path / "two.json")
    cards = ("emulated:vram=1GiB", "emulated:vram=1GiB,number=1")
    with assembled(config(tmp_path / "two.gguf", *cards, context=None, plan=tmp_path / "two.json")) as made:
        first, before = residency_of(made.runner).accelerators[0], hot(made)
        limit = first.used_bytes - residency_of(made.runner).nbytes(0) // 2
        for refused in (2 << 30, -1):
            with pytest.raises(InvalidRequestError, match="gpu1: emulated:1 "):
                ask(made, SetVram(limits={"gpu0": limit, "gpu1": refused}))
        assert (first.limit_bytes, hot(made)) == (1 << 30, before)
