"""EngineClient: how everything outside the engine thread asks for completions."""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .errors import InvalidRequestError, OverloadedError
from .inbox import Inbox
from .mailbox import Mailbox
from .messages import Ask, Command, FinishReason, Submit
from .request import SamplingParams, check_prompt_length
from .status import EngineStats

MAX_PRIORITY = 100
_SHORT_S = 30.0  # that memory is short, in all likelihood


class EngineClient:
    """Submits and aborts, from an event loop or from a plain thread. All methods are thread-safe and never block."""

    def __init__(self, inbox: Inbox, *, vocab_size: int, max_context: int, stats: Callable[[], EngineStats]) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.longest_prompt: int | None = None  # in tokens; longer ones are to come back later
        self._inbox = inbox
        self._stats = stats

    def submit(self, submit: Submit) -> Mailbox:
        """Hand a request to the engine and return the mailbox where its messages come.

        The mailbox belongs to the running event loop, or to plain threads if none runs here. What is wrong with the
        request or the queue is raised here, before anything is accepted: InvalidRequestError, ContextLengthError,
        OverloadedError (with `retry_after`), or EngineError when the engine has failed or is stopping. Later errors
        come as Failed.
        """
        self._check(submit)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        mailbox = Mailbox(submit.request_id, loop)
        self._inbox.submit(submit, mailbox)
        return mailbox

    def check_open(self, tenant: str = "") -> None:
        """Raise what submit would raise for engine or queue: a cheap check before a prompt is tokenised."""
        self._inbox.check_open(tenant)

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """End a request within a step, with Finished(reason) unless it has ended already.

        `reason` "stop": its text has met a stop string; it then counts as a normal end.
        """
        self._inbox.abort(request_id, reason)

    def ask(self, command: Command) -> "Future[Any]":
        """Have a command obeyed between steps; what comes of it. Raises EngineError when the engine takes no more."""
        ask = Ask(command)
        self._inbox.ask(ask)
        return ask.answer

    def stats(self) -> EngineStats:
        """The engine's state after its last step."""
        return self._stats()

    def _check(self, submit: Submit) -> None:
        check_prompt_length(len(submit.prompt), self.max_context)
        if self.longest_prompt is not None and len(submit.prompt) > self.longest_prompt:
            raise OverloadedError(
                f"memory is short: prompts of more than {self.longest_prompt} tokens have to wait, and this one has "
                f"{len(submit.prompt)}; try again later",
                _SHORT_S,
            )
        if not -MAX_PRIORITY <= submit.priority <= MAX_PRIORITY:
            raise InvalidRequestError(
                f"priority is {submit.priority}; it must lie between -{MAX_PRIORITY} and {MAX_PRIORITY}", "priority"
            )
        if min(submit.prompt) < 0 or max(submit.prompt) >= self.vocab_size:
            raise InvalidRequestError(
                f"the prompt holds a token id outside the vocabulary; ids run from 0 to {self.vocab_size - 1}", "prompt"
            )
        if submit.pooling is not None and submit.sampling.max_tokens:
            raise InvalidRequestError("an embedding comes without tokens, so max_tokens must be 0", "max_tokens")
        if submit.sampling.structure is not None and submit.constraint is None:
            raise ValueError("the structure has not been compiled")  # a bug at the door, not of the client
        self._check_stop_ids(submit.sampling)
        self._check_bans(submit.sampling)
        for token, bias in submit.sampling.logit_bias:
            if not 0 <= token < self.vocab_size or not math.isfinite(bias):
                raise InvalidRequestError(
                    f"logit_bias gives token {token} the bias {bias}; ids run from 0 to {self.vocab_size - 1} "
                    "and a bias is a finite number",
                    "logit_bias",
                )

    def _check_bans(self, sampling: SamplingParams) -> None:
        words = [token for word in sampling.bad_words for token in word]
        for name, ids in (("allowed_token_ids", sampling.allowed_token_ids), ("bad_words", words)):
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                raise InvalidRequestError(
                    f"{name} holds an id outside the vocabulary; ids run from 0 to {self.vocab_size - 1}", name
                )

    def _check_stop_ids(self, sampling: SamplingParams) -> None:
        ids = sampling.stop_token_ids
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise InvalidRequestError(
                f"stop_token_ids holds an id outside the vocabulary; ids run from 0 to {self.vocab_size - 1}",
                "stop_token_ids",
            )
        if sampling.min_tokens and len(ids) == self.vocab_size:
            raise InvalidRequestError(
                "stop_token_ids holds the whole vocabulary, so min_tokens leaves no token to choose", "min_tokens"
            )
