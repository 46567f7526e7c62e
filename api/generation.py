"""Generation: the completions of one HTTP request, run side by side in the engine."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from ..daemon.client import EngineClient
from ..daemon.errors import EngineError
from ..daemon.mailbox import Mailbox
from ..daemon.messages import Failed, Finished, FromEngine, PromptLogprobs, Submit, Token, TokenLogprobs, Usage
from ..daemon.text import TextDelta, TextStream
from ..daemon.tokenizer import Detokenizer, Tokenizer
from .arrivals import Arrivals
from .chat.events import ChatEvent

StopReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one choice: text with the tokens that belong to it, or with `finish_reason` its end.

    starts: where each token's own text begins, in characters of the whole answer. events: what a reading made of the
    text. prompt: the log-probabilities of the prompt's tokens, which come once and first. stop_token: that ended the
    choice and is no part of it; stop_reason: the stop string or the client's stop token that did.
    """

    index: int
    text: str
    tokens: tuple[Token, ...]
    starts: tuple[int, ...]
    finish_reason: StopReason | None = None
    events: tuple[ChatEvent, ...] = ()
    prompt: tuple[TokenLogprobs | None, ...] | None = None
    stop_token: Token | None = None
    stop_reason: str | int | None = None


class Reading(Protocol):
    """Understands one choice's text. It is given the text of one token after the other, so that what it makes of them
    does not depend on how the engine's messages were gathered."""

    def detokenizer(self) -> Detokenizer:
        """A fresh one that shows what the reading needs to see."""
        ...

    @property
    def enough(self) -> bool:
        """Nothing that the model may still write is wanted."""
        ...

    def push(self, delta: TextDelta) -> Sequence[ChatEvent]:
        """What can be said after this piece of text."""
        ...

    def end(self, reason: StopReason, stop_string: str | None) -> Sequence[ChatEvent]:
        """What is left to say, and the end."""
        ...


class Choice:
    """One completion on its way: its mailbox, its text, and how it ended.

    With a reading there is a piece only where there are events; tokens wait for the next one.
    """

    def __init__(
        self, index: int, submit: Submit, mailbox: Mailbox, text: TextStream, reading: Reading | None = None
    ) -> None:
        self.index = index
        self.request_id = submit.request_id
        self.mailbox = mailbox
        self.usage: Usage | None = None
        self._submit = submit
        self._prompt: tuple[TokenLogprobs | None, ...] | None = None
        self._stop_token: Token | None = None
        self._stopped_by: int | None = None
        self._text = text
        self._reading = reading
        self._untold: list[TextDelta] = []
        self._events: list[ChatEvent] = []
        self._received = 0
        self._told = False

    @property
    def stopped(self) -> bool:
        """What the engine still sends is not wanted: a stop string was found, or the reading has enough."""
        return self._text.stopped is not None or (self._reading is not None and self._reading.enough)

    @property
    def usage_so_far(self) -> Usage:
        """Of one that has not ended too, as far as the engine has told: nothing before its first word."""
        if self.usage is not None:
            return self.usage
        prompt = len(self._submit.prompt) if self._told else 0
        return Usage(prompt_tokens=prompt, cached_tokens=0, completion_tokens=self._received)

    @property
    def finished(self) -> bool:
        """The engine's terminal message has come."""
        return self.usage is not None

    def take(self, batch: Sequence[FromEngine]) -> Piece | None:
        """What a batch of messages amounts to, None if nothing can be told yet. Raises what the engine reports."""
        reason: StopReason | None = None
        self._told = True
        for message in batch:
            if isinstance(message, Token):
                self._push(message)
            elif isinstance(message, PromptLogprobs):
                self._prompt = message.logprobs
            elif isinstance(message, Finished | Failed):
                reason = self._end(message)
        deltas, events, prompt = self._untold, self._events, self._prompt
        told = bool(events) if self._reading is not None else any(delta.text or delta.tokens for delta in deltas)
        if not told and reason is None and prompt is None:
            return None
        self._untold, self._events, self._prompt = [], [], None
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        starts = tuple(start for delta in deltas for start in delta.starts)
        return Piece(
            self.index,
            "".join(delta.text for delta in deltas),
            tokens,
            starts,
            reason,
            tuple(events),
            prompt,
            self._stop_token,
            self._stop_reason if reason else None,
        )

    @property
    def _stop_reason(self) -> str | int | None:
        """What ended the choice, if it was the client's wish."""
        return self._stopped_by if self._text.stopped is None else self._text.stopped

    def _push(self, token: Token) -> None:
        if self.stopped:
            return
        self._received += 1
        delta = self._text.push(token)
        if delta is not None:
            self._read(delta)

    def _read(self, delta: TextDelta) -> None:
        self._untold.append(delta)
        if self._reading is not None:
            self._events += self._reading.push(delta)

    def _end(self, message: Finished | Failed) -> StopReason:
        reason = self._reason(message)
        if self._reading is not None:
            self._events += self._reading.end(reason, self._text.stopped)
        return reason

    def _reason(self, message: Finished | Failed) -> StopReason:
        if self.stopped:
            # Tokens that were computed before the abort arrived depend on timing; those up to the match do not.
            cached = message.usage.cached_tokens if isinstance(message, Finished) else 0
            self.usage = Usage(
                prompt_tokens=len(self._submit.prompt), cached_tokens=cached, completion_tokens=self._received
            )
            return "stop"
        if isinstance(message, Failed):
            raise message.error
        if message.reason == "abort":
            raise EngineError("the request was aborted by the server")
        self.usage = message.usage
        self._take_stop_token(message)
        self._read(self._text.finish())
        # The held back end of the text may complete a stop string only now.
        return "stop" if self.stopped else message.reason

    def _take_stop_token(self, end: Finished) -> None:
        """It is shown if it is one of the client's, who wants to see those."""
        if end.stop_token is None:
            return
        token, rules = Token(self.request_id, end.stop_token, end.stop_logprobs), self._submit.sampling
        self._stopped_by = end.stop_token if end.stop_token in rules.stop_token_ids else None
        if self._stopped_by is None or not rules.include_stop_str_in_output:
            self._stop_token = token
        elif (delta := self._text.push(token)) is not None:
            self._read(delta)


class Generation:
    """Submits on entering, all or none; aborts on leaving whatever has not ended by then."""

    def __init__(
        self, client: EngineClient, tokenizer: Tokenizer, submits: Sequence[Submit], readings: Sequence[Reading] = ()
    ) -> None:
        """readings: one for each submit, or none at all."""
        self._client = client
        self._tokenizer = tokenizer
        self._submits = submits
        self._readings: Sequence[Reading | None] = readings or [None] * len(submits)
        self.choices: list[Choice] = []
        self.first_at: float | None = None  # monotonic seconds: the engine's first word
        self.failed = False

    async def __aenter__(self) -> Self:
        try:
            for index, (submit, reading) in enumerate(zip(self._submits, self._readings, strict=True)):
                text = self._text_stream(submit, reading)
                self.choices.append(Choice(index, submit, self._client.submit(submit), text, reading))
        except BaseException:
            self._abort_rest()
            raise
        return self

    def _text_stream(self, submit: Submit, reading: Reading | None) -> TextStream:
        rules = submit.sampling
        if not rules.skip_special_tokens:
            detokenizer = self._tokenizer.detokenizer(self._tokenizer.special_ids)
        else:
            detokenizer = (self._tokenizer if reading is None else reading).detokenizer()
        return TextStream(detokenizer, rules.stop, show_stop=rules.include_stop_str_in_output)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort_rest()

    def _abort_rest(self) -> None:
        for choice in self.choices:
            if not choice.finished:
                self._client.abort(choice.request_id)

    async def pieces(self, tick: float) -> AsyncGenerator[Piece | None, None]:
        """The pieces of all choices as they come; None each time that `tick` seconds pass without one."""
        async with Arrivals([choice.mailbox for choice in self.choices], tick) as arrivals:
            while not all(choice.finished for choice in self.choices):
                for index, batch in await arrivals.next():
                    piece = self._take(self.choices[index], batch)
                    if piece is not None:
                        yield piece
                        arrivals.restart_clock()
                if arrivals.silent:
                    yield None
                    arrivals.restart_clock()

    def _take(self, choice: Choice, batch: Sequence[FromEngine]) -> Piece | None:
        already = choice.stopped
        if self.first_at is None:
            self.first_at = time.monotonic()
        try:
            piece = choice.take(batch)
        except Exception:
            self.failed = True
            raise
        if choice.stopped and not already and not choice.finished:
            self._client.abort(choice.request_id, "stop")
        return piece

    def usage(self, choices_per_prompt: int) -> Usage:
        """The sum over all choices, so far. A prompt with several choices counts once."""
        each = [choice.usage_so_far for choice in self.choices]
        firsts = each[::choices_per_prompt]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
            completion_tokens=sum(usage.completion_tokens for usage in each),
        )
