"""The HTTP side on the real engine and scheduler, over a model that is only arithmetic."""

import asyncio

import httpx
from isotherm.api.service import Limits
from isotherm.daemon.engine import Engine
from support.api_service import COMPLETIONS, app_of, call, make_service, serving, wait_until
from support.engine_runs import GatedRunner, assert_nothing_left, make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE
from support.serving import make_submit


def small_engine(kind: type[FakeRunner] = FakeRunner) -> Engine:
    """Its pool holds a few of these requests at a time."""
    return make_engine(kind(num_blocks=32, vocab_size=VOCAB_SIZE, max_context=128), max_queued=100)


def gated_engine() -> tuple[Engine, GatedRunner]:
    """One whose steps wait for permits."""
    engine = small_engine(GatedRunner)
    assert isinstance(engine._runner, GatedRunner)
    return engine, engine._runner


def test_a_flood_ends_in_one_answer_each_and_leaks_nothing() -> None:
    """[9, 53, 59]"""

    async def flood(engine: Engine) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app_of(make_service(engine.client)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            body = {"stream": True, "max_tokens": 12, "ignore_eos": True}
            calls = [client.post(COMPLETIONS, json={**body, "prompt": f"{i} " * 8}) for i in range(200)]
            return await asyncio.gather(*calls)

    engine = small_engine()
    with running(engine):
        responses = asyncio.run(flood(engine))
        assert {response.status_code for response in responses} <= {200, 429}
        accepted = [response for response in responses if response.status_code == 200]
        assert len(accepted) >= 100
        assert all(response.text.count('"finish_reason":"length"') == 1 for response in accepted)
        assert all(response.text.count("data: [DONE]") == 1 for response in accepted)
        assert_nothing_left(engine)


def test_a_client_that_leaves_frees_its_blocks() -> None:
    """[8, 9, 56] Seen on the metrics page too."""
    engine, runner = gated_engine()
    with running(engine), serving(make_service(engine.client, metrics=engine.metrics)) as port:
        base = f"http://127.0.0.1:{port}"
        body = {"prompt": "x" * 20, "max_tokens": 100, "ignore_eos": True, "stream": True, "n": 2}
        runner.permits.release(2)
        with httpx.stream("POST", base + COMPLETIONS, json=body, timeout=20) as response:
            next(response.iter_lines())
            for _ in range(3):
                runner.wait_for_step()
        wait_until(lambda: len(engine._inbox._messages) == 2)  # both choices are given up while the third step waits
        runner.let_go()
        assert_nothing_left(engine)
        page = httpx.get(base + "/metrics", timeout=20).text
        assert "\nisotherm_requests_running 0.0\n" in page
        assert "\nisotherm_kv_cache_usage_ratio 0.0\n" in page
        assert 'isotherm_request_finished_total{reason="abort"} 2.0' in page
        assert engine.stats().generated_tokens <= 6  # two in each of three steps


def test_pings_and_health_go_on_during_a_step() -> None:
    """[61, 71] In prefill, while the engine waits for the model."""
    engine, runner = gated_engine()
    with running(engine):
        service = make_service(engine.client, limits=Limits(ping_interval=0.01))
        with serving(service) as port:
            base = f"http://127.0.0.1:{port}"
            body = {"prompt": "x" * 20, "max_tokens": 3, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", base + COMPLETIONS, json=body, timeout=20) as response:
                lines = response.iter_lines()
                assert [next(lines) for _ in range(6)] == [": ping", ""] * 3
                wait_until(lambda: engine.stats().busy)
                assert httpx.get(base + "/health", timeout=20).status_code == 200
                runner.let_go()
                assert [line for line in lines if line][-1] == "data: [DONE]"
        assert_nothing_left(engine)


def test_a_step_that_hangs_is_seen_by_health_and_on_the_metrics_page() -> None:
    engine, runner = gated_engine()
    with running(engine):
        service = make_service(engine.client, metrics=engine.metrics, limits=Limits(step_limit=0.0))
        assert call(service, "GET", "/health").status_code == 200
        engine.client.submit(make_submit("a", [1, 2, 3], max_tokens=1))
        wait_until(lambda: engine.stats().step_age() > 0)
        health = call(service, "GET", "/health")
        assert health.status_code == 503
        assert "a step of the model has been running" in health.json()["reason"]
        assert "isotherm_step_age_seconds 0.0\n" not in call(service, "GET", "/metrics").text
        runner.let_go()
        assert_nothing_left(engine)
        assert call(service, "GET", "/health").status_code == 200


def test_a_stopped_request_is_counted_to_its_stop_string() -> None:
    engine = small_engine()
    with running(engine):
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
    engine = small_engine()
    with running(engine):
        engine.stop()

        async def ask() -> tuple[httpx.Response, httpx.Response]:
            transport = httpx.ASGITransport(app_of(make_service(engine.client)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.post(COMPLETIONS, json={"prompt": "x"}), await client.get("/health")

        refused, health = asyncio.run(ask())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert health.status_code == 503
        assert health.json()["reason"]
