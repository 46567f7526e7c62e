"""OpenAI's SDK for JavaScript against a running server."""

from collections.abc import Iterator

import pytest
from support.agents import Picture, agent_engine, agent_server, form_server
from support.api_service import MODEL, wait_until
from support.npm_client import needs_npm_client, play
from support.scripted_engine import ScriptedEngine

pytestmark = needs_npm_client
CALL = ["get_weather", '{"city": "Bern"}']


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return agent_engine()


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with agent_server(engine) as root:
        yield f"{root}/v1"


@pytest.fixture(scope="module")
def form_url() -> Iterator[str]:
    with form_server() as root:
        yield f"{root}/v1"


def test_chat(url: str) -> None:
    told = play(url, "chat")
    assert (told["text"], told["finish_reason"], told["scored"]) == ("Hello", "stop", 5)
    assert told["usage"]["completion_tokens"] == 6
    assert told["request"]


def test_stream(url: str) -> None:
    told = play(url, "stream")
    assert told["text"] == "Hello"
    assert told["chunks"] > 2
    assert told["usage"]["completion_tokens"] == 6


def test_tools_whole_and_streamed(url: str) -> None:
    assert play(url, "tools") == [{"finish_reason": "tool_calls", "text": "I look.", "calls": [CALL]}] * 2


def test_its_own_loop_of_tools(url: str) -> None:
    assert play(url, "loop") == {"text": "It is sunny in Bern.", "asked": ["Bern"]}


@pytest.mark.parametrize("scene", ["schema", "responses_schema"])
def test_schemas_whole_and_streamed(form_url: str, scene: str) -> None:
    whole, streamed = play(form_url, scene)
    Picture.model_validate(whole)
    assert streamed == whole


def test_responses(url: str) -> None:
    assert play(url, "responses") == {
        "texts": ["Hello"] * 3,
        "status": "completed",
        "ends": ["response.created", "response.completed"],
    }


def test_responses_with_tools(url: str) -> None:
    told = play(url, "responses_tools")
    assert told["types"] == ["reasoning", "message", "function_call"]
    assert (told["call"], told["text"]) == (CALL, "It is sunny in Bern.")


def test_completions(url: str) -> None:
    assert play(url, "completions") == {"texts": ["Hel", "Hel"], "streamed": "Hel"}


def test_embeddings(url: str) -> None:
    assert play(url, "embeddings") == [pytest.approx([0.6, 0.8])] * 2


def test_models(url: str) -> None:
    assert play(url, "models") == [MODEL, MODEL]


def test_errors_have_their_classes(url: str) -> None:
    missing, bad = play(url, "errors")
    assert (missing["name"], missing["status"], missing["code"]) == ("NotFoundError", 404, "model_not_found")
    assert (bad["name"], bad["status"], bad["param"]) == ("BadRequestError", 400, "max_tokens")


@pytest.mark.parametrize("scene", ["break", "responses_break"])
def test_breaking_out_of_a_stream_aborts(engine: ScriptedEngine, url: str, scene: str) -> None:
    """[8]"""
    before = len(engine.aborted)
    assert play(url, scene) == "Hello"
    wait_until(lambda: len(engine.aborted) > before and not engine.open)


def test_aborting_a_whole_answer(engine: ScriptedEngine, url: str) -> None:
    """[8]"""
    before = len(engine.aborted)
    assert play(url, "abort", leave_after=lambda: wait_until(lambda: engine.open)) == "APIUserAbortError"
    wait_until(lambda: len(engine.aborted) > before and not engine.open)
