"""ScriptedEngine: stands in for daemon.client.EngineClient and replays what a test tells it to."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import (
    Command,
    Embedding,
    Failed,
    Finished,
    FinishReason,
    FromEngine,
    PromptLogprobs,
    Submit,
    Token,
    TokenLogprobs,
    Usage,
)
from isotherm.daemon.status import EngineStats
from isotherm.daemon.tokenizer import Detokenizer

Step = int | float | Exception
"""A token id to send, seconds to wait, or an error to fail with. A pause lasts until what was sent before is taken, so
that a reader who is late does not find together what was to come apart."""

HANG = math.inf
BOS, EOS = 256, 257
VOCAB_SIZE = 258


class ByteTokenizer:
    """A token per byte, and two control tokens."""

    eos_ids = frozenset({EOS})
    special_ids = frozenset({BOS, EOS})
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

    script: Callable[[Submit], Iterable[Step]]
    refuse: Exception | None = None
    capacity: int = 0
    max_context: int = 1000
    vocab_size: int = VOCAB_SIZE
    cached_tokens: int = 0
    state: EngineStats = field(default_factory=lambda: EngineStats(state="ready"))
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[tuple[str, FinishReason]] = field(default_factory=list)
    open: dict[str, asyncio.Task[FinishReason]] = field(default_factory=dict)
    _replays: dict[str, "_Replay"] = field(default_factory=dict)

    def submit(self, submit: Submit) -> Mailbox:
        self.check_open(submit.tenant)
        self.submitted.append(submit)
        replay = _Replay(submit, Mailbox(submit.request_id, asyncio.get_running_loop()), self.cached_tokens)
        task = asyncio.create_task(replay.run(self.script(submit)))
        task.add_done_callback(lambda task: (self.open.pop(submit.request_id), replay.end(task)))
        self._replays[submit.request_id] = replay
        self.open[submit.request_id] = task
        return replay.mailbox

    def check_open(self, tenant: str = "") -> None:
        if self.refuse is not None and len(self.open) >= self.capacity:
            raise self.refuse

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        self.aborted.append((request_id, reason))
        if request_id in self.open:
            self._replays[request_id].abort_reason = reason
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
    abort_reason: FinishReason = "abort"

    def _put(self, message: FromEngine) -> None:
        if self.mailbox.put(message):
            wake([self.mailbox])

    async def run(self, steps: Iterable[Step]) -> FinishReason:
        self._tell_of_prompt()
        for step in [] if self.submit.sampling.max_tokens == 0 else steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(min(step, 3600.0))
                while self.mailbox._messages:
                    await asyncio.sleep(0)
                continue
            self._put(Token(self.submit.request_id, step, _logprobs(step, self.sent, self.submit.sampling.logprobs)))
            self.sent += 1
            if self.sent == self.submit.sampling.max_tokens:
                return "length"
        return "stop" if self.submit.sampling.max_tokens else "length"

    def _tell_of_prompt(self) -> None:
        """Log-probabilities that count down from its second token's, and embeddings that hold its first tokens."""
        submit, top = self.submit, self.submit.sampling.prompt_logprobs
        if top is not None:
            told = (_logprobs(token, place, top) for place, token in enumerate(submit.prompt))
            self._put(PromptLogprobs(submit.request_id, (None, *list(told)[1:])))
        if submit.pooling is not None:
            self._put(Embedding(submit.request_id, np.array([3, 4, *submit.prompt, 0, 0][:4], np.float32)))

    def end(self, task: asyncio.Task[FinishReason]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._put(Failed(self.submit.request_id, error))
            return
        reason = self.abort_reason if task.cancelled() else task.result()
        stopped = reason == "stop" and not task.cancelled()
        usage = Usage(
            prompt_tokens=len(self.submit.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.sent + stopped,
        )
        stop_token = EOS if stopped else None
        stop_logprobs = _logprobs(EOS, self.sent, self.submit.sampling.logprobs) if stopped else None
        finished = Finished(
            request_id=self.submit.request_id,
            reason=reason,
            usage=usage,
            stop_token=stop_token,
            stop_logprobs=stop_logprobs,
        )
        self._put(finished)


def _logprobs(token: int, position: int, count: int | None) -> TokenLogprobs | None:
    """Minus the position for the token itself, and its successors in the vocabulary as the less likely ones."""
    if count is None:
        return None
    top = [(token, -float(position))] + [(token + i, -math.inf) for i in range(1, count)]
    return TokenLogprobs(-float(position), tuple(top[:count]))
