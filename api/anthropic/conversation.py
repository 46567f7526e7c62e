"""Anthropic's messages as those that chat templates take."""

import json
from collections.abc import Iterator
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..chat.bounds import MAX_BLOCKS, MAX_MESSAGES, MAX_NAME, check_count, objects, text_of

# Some coding agents put such a line first, with a number that changes from request to request: no prefix of the prompt
# would be found again.
_CHANGING_LINE = "x-anthropic-billing-header:"


class Conversation:
    """Collects the messages. Names of called tools are kept, since some templates repeat them at the result."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._tool_names: dict[str, str] = {}
        self._blocks = 0

    def system(self, system: str | list[dict[str, Any]] | None) -> None:
        """Add the system prompt, unless it is empty."""
        texts = [] if system is None else self._texts(system, "system")
        text = "\n".join(text for text in texts if not text.startswith(_CHANGING_LINE))
        if text:
            self.messages.append({"role": "system", "content": text})

    def add(self, message: dict[str, Any], where: str) -> None:
        """Add what one of the client's messages becomes: results of tools are messages of their own."""
        role = message.get("role")
        content = message.get("content")
        if role == "assistant":
            self.messages.append(self._assistant(content, where))
        elif role == "user":
            self.messages += self._user(content, where)
        elif role == "system":
            self.messages.append({"role": "system", "content": "\n".join(self._texts(content, f"{where}.content"))})
        else:
            raise InvalidRequestError(f"{where}.role must be 'user' or 'assistant'", "messages")

    def _user(self, content: Any, where: str) -> Iterator[dict[str, Any]]:
        texts: list[str] = []
        for block, name in self._content(content, where):
            if block.get("type") != "tool_result":
                texts.append(_text(block, name))
                continue
            if texts:
                yield {"role": "user", "content": "\n".join(texts)}
                texts = []
            yield self._tool_result(block, name)
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}

    def _tool_result(self, block: dict[str, Any], where: str) -> dict[str, Any]:
        call_id = text_of(block, "tool_use_id", where, MAX_NAME)
        content = block.get("content")
        text = "" if content is None else "\n".join(self._texts(content, f"{where}.content"))
        if block.get("is_error") and not text.lower().startswith("error"):  # templates have no other way to say it
            text = f"Error: {text}"
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        name = self._tool_names.get(call_id)
        return message if name is None else {**message, "name": name}

    def _assistant(self, content: Any, where: str) -> dict[str, Any]:
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[dict[str, Any]] = []
        for block, name in self._content(content, where):
            kind = block.get("type")
            if kind == "thinking":
                reasoning.append(text_of(block, "thinking", name))
            elif kind == "tool_use":
                calls.append(self._tool_use(block, name))
            elif kind != "redacted_thinking":  # nobody but its maker can read that
                texts.append(_text(block, name))
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if reasoning:
            message["reasoning_content"] = "".join(reasoning)
        if calls:
            message["tool_calls"] = calls
        return message

    def _tool_use(self, block: dict[str, Any], where: str) -> dict[str, Any]:
        call_id, name = text_of(block, "id", where, MAX_NAME), text_of(block, "name", where, MAX_NAME)
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise InvalidRequestError(f"{where}.input must be an object", "messages")
        self._tool_names[call_id] = name
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": call_id, "type": "function", "function": function}

    def _content(self, content: Any, where: str) -> list[tuple[dict[str, Any], str]]:
        """The blocks of a message, with their names."""
        if isinstance(content, str):
            return [({"type": "text", "text": content}, f"{where}.content")]
        blocks = objects(content, MAX_BLOCKS, f"{where}.content")
        self._blocks += len(blocks)
        if self._blocks > MAX_BLOCKS:
            raise InvalidRequestError(f"the messages have more than {MAX_BLOCKS} blocks", "messages")
        return [(block, f"{where}.content[{i}]") for i, block in enumerate(blocks)]

    def _texts(self, content: Any, where: str) -> list[str]:
        if isinstance(content, str):
            return [content]
        return [_text(block, f"{where}[{i}]") for i, block in enumerate(objects(content, MAX_BLOCKS, where))]


def _text(block: dict[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind != "text":
        shown = repr(kind)[:MAX_NAME]
        raise InvalidRequestError(f"{where} is a block of type {shown}, which this server does not take there", where)
    return text_of(block, "text", where)


def read_conversation(system: str | list[dict[str, Any]] | None, messages: list[dict[str, Any]]) -> Conversation:
    """All messages of a request. Raises InvalidRequestError that names the block at fault."""
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", "messages")
    check_count(messages, MAX_MESSAGES, "messages")
    conversation = Conversation()
    conversation.system(system)
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    return conversation
