"""Recorded counts are those of the choices by definition, and recording changes nothing of what a model says."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.routing_recorder import RoutingRecorder
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import Model, open_model
from isotherm.placement.trace import PHASES
from support.engine_runs import make_engine, messages_of, request, running, tokens_of
from support.engines import engine, greedy, lane
from support.fake_runner import FakeRunner
from support.recorded import Recorded, choices_by_definition, counts_by_definition
from support.serving import Bench, make_submit
from support.tiny import VOCAB_SIZE, write_hf

LENGTHS = (37, 9, 21, 1)
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB_SIZE, length).tolist() for i, length in enumerate(LENGTHS)]
MODELS = {"mixtral": {}, "qwen3_moe": {"num_hidden_layers": 3, "mlp_only_layers": [2]}, "qwen2_moe": {}}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp(request.param)
    write_hf(path, request.param, **MODELS[request.param])
    return open_model(path)


@pytest.fixture(scope="module")
def runner(model: Model) -> Iterator[DecoderRunner]:
    with engine(model.checkpoint.path, threads=2, max_step_tokens=16) as runner:
        yield runner


def serve(recorded: Recorded, prompts: list[list[int]], count: int) -> dict[str, list[int]]:
    """All tokens of each request but the last one, which no step has computed."""
    bench = Bench(recorded)  # type: ignore[arg-type]
    for number, prompt in enumerate(prompts):
        bench.submit(make_submit(str(number), prompt, max_tokens=count))
    while bench.scheduler.has_work:
        bench.step()
    return {name: prompts[int(name)] + text[:-1] for name, text in bench.texts.items()}


def test_recorded_counts_are_those_of_the_definition(runner: DecoderRunner, model: Model) -> None:
    recorded = Recorded(runner, RoutingRecorder(model, runner))
    texts = serve(recorded, PROMPTS, 12)  # steps of 16 tokens cut the prompts, and mix them with what decodes
    assert any({chunk.decodes for chunk in plan.chunks} == {False, True} for plan in recorded.plans)
    trace = recorded.recorder.take()
    expected = counts_by_definition(model, recorded.plans, texts)
    assert trace.layers == tuple(layer for layer, is_moe in enumerate(model.spec.moe_layers) if is_moe)
    for phase, counts in expected.items():
        got = trace.phases[phase]
        assert got.steps == counts.steps
        for name in ("counts", "tokens", "distinct"):
            np.testing.assert_array_equal(getattr(got, name), getattr(counts, name), err_msg=f"{phase} {name}")
        np.testing.assert_allclose(got.mass, counts.mass, rtol=1e-3)


def test_the_sample_holds_each_sequence_as_it_was_decoded(runner: DecoderRunner, model: Model) -> None:
    recorded = Recorded(runner, RoutingRecorder(model, runner))
    texts = serve(recorded, PROMPTS, 12)
    trace = recorded.recorder.take()
    got = [trace.sample[start:end].tolist() for start, end in zip(trace.starts, trace.ends, strict=True)]
    expected = []
    for name, text in texts.items():
        ids = np.stack([ids for ids, _ in choices_by_definition(model, text)], axis=1)  # [tokens, layers, top_k]
        expected.append(ids[len(PROMPTS[int(name)]) :].tolist())
    assert sorted(got) == sorted(expected)


def test_what_was_taken_is_not_counted_again(runner: DecoderRunner, model: Model) -> None:
    recorder = RoutingRecorder(model, runner)
    recorded = Recorded(runner, recorder)
    serve(recorded, PROMPTS[:1], 3)
    assert recorder.news.is_set()
    assert recorder.take().phases["decode"].tokens.tolist() == [2.0] * sum(model.spec.moe_layers)
    assert not recorder.news.is_set()
    assert recorder.take().empty


def test_recent_choices_are_those_of_the_trace_before_and_after_it_is_taken(
    runner: DecoderRunner, model: Model
) -> None:
    recorder = RoutingRecorder(model, runner)
    serve(Recorded(runner, recorder), PROMPTS, 12)
    before = {phase: recorder.recent(phase) for phase in PHASES}
    trace = recorder.take()
    for phase in PHASES:
        use, after = before[phase], recorder.recent(phase)
        np.testing.assert_allclose(use.counts, trace.phases[phase].counts, rtol=0.03)  # the first ones have faded a bit
        np.testing.assert_allclose(after.counts, use.counts, rtol=0.02)
        assert after.tokens == pytest.approx(use.tokens, rel=0.02)


def test_many_steps_are_recent_choices_at_once(runner: DecoderRunner, model: Model) -> None:
    recorder = RoutingRecorder(model, runner)
    serve(Recorded(runner, recorder), PROMPTS[1:], 60)  # more than are staged
    use = recorder.recent("decode")
    assert use.tokens == pytest.approx(3 * 59, rel=0.03)
    assert use.counts.sum() == pytest.approx(use.tokens * len(recorder.layers) * recorder.top_k)


def test_recording_changes_no_bit_of_the_logits(runner: DecoderRunner, model: Model) -> None:
    recorded = Recorded(runner, RoutingRecorder(model, runner))
    texts, rows = greedy(runner, [PROMPTS[1], PROMPTS[3]], 6)
    texts_recorded, rows_recorded = greedy(recorded, [PROMPTS[1], PROMPTS[3]], 6)  # type: ignore[arg-type]
    assert len(recorded.plans) > 6
    assert texts_recorded == texts
    assert np.array_equal(rows_recorded, rows)


def test_a_step_without_logits_is_recorded(runner: DecoderRunner, model: Model) -> None:
    recorded = Recorded(runner, RoutingRecorder(model, runner))
    recorded.execute(StepPlan((Chunk("a", PROMPTS[0][:16], 0, lane(runner), False),)))
    tokens = recorded.recorder.take().phases["prefill"].tokens
    assert tokens.tolist() == [16.0] * (len(tokens) - 1) + [0.0 if model.spec.moe_layers[-1] else 16.0]


class Tally:
    """Records how many tokens each step had, and fails at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.steps: list[int] = []
        self.fails_at = fails_at

    def record(self, plan: StepPlan) -> None:
        self.steps.append(plan.num_tokens)
        if len(self.steps) == self.fails_at:
            raise RuntimeError("no more paper")


def test_the_engine_shows_each_step_to_its_recorder() -> None:
    tally = Tally()
    fake = FakeRunner()
    with running(make_engine(fake, recorder=tally)) as client:
        messages_of(client.submit(request("a", (1, 2, 3), max_tokens=5)))
    assert tally.steps == [3, 1, 1, 1, 1]


def test_a_step_that_failed_is_not_recorded() -> None:
    tally = Tally()
    with running(make_engine(FakeRunner(fail_calls=(1,)), recorder=tally)) as client:
        messages_of(client.submit(request("a", (1, 2, 3))))
        messages_of(client.submit(request("b", (1, 2), max_tokens=2)))
    assert tally.steps == [2, 1]


def test_a_recorder_that_fails_is_told_and_done_without() -> None:
    tally, fake = Tally(fails_at=2), FakeRunner()
    engine = make_engine(fake, recorder=tally)
    with running(engine) as client:
        messages = messages_of(client.submit(request("a", (1, 2, 3), max_tokens=5)))
    assert tokens_of(messages) == fake.greedy((1, 2, 3), 5)
    assert len(tally.steps) == 2
    assert engine.events.counts() == {"recording_stopped": 1}
