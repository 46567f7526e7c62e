"""Formats: how families of models write calls, a row each, and which one a chat template asks for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..chat.events import Text
from .calls import Calls, NewId, nine_letters, numbered_id, plain_id
from .harmony import MARKS as HARMONY_MARKS
from .header_calls import HeaderCalls
from .json_calls import JsonCalls
from .python_calls import python_calls
from .source import Scan, Source
from .tagged_calls import TaggedCalls

Engine = Callable[[Source, Calls], Scan[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """clues: a template that holds all of them is of this format. marks: what each mark begins. start: the characters
    one of which, as the first of an answer, begins what `at_start` reads. silent: marks that say nothing by themselves.
    inner: control tokens inside of calls.
    """

    name: str
    clues: tuple[str, ...] = ()
    marks: Mapping[str, Engine] = field(default_factory=dict)
    start: str = ""
    at_start: Engine | None = None
    silent: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    new_id: NewId = plain_id

    @property
    def syntax(self) -> tuple[str, ...]:
        """All texts that may be names of control tokens."""
        return (*self.marks, *self.silent, *self.inner)


_KIMI_HEADER = r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*"
_DEEPSEEK_HEADER = r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[^\s<]+)\s*(?:<｜tool▁sep｜>|```json)\s*"
_MISTRAL_HEADER = r"\s*(?P<name>[^\s\[{]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\])?\s*"
_DSML_KEY = re.compile(r'\s*"(?P<key>[^"]+)"(?:\s+string="(?P<text>true|false)")?\s*')


def _either(list_calls: Engine, header_calls: Engine) -> Engine:
    """Calls as JSON objects, or one with a header."""

    def read(source: Source, calls: Calls) -> Scan[bool]:
        yield from source.space()
        first = yield from source.peek()
        return (yield from (list_calls if first in ("[", "{") else header_calls)(source, calls))

    return read


_CODER_TAGS = {
    "name_end": (">",),
    "key": ("<parameter=", ">"),
    "value": ("", "</parameter>"),
    "end": "</function>",
    "closing": "</tool_call>",
    "padded": True,
}
_DSML = "｜DSML｜"
_LLAMA_JSON = JsonCalls(between=(";",))

_KIMI = Format(
    name="kimi_k2",
    clues=("<|tool_call_begin|>",),
    marks={
        "<|tool_call_begin|>": HeaderCalls(
            re.compile(_KIMI_HEADER), ("<|tool_call_end|>",), ("<|tool_call_begin|>",), own_ids=True
        )
    },
    silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    inner=("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    new_id=numbered_id,
)
HARMONY = Format(name="harmony", clues=("<|channel|>", "<|message|>"), inner=HARMONY_MARKS)
FORMATS = (
    HARMONY,
    _KIMI,
    replace(_KIMI, clues=("<|im_middle|>",)),  # the first templates have no calls in them
    Format(
        name="deepseek_v3.2",
        clues=(_DSML,),
        marks={
            f"<{_DSML}invoke name=": TaggedCalls(
                name_end=(">",),
                key=(f"<{_DSML}parameter name=", ">"),
                value=("", f"</{_DSML}parameter>"),
                end=f"</{_DSML}invoke>",
                key_form=_DSML_KEY,
            )
        },
        silent=(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
        inner=(_DSML,),
    ),
    Format(
        name="deepseek",
        clues=("<｜tool▁call▁begin｜>",),
        marks={
            "<｜tool▁call▁begin｜>": HeaderCalls(
                re.compile(_DEEPSEEK_HEADER), ("```", "<｜tool▁call▁end｜>"), ("<｜tool▁call▁begin｜>",)
            )
        },
        silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        inner=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    Format(
        name="minimax",
        clues=("<minimax:tool_call>",),
        marks={
            "<invoke name=": TaggedCalls(
                name_end=(">",), key=("<parameter name=", ">"), value=("", "</parameter>"), end="</invoke>"
            )
        },
        silent=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    Format(
        name="glm",
        clues=("<arg_key>",),
        marks={
            "<tool_call>": TaggedCalls(
                name_end=("\n", "<arg_key>", "</tool_call>"),
                key=("<arg_key>", "</arg_key>"),
                value=("<arg_value>", "</arg_value>"),
                end="</tool_call>",
            )
        },
        inner=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Format(
        name="qwen3_coder",
        clues=("<function=", "<parameter="),
        marks={
            "<tool_call>": TaggedCalls(opening="<function=", **_CODER_TAGS),  # type: ignore[arg-type]
            "<function=": TaggedCalls(**_CODER_TAGS),  # type: ignore[arg-type]
        },
        silent=("<seed:tool_call>", "</seed:tool_call>"),
        inner=("</tool_call>",),
    ),
    Format(
        name="mistral",
        clues=("[TOOL_CALLS]",),
        marks={
            "[TOOL_CALLS]": _either(JsonCalls(), HeaderCalls(re.compile(_MISTRAL_HEADER), starts=("[TOOL_CALLS]",)))
        },
        inner=("[ARGS]", "[CALL_ID]"),
        new_id=nine_letters,
    ),
    Format(name="granite", clues=("<|tool_call|>",), marks={"<|tool_call|>": JsonCalls()}),
    Format(
        name="hermes",
        clues=("<tool_call>",),
        marks={"<tool_call>": JsonCalls("</tool_call>", between=(",",))},
        inner=("</tool_call>",),
    ),
    Format(
        name="minimax_m1",
        clues=("<tool_calls>",),
        marks={"<tool_calls>": JsonCalls("</tool_calls>", between=(",",))},
        inner=("</tool_calls>",),
    ),
    Format(
        name="pythonic",
        clues=("[func_name1(",),
        start="[",
        at_start=python_calls,
        silent=("<|python_start|>", "<|python_end|>"),
    ),
    Format(
        name="llama3_json",
        clues=("<|start_header_id|>", '"parameters"'),
        marks={"<|python_tag|>": _LLAMA_JSON},
        start="{",
        at_start=_LLAMA_JSON,
    ),
)
ANY = Format(
    name="json",
    marks={"<tool_call>": JsonCalls("</tool_call>", between=(",",))},
    start="{",
    at_start=JsonCalls(between=(",", ";")),
    inner=("</tool_call>",),
)
"""Of a model whose template does not tell."""


def detect(template: str) -> Format:
    """The format that a chat template asks for."""
    return next((each for each in FORMATS if all(clue in template for clue in each.clues)), ANY)


def read_calls(source: Source, calls: Calls, form: Format) -> Scan[None]:
    """The script of a format's reader: text and calls in any order."""
    if form.at_start is not None:
        source.record()
        yield from source.space()
        if form.silent and (yield from source.literal(form.silent[0])):
            source.record()
            yield from source.space()
        first = yield from source.peek()
        if first and first in form.start:
            yield from _attempt(source, calls, form.at_start)
        elif source.recorded:
            yield Text(source.recorded)
    while True:
        mark = yield from source.upto((*form.marks, *form.silent), Text, trim=calls.count > 0)
        if mark is None:
            return
        if mark in form.marks:
            source.record(source.gap + mark)
            yield from _attempt(source, calls, form.marks[mark])


def _attempt(source: Source, calls: Calls, engine: Engine) -> Scan[None]:
    """What is no call is text, as it was written."""
    if (yield from engine(source, calls)):
        yield from source.space()
        return
    if source.recorded:
        yield Text(source.recorded)
    calls.warn("not_a_call", "the model wrote what looks like a call and is none; it is passed on as text")
