"""The form of an answer: what a client asked for, or calls that it demanded, after whatever the model thinks first."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...daemon.errors import InvalidRequestError
from ...daemon.structure import Structure
from ...daemon.structures import json_for_lark
from ..service import Service
from ..tools.formats import HARMONY
from ..tools.grammar import calls_rule
from ..tools.harmony import CHANNEL, END, MESSAGE, START
from ..tools.lark import Lark, from_regex
from ..tools.shapes import shape_of
from .speech import Speech, callable_tools
from .wish import ChatWish

_SPACE = "/[ \\n]{1,4}/"


def form_of(service: Service, wish: ChatWish, prompt: str) -> Structure | None:
    """The structure of an answer to `prompt`, None if it is free. Raises InvalidRequestError that names the field."""
    choice = wish.tool_choice.mode
    calls = bool(wish.tools) and (choice in ("required", "named") or (choice == "auto" and wish.structure is not None))
    if not calls and wish.structure is None:
        return None
    answer = wish.structure if choice not in ("required", "named") else None
    if answer is not None and answer.kind == "lark" and calls:
        raise InvalidRequestError("an answer of a given grammar cannot call tools; leave tools out", "tools")
    thinks = service.speech.thinks(wish, prompt)
    plain = not calls and service.speech.format is not HARMONY
    if answer is not None and plain and (answer.kind == "lark" or thinks == "no"):
        return replace(answer, trigger=service.speech.closing if thinks == "inside" else None)
    structure = _compose(service.speech, wish, prompt, answer, calls=calls)
    service.structures.compile(structure, "tools" if calls else "response_format")
    return structure


def _compose(speech: Speech, wish: ChatWish, prompt: str, answer: Structure | None, *, calls: bool) -> Structure:
    lark = Lark(speech.control)
    choices = []
    if calls:
        single = not wish.parallel_tool_calls or wish.tool_choice.mode == "named"
        shape = shape_of(speech.format, speech.template)
        choices.append(calls_rule(lark, shape, _schemas(wish), single=single))
    if answer is not None:
        choices.append(_answer(lark, speech, prompt, answer))
    body = lark.either(choices)
    space = lark.rule(_SPACE)
    thinks = speech.thinks(wish, prompt)
    if thinks == "inside":
        return Structure("lark", lark.source(f"{space}? {body}"), trigger=speech.closing)
    if thinks == "maybe":
        return Structure("lark", lark.source(f"({_thought(lark, speech)} {space}?)? {body}"))
    return Structure("lark", lark.source(body))


def _thought(lark: Lark, speech: Speech) -> str:
    if speech.format is HARMONY:
        opening, closing = f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant"
    else:
        assert speech.tags is not None  # which is how it may think
        opening, closing = speech.tags.opening, speech.tags.closing
    return lark.rule(f"{lark.literal(opening)} {lark.upto(closing)}")


def _answer(lark: Lark, speech: Speech, prompt: str, answer: Structure) -> str:
    if answer.kind == "json_schema":
        rule = lark.json(_schema(json.loads(answer.source), "response_format"))
    elif answer.kind == "regex":
        rule = lark.rule(from_regex(answer.source))
    else:
        raise InvalidRequestError("an answer of a given grammar is not supported for this model", "structured_outputs")
    if speech.format is HARMONY and not speech.continues(prompt):
        return lark.rule(f"{lark.literal(f'{CHANNEL}final{MESSAGE}')} {rule}")
    return rule


def _schemas(wish: ChatWish) -> dict[str, Mapping[str, Any]]:
    """The parameters of the tools that may be called, as far as a grammar can keep them."""
    places = {tool.name: place for place, tool in enumerate(wish.tools)}
    return {
        name: _schema(parameters, f"tools[{places[name]}].function.parameters")
        for name, parameters in callable_tools(wish).items()
    }


def _schema(schema: Any, param: str) -> Mapping[str, Any]:
    checked: Mapping[str, Any] = json.loads(json_for_lark(json.dumps(schema), param))
    return checked
