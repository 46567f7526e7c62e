"""What models of each family write to think and to call, and what it means."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isotherm.api.chat.dialect import join_events
from isotherm.api.chat.events import CallArguments, CallBegan, ChatEvent, Reasoning, Text
from isotherm.api.chat.speech import Speech
from isotherm.api.chat.wish import ChatWish, Tool
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.events import EventLog
from support.scripted_engine import ByteTokenizer

WEATHER = Tool(
    "get_weather",
    "The weather of a place.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"}},
        "required": ["city"],
    },
)
CLOCK = Tool("clock", "What time it is.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)
CITY = 'Zürich "1" \\ {}</x>\n☕'
ARGUMENTS: dict[str, Any] = {"city": CITY, "days": 3, "opts": {"a": [1, "}"]}}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)


@dataclass(frozen=True)
class Family:
    """template: with the clues of the format; answer: calls get_weather with ARGUMENTS, then clock without any."""

    format: str
    template: str
    answer: str
    prefix: str = ""
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = field(
        default=(("get_weather", ARGUMENTS), ("clock", {})),
    )


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CODER = f"""<tool_call>
<function=get_weather>
<parameter=city>
{CITY}
</parameter>
<parameter=days>
3
</parameter>
<parameter=opts>
{{"a": [1, "}}"]}}
</parameter>
</function>
</tool_call>
<tool_call>
<function=clock>
</function>
</tool_call>"""
MINIMAX = f"""<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">{CITY}</parameter>
<parameter name="days">3</parameter>
<parameter name="opts">{{"a": [1, "}}"]}}</parameter>
</invoke>
<invoke name="clock">
</invoke>
</minimax:tool_call>"""
WEATHER_CALL = f'{{"name": "get_weather", "arguments": {JSON}}}'
CLOCK_CALL = '{"name": "clock", "arguments": {}}'
_LLAMA = '<|start_header_id|> tools "parameters"'
_HARMONY = "tools <|channel|> <|message|>"
FAMILIES = (
    Family(
        "hermes",
        "tools <tool_call>",
        "Let me see.\n" + _hermes("get_weather", JSON) + "\n" + _hermes("clock", "{}"),
        text="Let me see.",
    ),
    Family(
        "hermes",
        "tools <tool_call> <think> </think>",
        "<think>\nHm < 3\n</think>\n\nSo:\n" + _hermes("get_weather", JSON) + _hermes("clock", "{}") + "\n",
        text="So:",
        reasoning="Hm < 3",
    ),
    Family(
        "qwen3_coder",
        "tools <tool_call> <function= <parameter=",
        "I look.\n" + CODER,
        text="I look.",
    ),
    Family(
        "mistral",
        "tools [TOOL_CALLS]",
        f'[TOOL_CALLS] [{WEATHER_CALL}, {{"arguments": {{}}, "name": "clock", "id": "abcdefghi"}}]',
    ),
    Family(
        "mistral",
        "tools [TOOL_CALLS] [THINK] [/THINK]",
        f"[THINK]Hm[/THINK]Ok[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]clock[CALL_ID]abc123def[ARGS]{{}}",
        text="Ok",
        reasoning="Hm",
    ),
    Family(
        "llama3_json",
        "tools " + _LLAMA,
        f'{{"name": "get_weather", "parameters": {JSON}}}; {{"type": "function", "name": "clock", "parameters": {{}}}}',
    ),
    Family(
        "llama3_json",
        "tools <|python_tag|>" + _LLAMA,
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {JSON}}};{{"name": "clock"}}',
    ),
    Family(
        "pythonic",
        "tools [func_name1(params_name1=...)]",
        f"[get_weather(city={CITY!r}, days=3, opts={{'a': [1, '}}']}}), clock()]",
    ),
    Family(
        "deepseek",
        "tools <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        + JSON
        + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n"
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        text="Yes.",
    ),
    Family(
        "deepseek",
        "tools <｜tool▁calls▁begin｜><｜tool▁call▁begin｜> </think>",
        f"So.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        prefix="<think>",
        reasoning="So.",
    ),
    Family(
        "deepseek_v3.2",
        "tools <｜DSML｜invoke",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{CITY}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="opts" string="false">{"a": [1, "}"]}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    ),
    Family(
        "glm",
        "tools <tool_call> <arg_key> <think> </think>",
        f"\n<think>Hm</think>\nOk\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        '<arg_key>opts</arg_key>\n<arg_value>{"a": [1, "}"]}</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>',
        text="Ok",
        reasoning="Hm",
    ),
    Family(
        "kimi_k2",
        "tools <|tool_calls_section_begin|><|tool_call_begin|>",
        "Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        + JSON
        + "<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        text="Ok",
    ),
    Family(
        "harmony",
        _HARMONY,
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>"
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}",
        prefix="<|start|>assistant",
        text="I look.",
        reasoning="Hm",
    ),
    Family(
        "granite",
        "tools <|tool_call|>",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "clock", "arguments": {{}}}}]',
    ),
    Family(
        "minimax",
        "tools <minimax:tool_call>",
        "Now.\n" + MINIMAX,
        text="Now.",
    ),
    Family(
        "minimax_m1",
        "tools <tool_calls>",
        f"<tool_calls>\n{WEATHER_CALL}\n{CLOCK_CALL}\n</tool_calls>",
    ),
    Family(
        "json",
        "tools",
        f'{{"name": "get_weather", "arguments": {json.dumps(JSON, ensure_ascii=False)}}}\n'
        '{"name": "clock", "arguments": null}',
    ),
)


def speech(template: str, events: EventLog | None = None) -> Speech:
    """Of a model with this template."""
    return Speech(ByteTokenizer(), ChatTemplate(template), events or EventLog())  # type: ignore[arg-type]


def wish(**fields: Any) -> ChatWish:
    """One with tools."""
    return ChatWish(**{"messages": ({"role": "user", "content": "x"},), "tools": TOOLS, **fields})


def read(spoken: Speech, pieces: Sequence[str], prefix: str = "", asked: ChatWish | None = None) -> list[ChatEvent]:
    """All that a reader makes of a text in these pieces, joined."""
    reader = spoken.reading(asked or wish(), prefix)._reader
    events = [event for piece in pieces for event in reader.push(piece)]
    return list(join_events([*events, *reader.finish()]))


def text_of(events: Sequence[ChatEvent]) -> str:
    """The answer's text."""
    return "".join(event.text for event in events if isinstance(event, Text))


def reasoning_of(events: Sequence[ChatEvent]) -> str:
    """The reasoning."""
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def raw_calls(events: Sequence[ChatEvent]) -> list[tuple[str, str]]:
    """Names, and arguments as text."""
    result: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegan):
            assert event.index == len(result)
            result.append((event.name, ""))
        elif isinstance(event, CallArguments):
            assert event.index == len(result) - 1
            result[-1] = (result[-1][0], result[-1][1] + event.json_text)
    return result


def calls_of(events: Sequence[ChatEvent]) -> list[tuple[str, Any]]:
    """Names, and arguments as values."""
    return [(name, json.loads(arguments)) for name, arguments in raw_calls(events)]
