"""The HTTP side on the real engine and scheduler, over a model that is only arithmetic."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from isotherm.api.service import Limits
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.engine import Engine
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.step import StepPlan
from numpy.typing import NDArray
from support.api_service import COMPLETIONS, app_of, call, make_service, serving, wait_until
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE
from support.serving import make_submit


class GatedRunner(FakeRunner):
    def __init__(self, gate: threading.Event | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.gate = gate

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        assert self.gate is None or self.gate.wait(20)
        return super().execute(plan)


@contextmanager
def running(latency_s: float = 0.0, gate: threading.Event | None = None) -> Iterator[Engine]:
    """An engine whose pool holds a few of these requests at a time. With a gate its steps end when that is open."""
    runner = GatedRunner(gate, num_blocks=32, vocab_size=VOCAB_SIZE, latency_s=latency_s)
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        max_step_tokens=runner.max_step_tokens,
        max_context=128,
        budget=StepBudget(0.1, runner.max_step_tokens),
        max_running=8,
    )
    engine = Engine(runner, scheduler, QueueLimits(max_queued=100, max_queued_tokens=10_000))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def assert_nothing_left(engine: Engine) -> None:
    wait_until(lambda: not engine.stats().busy and not engine.stats().running)
    stats = engine.stats()
    assert (stats.waiting, stats.kv_blocks_free, stats.audit_failures) == (0, stats.kv_blocks, 0)


def test_a_flood_ends_in_one_answer_each_and_leaks_nothing() -> None:
    """[9, 53, 59]"""

    async def flood(engine: Engine) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app_of(make_service(engine.client)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            body = {"stream": True, "max_tokens": 12, "ignore_eos": True}
            calls = [client.post(COMPLETIONS, json={**body, "prompt": f"{i} " * 8}) for i in range(200)]
            return await asyncio.gather(*calls)

    with running() as engine:
        responses = asyncio.run(flood(engine))
        assert {response.status_code for response in responses} <= {200, 429}
        accepted = [response for response in responses if response.status_code == 200]
        assert len(accepted) >= 100
        assert all(response.text.count('"finish_reason":"length"') == 1 for response in accepted)
        assert all(response.text.count("data: [DONE]") == 1 for response in accepted)
        assert_nothing_left(engine)


def test_a_client_that_leaves_frees_its_blocks() -> None:
    """[8, 9, 56] Seen on the metrics page too."""
    with running(latency_s=0.005) as engine, serving(make_service(engine.client, metrics=engine.metrics)) as port:
        base = f"http://127.0.0.1:{port}"
        body = {"prompt": "x" * 20, "max_tokens": 100, "ignore_eos": True, "stream": True, "n": 2}
        with httpx.stream("POST", base + COMPLETIONS, json=body) as response:
            next(response.iter_lines())
        assert_nothing_left(engine)
        page = httpx.get(base + "/metrics").text
        assert "\nisotherm_requests_running 0.0\n" in page
        assert "\nisotherm_kv_cache_usage_ratio 0.0\n" in page
        assert 'isotherm_request_finished_total{reason="abort"} 2.0' in page
        assert engine.stats().generated_tokens < 200


def test_pings_and_health_go_on_during_a_step() -> None:
    """[61, 71] In prefill, while the engine waits for the model."""
    gate = threading.Event()
    with running(gate=gate) as engine:
        service = make_service(engine.client, limits=Limits(ping_interval=0.01))
        with serving(service) as port:
            base = f"http://127.0.0.1:{port}"
            body = {"prompt": "x" * 20, "max_tokens": 3, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", base + COMPLETIONS, json=body, timeout=20) as response:
                lines = response.iter_lines()
                assert [next(lines) for _ in range(6)] == [": ping", ""] * 3
                wait_until(lambda: engine.stats().busy)
                assert httpx.get(base + "/health").status_code == 200
                gate.set()
                assert [line for line in lines if line][-1] == "data: [DONE]"
        assert_nothing_left(engine)


def test_a_step_that_hangs_is_seen_by_health_and_on_the_metrics_page() -> None:
    gate = threading.Event()
    with running(gate=gate) as engine:
        service = make_service(engine.client, metrics=engine.metrics, limits=Limits(step_limit=0.0))
        assert call(service, "GET", "/health").status_code == 200
        engine.client.submit(make_submit("a", [1, 2, 3], max_tokens=1))
        wait_until(lambda: engine.stats().step_age() > 0)
        health = call(service, "GET", "/health")
        assert health.status_code == 503
        assert "a step of the model has been running" in health.json()["reason"]
        assert "isotherm_step_age_seconds 0.0\n" not in call(service, "GET", "/metrics").text
        gate.set()
        assert_nothing_left(engine)
        assert call(service, "GET", "/health").status_code == 200


def test_a_stopped_request_is_counted_to_its_stop_string() -> None:
    with running() as engine:
        service = make_service(engine.client)

        async def ask(**fields: object) -> dict:
            transport = httpx.ASGITransport(app_of(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                body = {"prompt": "x", "temperature": 0, "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
                return (await client.post(COMPLETIONS, json={**body, **fields})).json()

        whole = asyncio.run(ask())
        tokens = whole["choices"][0]["logprobs"]["tokens"]
        text = whole["choices"][0]["text"]
        stop = text[len(text) // 2]
        stopped = asyncio.run(ask(stop=stop))
        assert stopped["choices"][0]["text"] == text[: text.index(stop)]
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert len(stopped["choices"][0]["logprobs"]["tokens"]) <= stopped["usage"]["completion_tokens"] <= len(tokens)
        assert_nothing_left(engine)


def test_draining_refuses_and_health_says_why() -> None:
    with running() as engine:
        engine.stop()

        async def ask() -> tuple[httpx.Response, httpx.Response]:
            transport = httpx.ASGITransport(app_of(make_service(engine.client)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.post(COMPLETIONS, json={"prompt": "x"}), await client.get("/health")

        refused, health = asyncio.run(ask())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert health.status_code == 503
        assert health.json()["reason"]
