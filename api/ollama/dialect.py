"""OllamaDialect: what happens to a choice, as lines of /api/chat and /api/generate."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ...daemon.messages import Token
from ..chat.blocks import Block, Blocks, blocks_of
from ..chat.dialect import ChatAnswer, ChatUsage
from ..chat.events import ChatPiece, Ended

Said = dict[str, Any]
"""Some of the keys content, thinking and tool_calls."""

Wrap = Callable[[Said], dict[str, Any]]


def chat_message(said: Said) -> dict[str, Any]:
    """What is said, as /api/chat has it."""
    return {"message": {"role": "assistant", "content": "", **said}}


def generated(said: Said) -> dict[str, Any]:
    """What is said, as /api/generate has it, where no tools can be called."""
    return {"response": said.get("content", ""), **({"thinking": said["thinking"]} if "thinking" in said else {})}


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaDialect:
    """One object writes one answer. durations: how long its parts took until now. logprobs: makes Ollama's objects of
    tokens; None if they were not asked for."""

    def __init__(
        self,
        model: str,
        wrap: Wrap,
        durations: Callable[[], dict[str, int]],
        logprobs: Callable[[Sequence[Token]], list[Any]] | None,
    ) -> None:
        self._model = model
        self._wrap = wrap
        self._durations = durations
        self._logprobs = logprobs
        self._blocks = Blocks()

    def opening(self) -> list[dict[str, Any]]:
        """Nothing goes before the first text."""
        return []

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]:
        """A line for each text, and one for each whole call."""
        lines = []
        for change in self._blocks.take(piece.events):
            block = change.block
            if block.kind == "call" and change.what == "closes":
                lines.append(self.line({"tool_calls": [_call(block, self._calls_before(block))]}))
            elif block.kind != "call" and change.what == "grows":
                lines.append(self.line({"content" if block.kind == "text" else "thinking": change.text}))
        if piece.tokens and self._logprobs is not None:
            lines = lines or [self.line({})]
            lines[0]["logprobs"] = self._logprobs(piece.tokens)
        return lines

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]:
        """The line with done, the reason and what it took."""
        return [{**self.line({}), **self._end(self._blocks.ended, usage)}]

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]:
        """All in one object."""
        blocks = blocks_of(answers[0].events)
        said: Said = {"content": "".join(block.text for block in blocks.row if block.kind == "text")}
        thinking = "".join(block.text for block in blocks.row if block.kind == "reasoning")
        if thinking:
            said["thinking"] = thinking
        calls = [block for block in blocks.row if block.kind == "call"]
        if calls:
            said["tool_calls"] = [_call(block, index) for index, block in enumerate(calls)]
        extra = {} if self._logprobs is None else {"logprobs": self._logprobs(answers[0].tokens)}
        return {**self.line(said), **extra, **self._end(blocks.ended, usage)}

    def line(self, said: Said) -> dict[str, Any]:
        """A line that does not end the answer."""
        return {"model": self._model, "created_at": now(), **self._wrap(said), "done": False}

    def _calls_before(self, block: Block) -> int:
        return sum(each.kind == "call" for each in self._blocks.row[: block.index])

    def _end(self, ended: Ended | None, usage: ChatUsage) -> dict[str, Any]:
        assert ended is not None  # the last event of a choice
        counts = {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
        return {"done": True, "done_reason": ended.reason, **self._durations(), **counts}


def _call(block: Block, index: int) -> dict[str, Any]:
    """Arguments are an object here."""
    return {"id": block.call_id, "function": {"index": index, "name": block.name, "arguments": block.arguments}}
