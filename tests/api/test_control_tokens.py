"""Formats whose marks are control tokens, which do not show in plain text."""

from collections.abc import Iterable
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.structures import Structures
from isotherm.daemon.tokenizer import Detokenizer
from support.api_service import chat, make_service
from support.scripted_engine import BOS, EOS, ByteTokenizer, ScriptedEngine, Step

MARKS = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[INST]")
CALLS, ARGS, THINK, UNTHINK, INST = range(258, 263)
TEMPLATE = "tools [TOOL_CALLS][ARGS][THINK][/THINK]{{ 'x' }}"
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]


class MarkTokenizer(ByteTokenizer):
    """Bytes, and the marks as control tokens."""

    vocab_size = 258 + len(MARKS)
    special_ids = frozenset({BOS, EOS, *range(258, 258 + len(MARKS))})

    def token_bytes(self, token_id: int) -> bytes:
        return MARKS[token_id - 258].encode() if token_id >= 258 else super().token_bytes(token_id)

    def detokenizer(self, shown: Iterable[int] = ()) -> Detokenizer:
        texts = [bytes([i]) for i in range(256)] + [b""] * (2 + len(MARKS))
        return Detokenizer(texts, {token_id: self.token_bytes(token_id) for token_id in shown})


def service_of(steps: list[Step]) -> Service:
    tokenizer = MarkTokenizer()
    engine = ScriptedEngine(lambda submit: steps, vocab_size=tokenizer.vocab_size)
    structures = Structures(tokenizer)
    return make_service(engine, tokenizer=tokenizer, structures=structures, chat_template=ChatTemplate(TEMPLATE))


def message_of(steps: list[Step], **fields: Any) -> dict[str, Any]:
    response = chat(service_of(steps), **fields)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def test_marks_are_read_and_not_told() -> None:
    steps: list[Step] = [THINK, *b"Hm", UNTHINK, *b"Ok", CALLS, *b"clock", ARGS, *b"{}"]
    message = message_of(steps, tools=TOOLS)
    assert (message["reasoning_content"], message["content"]) == ("Hm", "Ok")
    assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_marks_of_calls_stay_hidden_where_nothing_can_be_called(fields: dict[str, Any]) -> None:
    message = message_of([*b"Ok", CALLS, *b"clock", ARGS, *b"{}"], **fields)
    assert message["content"] == "Okclock{}"


def test_other_control_tokens_stay_hidden() -> None:
    assert message_of([INST, *b"Ok", INST], tools=TOOLS)["content"] == "Ok"


def test_a_failed_call_shows_its_marks() -> None:
    message = message_of([CALLS, *b"other", ARGS, *b"{}"], tools=TOOLS)
    assert message["content"] == "[TOOL_CALLS]other[ARGS]{}"


def test_enforced_calls_are_made_of_control_tokens() -> None:
    service = service_of([CALLS, *b"clock", ARGS, *b"{}"])
    assert chat(service, tools=TOOLS, tool_choice="required").status_code == 200
    structure = service.client.submitted[0].sampling.structure
    assert structure is not None
    assert f"<[{CALLS}]>" in structure.source
    assert f"<[{ARGS}]>" in structure.source
    assert f"<[{UNTHINK}]>" in structure.source
