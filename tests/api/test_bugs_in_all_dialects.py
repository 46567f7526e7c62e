"""Known bugs of other servers, looked for in every dialect, streamed and whole. Numbers in brackets: known_bugs.md."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from isotherm.api.service import Limits, Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError, OverloadedError
from support.api_service import CHAT, COMPLETIONS, MODEL, call, make_service, serving, wait_until
from support.engine_runs import GatedRunner, assert_nothing_left, make_engine, running
from support.scripted_engine import HANG, VOCAB_SIZE, ScriptedEngine, Step, says

USER = [{"role": "user", "content": "x"}]
Json = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """told: the text that an object of a stream adds. whole: the text of an answer that is not streamed.

    failed: whether an object tells of a failure. stop: fields that ask for a stop string, where there is one.
    """

    name: str
    path: str
    body: Json
    told: Callable[[Json], str]
    whole: Callable[[Json], str]
    failed: Callable[[Json], bool]
    stop: Callable[[str], Json] | None = None
    prompt: Callable[[str], Json] = field(default=lambda text: {"messages": [{"role": "user", "content": text}]})

    @property
    def lines(self) -> bool:
        return self.path.startswith("/api/")

    def ask(self, service: Service, stream: bool, **fields: Any) -> httpx.Response:
        return call(service, "POST", self.path, json={"model": MODEL, **self.body, "stream": stream, **fields})

    def frames(self, response: httpx.Response) -> list[str]:
        """The frames of a finished stream, pings included; checks what ends it."""
        end = "\n" if self.lines else "\n\n"
        *frames, rest = response.text.split(end)
        assert rest == ""
        if self.path in (CHAT, COMPLETIONS):
            assert frames.count("data: [DONE]") == 1
            assert frames.pop() == "data: [DONE]"
        return frames

    def read(self, frame: str) -> Json:
        """The object in a frame; none in a comment."""
        data = frame if self.lines else frame.partition("data: ")[2]
        return orjson.loads(data) if data else {}

    def is_ping(self, frame: str) -> bool:
        if self.lines:
            return not self.read(frame).get("done") and self.told(self.read(frame)) == ""
        return frame.startswith((": ping", "event: ping\n"))

    def pieces(self, response: httpx.Response) -> list[str]:
        """The texts of a stream's pieces, without the empty ones."""
        assert response.status_code == 200, response.text
        return [piece for frame in self.frames(response) if (piece := self.told(self.read(frame)))]

    def text(self, service: Service, stream: bool, **fields: Any) -> str:
        response = self.ask(service, stream, **fields)
        assert response.status_code == 200, response.text
        return "".join(self.pieces(response)) if stream else self.whole(response.json())


DIALECTS = [
    Dialect(
        "chat",
        CHAT,
        {"messages": USER},
        told=lambda data: data["choices"][0]["delta"].get("content") or "" if "choices" in data else "",
        whole=lambda data: data["choices"][0]["message"]["content"],
        failed=lambda data: isinstance(data.get("error"), dict),
        stop=lambda text: {"stop": text},
    ),
    Dialect(
        "completions",
        COMPLETIONS,
        {"prompt": "x", "max_tokens": 100},
        told=lambda data: data["choices"][0]["text"] if "choices" in data else "",
        whole=lambda data: data["choices"][0]["text"],
        failed=lambda data: isinstance(data.get("error"), dict),
        stop=lambda text: {"stop": text},
        prompt=lambda text: {"prompt": text},
    ),
    Dialect(
        "messages",
        "/v1/messages",
        {"messages": USER, "max_tokens": 100},
        told=lambda data: data["delta"].get("text", "") if data.get("type") == "content_block_delta" else "",
        whole=lambda data: data["content"][0]["text"],
        failed=lambda data: data.get("type") == "error" and isinstance(data["error"], dict),
        stop=lambda text: {"stop_sequences": [text]},
    ),
    Dialect(
        "responses",
        "/v1/responses",
        {"input": "x"},
        told=lambda data: data["delta"] if data.get("type") == "response.output_text.delta" else "",
        whole=lambda data: data["output"][0]["content"][0]["text"],
        failed=lambda data: data.get("type") == "response.failed" or isinstance(data.get("error"), dict),
        prompt=lambda text: {"input": text},
    ),
    Dialect(
        "ollama chat",
        "/api/chat",
        {"messages": USER},
        told=lambda data: data.get("message", {}).get("content", ""),
        whole=lambda data: data["message"]["content"],
        failed=lambda data: isinstance(data.get("error"), str),
        stop=lambda text: {"options": {"stop": [text]}},
    ),
    Dialect(
        "ollama generate",
        "/api/generate",
        {"prompt": "x"},
        told=lambda data: data.get("response", ""),
        whole=lambda data: data["response"],
        failed=lambda data: isinstance(data.get("error"), str),
        stop=lambda text: {"options": {"stop": [text]}},
        prompt=lambda text: {"prompt": text},
    ),
]
EVERY = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
TALKS = pytest.mark.parametrize(
    "dialect", [each for each in DIALECTS if each.name != "completions"], ids=lambda dialect: dialect.name
)
STOPS = pytest.mark.parametrize("dialect", [each for each in DIALECTS if each.stop], ids=lambda dialect: dialect.name)
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def told_by(dialect: Dialect, steps: list[Step], stop: str) -> tuple[list[str], str]:
    """The pieces of a stream that may stop, and the whole answer."""
    assert dialect.stop is not None
    fields = dialect.stop(stop)
    pieces = dialect.pieces(dialect.ask(make_service(steps), True, **fields))
    return pieces, dialect.text(make_service(steps), False, **fields)


@STOPS
def test_no_part_of_a_stop_string_is_told(dialect: Dialect) -> None:
    """[1, 2] One that lies across tokens, and is followed by more."""
    pieces, whole = told_by(dialect, [*says("say STOP now", 0.001), HANG], "STOP")
    assert (pieces, whole) == (list("say "), "say ")


@STOPS
def test_what_only_began_like_a_stop_string_is_told_at_the_end(dialect: Dialect) -> None:
    """[4]"""
    pieces, whole = told_by(dialect, says("say ST", 0.001), "STOP")
    assert ("".join(pieces), whole) == ("say ST", "say ST")


@EVERY
def test_characters_come_whole(dialect: Dialect) -> None:
    """[5] One that never gets whole is replaced, once, at the end."""
    steps = [*says("é🙂漢", 0.001), 0.001, 0xF0, 0.001, 0x9F]
    assert dialect.pieces(dialect.ask(make_service(steps), True)) == ["é", "🙂", "漢", "\ufffd"]
    assert dialect.text(make_service(steps), False) == "é🙂漢\ufffd"


@EVERY
@STREAM
def test_a_token_that_the_tokenizer_does_not_know_has_no_text(dialect: Dialect, stream: bool) -> None:
    """[7] A model may have more logits than its tokenizer has tokens."""
    assert dialect.text(make_service([*says("a"), VOCAB_SIZE, 10**9, *says("b")]), stream) == "ab"


@EVERY
@STREAM
def test_a_prompt_that_is_too_long_is_a_status(dialect: Dialect, stream: bool) -> None:
    """[58, 68] Before anything of a stream has been sent."""
    service = make_service()
    response = dialect.ask(service, stream, **dialect.prompt("x" * 1000))
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert service.client.submitted == []
    assert "1000" in response.text


@EVERY
@STREAM
def test_a_full_queue_is_a_status_that_says_when_to_come_back(dialect: Dialect, stream: bool) -> None:
    """[53, 58] And is found before a prompt is made into tokens."""
    full = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 2.5))
    response = dialect.ask(make_service(full, tokenizer=None), stream)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


@EVERY
def test_a_failure_is_the_last_object_of_a_stream(dialect: Dialect) -> None:
    """[59, 60] And the only one of its kind."""
    service = make_service([*says("a", 0.001), EngineError("the step failed")])
    objects = [dialect.read(frame) for frame in dialect.frames(dialect.ask(service, True))]
    assert [dialect.failed(each) for each in objects] == [False] * (len(objects) - 1) + [True]
    assert "the step failed" in str(objects[-1])


@EVERY
def test_a_failure_is_no_answer(dialect: Dialect) -> None:
    """[59]"""
    response = dialect.ask(make_service([*says("a"), EngineError("the step failed")]), False)
    assert response.status_code == 503
    assert dialect.failed(response.json())


@EVERY
def test_a_stream_shows_signs_of_life_while_there_is_nothing_to_tell(dialect: Dialect) -> None:
    """[61, 72] Before the first token and between tokens, and they bring no text."""
    service = make_service([0.2, *says("a"), 0.2, *says("b")], limits=Limits(ping_interval=0.02))
    frames = dialect.frames(dialect.ask(service, True))
    first, second = (place for place, frame in enumerate(frames) if dialect.told(dialect.read(frame)))
    assert any(map(dialect.is_ping, frames[:first]))
    assert any(map(dialect.is_ping, frames[first + 1 : second]))


@EVERY
@STREAM
def test_a_client_that_leaves_ends_its_request(dialect: Dialect, stream: bool) -> None:
    """[8, 71] While the model reads the prompt."""
    engine = ScriptedEngine(lambda submit: [HANG])
    body = orjson.dumps({"model": MODEL, **dialect.body, "stream": stream})
    with serving(make_service(engine)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST {dialect.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: engine.open)
        wait_until(lambda: not engine.open)
    assert engine.aborted == [(engine.submitted[0].request_id, "abort")]


@EVERY
@STREAM
def test_a_daemon_that_ends_tells_its_clients(dialect: Dialect, stream: bool) -> None:
    """[59, 67] Those whose answers it cuts off."""
    runner = GatedRunner(vocab_size=VOCAB_SIZE)
    engine = make_engine(runner)

    def stop() -> None:
        runner.wait_for_step()
        stopper = threading.Thread(target=engine.stop)
        stopper.start()
        wait_until(lambda: engine._stopping)
        runner.let_go()
        stopper.join()

    with running(engine) as client:
        ending = threading.Thread(target=stop)
        ending.start()
        response = dialect.ask(make_service(client), stream)
        ending.join()
        assert_nothing_left(engine)
    assert response.status_code == (200 if stream else 503)
    last = dialect.read(dialect.frames(response)[-1]) if stream else response.json()
    assert dialect.failed(last)
    assert "shutting down" in str(last)


@EVERY
def test_keys_share_no_prefix(dialect: Dialect) -> None:
    """[46]"""
    service = make_service(api_keys=frozenset(map(key_digest, ("one", "two"))))
    for key in ("one", "two", "one"):
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": MODEL, **dialect.body, "stream": False}
        assert call(service, "POST", dialect.path, json=body, headers=headers).status_code == 200
    first, second, third = (submit.cache_salt for submit in service.client.submitted)
    assert first == third != second


@TALKS
@STREAM
def test_what_a_template_refuses_is_a_status_with_its_words(dialect: Dialect, stream: bool) -> None:
    """[34]"""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    response = dialect.ask(make_service(chat_template=template), stream)
    assert response.status_code == 400
    assert "roles must alternate" in response.text


CALL: Json = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 5}'}}
TURNS: dict[str, Json] = {
    "chat": {
        "messages": [
            *USER,
            {"role": "assistant", "content": None, "reasoning": "Hm", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        ]
    },
    "messages": {
        "messages": [
            *USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 5}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]},
        ]
    },
    "responses": {
        "input": [
            *USER,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 5}'},
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        ]
    },
    "ollama chat": {
        "messages": [
            *USER,
            {"role": "assistant", "thinking": "Hm", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 5}}}]},
            {"role": "tool", "tool_name": "f", "content": "noon"},
        ]
    },
}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("dialect", [each for each in DIALECTS if each.name in TURNS], ids=lambda dialect: dialect.name)
def test_a_turn_of_thoughts_and_a_call_comes_back(dialect: Dialect, name: str) -> None:
    """[32, 35] There is no content, which the template looks into all the same."""
    template = ChatTemplate(
        "tools </think>{% for m in messages %}[{{ m.role }}:{{ m.content[:9] }}:{{ m." + name + " }}"
        "{% for call in m.tool_calls %}{{ call.function.arguments.a }}{% endfor %}]{% endfor %}"
    )
    service = make_service(chat_template=template)
    response = dialect.ask(service, False, **TURNS[dialect.name])
    assert response.status_code == 200, response.text
    prompt = bytes(service.client.submitted[0].prompt).decode()
    assert prompt == "tools </think>[user:x:][assistant::Hm5][tool:noon:]"


@EVERY
def test_a_template_of_a_request_is_never_rendered(dialect: Dialect) -> None:
    """[69]"""
    service = make_service()
    response = dialect.ask(service, False, chat_template="{{ 7 * 191 }}", template="{{ 7 * 191 }}")
    prompts = [bytes(token for token in submit.prompt if token < 256) for submit in service.client.submitted]
    assert response.status_code == 400 or prompts
    assert not any(b"1337" in prompt for prompt in prompts)
