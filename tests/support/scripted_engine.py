"""ScriptedEngine: stands in for daemon.client.EngineClient and replays what a test tells it to."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import (
    Command,
    Failed,
    Finished,
    FinishReason,
    FromEngine,
    Submit,
    Token,
    TokenLogprobs,
    Usage,
)
from isotherm.daemon.status import EngineStats
from isotherm.daemon.tokenizer import Detokenizer

Step = int | float | Exception
"""A token id to send, seconds to wait, or an error to fail with."""

HANG = math.inf
BOS, EOS = 256, 257
VOCAB_SIZE = 258


class ByteTokenizer:
    """A token per byte, and two control tokens."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCAB_SIZE

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < BOS).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<bos>", EOS: b"<eos>"}.get(token_id, bytes([token_id % 256]))

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self, shown: Iterable[int] = ()) -> Detokenizer:
        texts = [bytes([i]) for i in range(256)] + [b"", b""]
        return Detokenizer(texts, {token_id: self.token_bytes(token_id) for token_id in shown})


def says(text: str, delay: float | None = None) -> list[Step]:
    """The steps of an answer, with a pause of `delay` seconds before each token if one is given."""
    return [step for token in text.encode() for step in ([token] if delay is None else [delay, token])]


@dataclass
class ScriptedEngine:
    """Answers each Submit with the steps that `script` returns for it.

    A script that runs out ends as by the EOS token; max_tokens ends it earlier. An abort ends it wherever it is.
    refuse: raised by submit if set. capacity: requests that may be open before `refuse` is raised.
    """

    script: Callable[[Submit], Sequence[Step]]
    refuse: Exception | None = None
    capacity: int = 0
    max_context: int = 1000
    vocab_size: int = VOCAB_SIZE
    cached_tokens: int = 0
    state: EngineStats = field(default_factory=lambda: EngineStats(state="ready"))
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[tuple[str, FinishReason]] = field(default_factory=list)
    open: dict[str, asyncio.Task[FinishReason]] = field(default_factory=dict)

    def submit(self, submit: Submit) -> Mailbox:
        self.check_open(submit.tenant)
        self.submitted.append(submit)
        replay = _Replay(submit, Mailbox(submit.request_id, asyncio.get_running_loop()), self.cached_tokens)
        task = asyncio.create_task(replay.run(self.script(submit)))
        task.add_done_callback(lambda task: (self.open.pop(submit.request_id), replay.end(task)))
        self.open[submit.request_id] = task
        return replay.mailbox

    def check_open(self, tenant: str = "") -> None:
        if self.refuse is not None and len(self.open) >= self.capacity:
            raise self.refuse

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        self.aborted.append((request_id, reason))
        if request_id in self.open:
            self.open[request_id].cancel()

    def ask(self, command: Command) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_exception(InvalidRequestError("it only plays an engine"))
        return answer

    def stats(self) -> EngineStats:
        return self.state


@dataclass
class _Replay:
    submit: Submit
    mailbox: Mailbox
    cached_tokens: int
    sent: int = 0

    def _put(self, message: FromEngine) -> None:
        if self.mailbox.put(message):
            wake([self.mailbox])

    async def run(self, steps: Sequence[Step]) -> FinishReason:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(min(step, 3600.0))
                continue
            self._put(Token(self.submit.request_id, step, _logprobs(self.submit, step, self.sent)))
            self.sent += 1
            if self.sent == self.submit.sampling.max_tokens:
                return "length"
        return "stop"

    def end(self, task: asyncio.Task[FinishReason]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._put(Failed(self.submit.request_id, error))
            return
        reason = "abort" if task.cancelled() else task.result()
        stopped = reason == "stop"
        usage = Usage(
            prompt_tokens=len(self.submit.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.sent + stopped,
        )
        stop_token = EOS if stopped else None
        self._put(Finished(request_id=self.submit.request_id, reason=reason, usage=usage, stop_token=stop_token))


def _logprobs(submit: Submit, token: int, position: int) -> TokenLogprobs | None:
    """Minus the position for the token itself, and its successors in the vocabulary as the less likely ones."""
    if submit.sampling.logprobs is None:
        return None
    top = [(token, -float(position))] + [(token + i, -math.inf) for i in range(1, submit.sampling.logprobs)]
    return TokenLogprobs(-float(position), tuple(top[: submit.sampling.logprobs]))
