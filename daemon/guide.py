"""Guide: keeps one request's answer in the form that was asked for, token by token."""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from .constraint import Constraint, allowed_of, guarded
from .errors import EngineError
from .number_length import NumberLength
from .sequence import MAX_FORCED, NOTHING, Follow
from .token_table import Allowed
from .trigger import Place

T = TypeVar("T")


class GuideWorkers:
    """Threads that compute what may come next, made when first needed."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Have it done soon."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "isotherm-guide")
        return self._pool.submit(work)

    def close(self) -> None:
        """Nothing more will come."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class Guide:
    """Belongs to the engine's thread; what may come next is computed by `workers` while the model computes.

    stop_ids: tokens that end the request; they may come where the answer may end. eos_ids: may come there too where
    nothing else may, though they are to be ignored. force: append what must come without asking the model. Both ways
    give the same tokens.
    """

    def __init__(
        self,
        constraint: Constraint,
        stop_ids: Collection[int],
        eos_ids: Collection[int],
        workers: GuideWorkers,
        *,
        force: bool,
    ) -> None:
        self._constraint = constraint
        self._matcher = constraint.matcher.deep_copy()
        self._stop = frozenset(stop_ids)
        self._ends = self._stop | frozenset(eos_ids)
        self._workers = workers
        self._force = force
        self._place = None if constraint.trigger is None else Place()  # while the answer is free
        self._number = NumberLength() if constraint.is_json else None
        self._due: list[int] = []  # what must come next, as far as it is known
        self._next: Future[Allowed] | None = None
        self._prepare()

    def allowed(self, vocab_size: int) -> Allowed | None:
        """Which of so many token ids may come next; None for all. Waits until it is known.

        Raises EngineError if the structure has become too complex to be followed.
        """
        if self._place is not None:
            return self._free(vocab_size)
        assert self._next is not None
        known = self._next.result()
        allowed = np.zeros(vocab_size, dtype=np.bool_)
        width = min(vocab_size, self._constraint.table.size)
        allowed[:width] = known[:width]
        if known[self._constraint.table.end_id]:
            ends = self._stop if self._stop or allowed.any() else self._ends
            allowed[[token_id for token_id in ends if token_id < vocab_size]] = True
        return None if allowed.all() else allowed

    def accept(self, token_id: int) -> Follow:
        """Take the token that was chosen. Raises EngineError if the structure has become too complex."""
        if self._next is not None:
            self._next.result()  # the matcher serves one thread at a time
        if token_id in self._ends and self._place is None:
            return Follow(complete=True)
        if self._place is not None:
            self._wait_for_trigger(self._place, token_id)
        else:
            self._take(token_id)
        if self._place is not None:
            return NOTHING
        forced: list[int] = []
        while not self._matcher.is_stopped() and len(forced) < MAX_FORCED and self._force and self._must_come():
            token_id = self._due[0]
            if token_id in self._ends:
                break
            self._take(token_id)
            forced.append(token_id)
        complete = self._matcher.is_stopped()
        if not complete:
            self._prepare()
        return Follow(tuple(forced), complete)

    def close(self) -> None:
        """The request has ended."""
        if self._next is not None:
            self._next.cancel()

    def _free(self, vocab_size: int) -> Allowed | None:
        assert self._place is not None and self._constraint.trigger is not None
        refused = self._constraint.trigger.refused.get(self._place.matched)
        if not refused:
            return None
        allowed = np.ones(vocab_size, dtype=np.bool_)
        allowed[refused] = False
        return allowed

    def _wait_for_trigger(self, place: Place, token_id: int) -> None:
        assert self._constraint.trigger is not None
        self._place = self._constraint.trigger.advance(place, token_id)
        rest = self._place.rest
        if rest is None:
            return
        self._place = None
        for begun in self._constraint.table.bytewise(rest):
            self._take(begun)

    def _must_come(self) -> bool:
        if not self._due:
            self._due = self._ask(self._matcher.compute_ff_tokens)
        return bool(self._due)

    def _take(self, token_id: int) -> None:
        if self._due:
            self._due = self._due[1:] if self._due[0] == token_id else []
        self._ask(lambda: self._matcher.consume_token(token_id))
        if self._number is not None:
            self._number.feed(self._constraint.table.tokens[token_id])

    def _prepare(self) -> None:
        if self._place is None:
            self._next = self._workers.submit(self._compute)

    def _compute(self) -> Allowed:
        """By token id, `end_id` included."""
        if self._must_come():
            only = np.zeros(self._constraint.table.size + 1, dtype=np.bool_)
            only[self._due[0]] = True
            return only
        allowed = allowed_of(self._ask(self._matcher.compute_bitmask), self._constraint.table)
        if self._number is not None and self._number.reached:
            shorter = allowed.copy()
            shorter[:-1] &= ~self._constraint.table.number_starts
            if shorter.any():  # else the structure itself asks for a longer one
                return shorter
        return allowed

    def _ask(self, work: Callable[[], T]) -> T:
        try:
            return guarded(self._matcher, work)
        except EngineError as error:
            self._constraint.broken = True
            raise EngineError(f"the answer's structure has become too complex to follow: {error}") from error
