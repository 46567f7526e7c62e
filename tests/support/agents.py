"""A server whose model calls a tool, or answers, or never ends, by what is asked: for clients of agents."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.messages import Submit
from isotherm.daemon.structures import Structures
from pydantic import BaseModel, Field
from support.api_service import make_service, serving
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import HANG, VOCAB_SIZE, ByteTokenizer, ScriptedEngine, Step, says

TEMPLATE = """tools <tool_call></think>{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}
{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}]{% endfor %}"""
CALLED = '<think>Hm</think>I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>'
TOLD = "<think>So.</think>It is sunny in Bern."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Size(BaseModel):
    width: int = Field(ge=1, le=9)
    height: int = Field(ge=1, le=9)


class Picture(BaseModel):
    title: str = Field(pattern="^[a-z]{1,8}$")
    colours: list[bool] = Field(max_length=3)
    size: Size | None


def script(submit: Submit) -> list[Step]:
    """To "weather?" a call, and an answer once it has the result; to "wait" one that never ends; else "Hello"."""
    prompt = ByteTokenizer().decode(submit.prompt)
    if ":wait" in prompt:
        return [*says("Hello"), HANG]
    if ":weather?" in prompt:
        return says(TOLD if "[tool:sunny" in prompt else CALLED, 0.0)
    return says("Hello", 0.0)


def agent_engine() -> ScriptedEngine:
    return ScriptedEngine(script, max_context=100_000)


@contextmanager
def agent_server(engine: ScriptedEngine) -> Iterator[str]:
    """Serve an engine that follows the script; yields the address without any path."""
    with serving(make_service(engine, chat_template=ChatTemplate(TEMPLATE))) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def form_server() -> Iterator[str]:
    """Serve a real engine on a fake model, which keeps the forms of answers; yields the address without any path."""
    engine = make_engine(FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=400, max_context=400))
    with running(engine), serving(make_service(engine.client, structures=Structures(ByteTokenizer()))) as port:
        yield f"http://127.0.0.1:{port}"
