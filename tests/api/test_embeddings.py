"""POST /v1/embeddings."""

import asyncio
import base64
import socket
from typing import Any

import httpx
import numpy as np
import pytest
from isotherm.api.service import Service
from isotherm.daemon.errors import OverloadedError
from isotherm.daemon.messages import Submit
from support.api_service import MODEL, call, make_service, serving, wait_until
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import BOS, HANG, ScriptedEngine

EMBEDDINGS = "/v1/embeddings"


def embed(service: Service, given: Any = "ab", **fields: Any) -> httpx.Response:
    return call(service, "POST", EMBEDDINGS, json={"input": given, **fields})


def submits_of(service: Service) -> list[Submit]:
    assert isinstance(service.client, ScriptedEngine)
    return service.client.submitted


def test_answer_has_the_shape_of_a_list() -> None:
    body = embed(make_service(), [97, 98]).json()
    assert (body["object"], body["model"]) == ("list", MODEL)
    assert body["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    (data,) = body["data"]
    assert (data["object"], data["index"]) == ("embedding", 0)
    expected = np.array([3, 4, 97, 98]) / np.linalg.norm([3, 4, 97, 98])
    np.testing.assert_allclose(data["embedding"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", [(BOS, 97)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
def test_all_kinds_of_inputs(given: Any, prompts: list[tuple[int, ...]]) -> None:
    service = make_service()
    body = embed(service, given).json()
    assert [submit.prompt for submit in submits_of(service)] == prompts
    assert [each["index"] for each in body["data"]] == list(range(len(prompts)))


def test_base64_holds_the_same_numbers() -> None:
    (plain,), (coded,) = (embed(make_service(), encoding_format=each).json()["data"] for each in ("float", "base64"))
    values = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    np.testing.assert_allclose(values, plain["embedding"], rtol=1e-6)


def test_fewer_dimensions_are_scaled_again() -> None:
    (data,) = embed(make_service(), dimensions=2).json()["data"]
    np.testing.assert_allclose(data["embedding"], [0.6, 0.8], rtol=1e-6)


def test_values_may_stay_as_they_are() -> None:
    (data,) = embed(make_service(), [97, 98], normalize=False).json()["data"]
    assert data["embedding"] == [3, 4, 97, 98]


@pytest.mark.parametrize(("given", "pooling"), [({}, "mean"), ({"pooling": "last"}, "last")])
def test_pooling_is_the_client_s_choice(given: dict[str, str], pooling: str) -> None:
    service = make_service()
    embed(service, **given)
    assert submits_of(service)[0].pooling == pooling


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [258]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": [1] * 1000}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"pooling": "cls"}, "pooling"),
    ],
)
def test_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    response = call(make_service(), "POST", EMBEDDINGS, json={"input": "x", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_few_inputs_of_one_request_are_open_at_once() -> None:
    engine = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 1.0), capacity=8)
    assert len(embed(make_service(engine), [[each] for each in range(100)]).json()["data"]) == 100


def test_a_full_queue_refuses_all_and_leaves_nothing_open() -> None:
    engine = ScriptedEngine(lambda submit: [HANG], refuse=OverloadedError("full", 1.0), capacity=3)
    service = make_service(engine)

    async def run() -> None:
        from isotherm.api.embedding import embed as run_all
        from isotherm.daemon.request import SamplingParams

        submits = [
            Submit(request_id=str(n), prompt=(n + 1,), sampling=SamplingParams(), eos_token_ids=frozenset())
            for n in range(5)
        ]
        with pytest.raises(OverloadedError):
            await run_all(service.client, submits)

    asyncio.run(run())
    assert sorted(name for name, _ in engine.aborted) == ["0", "1", "2"]


def test_a_client_that_leaves_is_noticed() -> None:
    engine = ScriptedEngine(lambda submit: [HANG])
    with serving(make_service(hanging(engine))) as port:
        body = b'{"input": ["a", "b"]}'
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST {EMBEDDINGS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: len(engine.open) == 2)
        wait_until(lambda: len(engine.aborted) == 2)
    assert not engine.open


def hanging(engine: ScriptedEngine) -> ScriptedEngine:
    """An engine whose requests never end, even where they ask for no token."""
    from dataclasses import replace

    submit = engine.submit
    engine.submit = lambda one: submit(replace(one, sampling=replace(one.sampling, max_tokens=9), pooling=None))  # type: ignore[method-assign]
    return engine


def test_the_engine_s_embedding_does_not_depend_on_its_company() -> None:
    texts = [[5, 9, 2], [7] * 20, [1, 2, 3, 4, 5, 6, 7]]
    with running(make_engine(FakeRunner())) as client:
        service = make_service(client)
        together = [each["embedding"] for each in embed(service, texts).json()["data"]]
        alone = [embed(service, text).json()["data"][0]["embedding"] for text in texts]
    assert together == alone
