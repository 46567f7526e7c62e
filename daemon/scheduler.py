"""Scheduler: which request gets how many tokens in the next step.

One idea: a step gives each request some tokens so that what is computed catches up with what is known. A decoding
request is one token behind, a new prompt is many behind, a prefix hit starts less far behind, a preempted request
starts again with its outputs as known tokens. There are no phases.

Running requests come first, in the order of their admission; new ones are admitted as `waiting` says, each with room
for its whole prompt. When blocks run out, the request admitted last gives its own back. So the oldest
request always makes progress, and nothing can deadlock.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from .budget import StepBudget
from .errors import InvalidRequestError
from .kv_cache import BlockPool, BlockTable
from .messages import Finished, FinishReason, Submit
from .request import check_prompt_length
from .sequence import NOTHING, Follow, Sequence
from .step import Chunk, StepPlan
from .step_rows import RowLimits, RowsLeft
from .waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought to one request: a token to send, the end, or both.

    row: index of its token among those that were drawn; None for one that was forced, or if there is none. token_id:
    None if there is none, or if the sampled token is a stop token, which is not sent.
    """

    request_id: str
    row: int | None
    token_id: int | None
    finished: Finished | None

    @property
    def has_token(self) -> bool:
        return self.row is not None or self.token_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A snapshot for metrics. The first six are gauges, the others count since the start.

    queued: of those that wait, the ones that never ran, as requests and prompt tokens of each tenant; preempted ones
    wait too.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    queued: Mapping[str, tuple[int, int]]
    num_blocks: int
    num_free_blocks: int
    num_preemptions: int
    num_prefix_queried_tokens: int
    num_prefix_hit_tokens: int


class Scheduler:
    """Queue, running set and block tables of all requests. Single-threaded: schedule, run the plan, commit, repeat.

    max_step_tokens bounds a step, max_running the requests in it; what may wait is bounded at the door, by the inbox.
    A sequence, prompt and outputs, holds at most `max_context` tokens, or what the pool lets be in use if that is less.
    rows: what the runner gives in a step; None is as much as is wanted.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_running: int,
        max_step_tokens: int,
        max_context: int,
        budget: StepBudget,
        rows: RowLimits | None = None,
    ) -> None:
        if not 1 <= max_running <= max_step_tokens:
            raise ValueError(f"max_running {max_running} must lie between 1 and max_step_tokens {max_step_tokens}")
        self.pool = pool
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self.max_context = min(max_context, pool.num_resident * pool.block_size)
        self.budget = budget
        self.rows = rows or RowLimits(max_step_tokens)
        self.num_preemptions = 0
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}  # all that have not ended
        self._plan: StepPlan | None = None  # the step under way, and its sequences chunk by chunk
        self._in_step: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def submit(self, submit: Submit) -> None:
        """Queue a request. Raises InvalidRequestError or ContextLengthError; then it is forgotten."""
        if submit.request_id in self._sequences:
            raise InvalidRequestError(f"request id {submit.request_id!r} is already in use", "request_id")
        check_prompt_length(len(submit.prompt), self.max_context)
        sequence = Sequence(submit, BlockTable(list(submit.prompt), submit.cache_salt))
        self._sequences[submit.request_id] = sequence
        self._waiting.add(sequence)

    def schedule(self) -> StepPlan:
        """Plan the next step. Each plan is given to `commit` or `discard` before the next one is made."""
        if self._plan is not None:
            raise RuntimeError("the last step is neither committed nor discarded")
        due = [sequence.num_due for sequence in self._running if sequence.num_due]
        forced_left = min(sum(due), self.max_step_tokens) - len(due)  # beside the one token that each stream gets
        prefill_left = min(self.budget.prefill_tokens(len(due)), self.max_step_tokens - len(due) - forced_left)
        rows = RowsLeft(self.rows.rows - len(due), self.rows.states_are_rows)
        chunks: list[Chunk] = []
        for sequence in self._serve_running():
            if sequence.num_due:
                count = 1 + min(sequence.num_due - 1, forced_left)
                forced_left -= count - 1
            else:
                count = self._share(sequence, prefill_left, rows)
                prefill_left -= count
            if count:
                chunks.append(self._chunk(sequence, count))
        while min(prefill_left, rows.rows) > 0 and (admitted := self._admit()) is not None:
            count = self._share(admitted, prefill_left, rows)
            prefill_left -= count
            chunks.append(self._chunk(admitted, count))
        self._plan = StepPlan(tuple(chunks))
        self._in_step = [self._sequences[chunk.request_id] for chunk in chunks]
        return self._plan

    def commit(
        self, plan: StepPlan, sampled: Tokens[int], seconds: float, follows: Mapping[int, Follow] | None = None
    ) -> list[Outcome]:
        """Take in a step that ran for `seconds`: `sampled` holds a token id per chunk with `sample`, in plan order.

        follows: by the place in `sampled`, what comes after a token whatever the model says.
        Requests that were aborted meanwhile have no outcome, but what was computed for them stays in the prefix cache.
        """
        num_wanted = sum(chunk.sample for chunk in plan.chunks)
        if len(sampled) != num_wanted:
            raise RuntimeError(f"{len(sampled)} tokens were sampled for a plan that wants {num_wanted}")
        sequences = self._close_step(plan)
        self._observe(plan, sequences, seconds)
        outcomes: list[Outcome] = []
        row = -1
        for sequence, chunk in zip(sequences, plan.chunks, strict=True):
            row += chunk.sample
            sequence.num_computed += len(chunk.tokens)
            self.pool.register(sequence.table, sequence.num_computed)
            if sequence.ended:
                self.pool.release(sequence.table)
                continue
            sequence.wish.told(sequence.num_computed)
            if chunk.sample:
                outcomes += self._append(sequence, row, sampled[row], (follows or {}).get(row, NOTHING))
            elif not sequence.num_behind:
                outcomes.append(Outcome(sequence.request_id, None, None, self._end(sequence, "length")))
        return outcomes

    def discard(self, plan: StepPlan) -> None:
        """Forget a step that failed. Its requests are where they were before it, except those aborted meanwhile."""
        for sequence in self._close_step(plan):
            if sequence.ended:
                self.pool.release(sequence.table)

    def begin_anew(self) -> int:
        """Keys and values of all sequences are lost: have them computed again, as after a preemption. How many. No step
        may be under way."""
        num_running = len(self._running)
        while self._running:
            self._preempt()
        self.pool.forget()
        return num_running

    def abort(self, request_id: str, reason: FinishReason = "abort") -> Finished | None:
        """End a request in any state; None if it has ended before. `reason` "stop": its text has met a stop string.

        Blocks that the step under way writes are freed when that step is committed or discarded.
        """
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._end(sequence, reason)

    @property
    def stats(self) -> SchedulerStats:
        queued: dict[str, tuple[int, int]] = {}
        for sequence in self._waiting:
            if sequence.num_cached is None:
                count, tokens = queued.get(sequence.submit.tenant, (0, 0))
                queued[sequence.submit.tenant] = count + 1, tokens + sequence.num_prompt_tokens
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_waiting_tokens=sum(len(sequence.tokens) for sequence in self._waiting),
            queued=queued,
            num_blocks=self.pool.num_resident,
            num_free_blocks=self.pool.num_free,
            num_preemptions=self.num_preemptions,
            num_prefix_queried_tokens=self.pool.num_queried_tokens,
            num_prefix_hit_tokens=self.pool.num_hit_tokens,
        )

    def check_integrity(self) -> None:
        """Audit requests against blocks. Raises RuntimeError with the numbers. When nothing runs, all are free."""
        if len(self._waiting) + len(self._running) != len(self._sequences):
            raise RuntimeError(
                f"{len(self._waiting)} waiting + {len(self._running)} running are not {len(self._sequences)} requests"
            )
        ending = [sequence for sequence in self._in_step if sequence.ended]
        self.pool.check_integrity(sequence.table for sequence in [*self._running, *ending])

    def _serve_running(self) -> Iterator[Sequence]:
        """Running sequences in order, each with room for its known tokens; the last ones are preempted to make room."""
        i = 0
        while i < len(self._running):
            sequence = self._running[i]
            while i < len(self._running) and not self.pool.extend(sequence.table, len(sequence.tokens)):
                self._preempt()
            if i < len(self._running):  # else it was the last and left itself
                yield sequence
            i += 1

    def _preempt(self) -> None:
        sequence = self._running.pop()
        self.pool.release(sequence.table)
        sequence.num_computed = 0
        self._waiting.put_back(sequence)
        self.num_preemptions += 1

    def _admit(self) -> Sequence | None:
        """Start the first waiting request, if all its known tokens fit and each running one can still grow by a block.

        It also waits while a running one computes what it could reuse. Nobody overtakes it: a long prompt that waits
        for room would never find it.
        """
        sequence = self._waiting.first() if len(self._running) < self.max_running else None
        if sequence is None:
            return None
        table, pool, wish = sequence.table, self.pool, sequence.wish
        hits = pool.match_prefix(table)
        if wish.open:  # what is wanted must be computed
            hits = hits[: wish.first // pool.block_size]
        if pool.num_needed(len(table.tokens), hits) + len(self._running) > pool.num_free:
            return None
        useful = not wish.open or (len(hits) + 1) * pool.block_size <= wish.first
        if useful and any(pool.is_coming(table, len(hits), other.table) for other in self._running):
            return None
        pool.open(table, hits, len(table.tokens))
        sequence.num_computed = len(hits) * pool.block_size
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
        self._running.append(self._waiting.take())
        return sequence

    @staticmethod
    def _share(sequence: Sequence, prefill_left: int, rows: RowsLeft) -> int:
        """Tokens of a sequence that is behind by more than one; takes the rows that they want."""
        start, count = sequence.num_computed, min(sequence.num_behind, prefill_left)
        count = rows.most(sequence.wish, start, count, draws=count == sequence.num_behind and sequence.draws)
        wanted = sequence.wish.rows(start, start + count)
        draws = count == sequence.num_behind and sequence.draws
        if sequence.wish.states:
            rows.take(0, wanted)
        else:
            rows.take(max(wanted, int(draws)), 0)
        return count

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        start, end = sequence.num_computed, sequence.num_computed + count
        wanted, states = sequence.wish.rows(start, end), sequence.wish.states
        return Chunk(
            request_id=sequence.request_id,
            tokens=sequence.tokens[start:end],
            start=start,
            block_table=sequence.table.blocks[: -(-end // self.pool.block_size)],
            sample=end == len(sequence.tokens) and sequence.draws,
            scored=0 if states else wanted,
            states=wanted if states else 0,
        )

    def _append(self, sequence: Sequence, row: int, sampled: int, follow: Follow) -> list[Outcome]:
        outcomes: list[Outcome] = []
        tokens = (sampled, *follow.tokens)
        for i, token_id in enumerate(tokens):
            sequence.tokens.append(token_id)
            reason, stop_token = sequence.stop_reason(self.max_context)
            if follow.complete and i == len(tokens) - 1 and stop_token is None:
                reason = "stop"
            finished = None if reason is None else self._end(sequence, reason, stop_token)
            sent = token_id if stop_token is None else None
            outcomes.append(Outcome(sequence.request_id, None if i else row, sent, finished))
            if finished is not None:
                break
        return outcomes

    def _end(self, sequence: Sequence, reason: FinishReason, stop_token: int | None = None) -> Finished:
        del self._sequences[sequence.request_id]
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        sequence.ended = True
        if sequence not in self._in_step:
            self.pool.release(sequence.table)
        return sequence.finished(reason, stop_token)

    def _close_step(self, plan: StepPlan) -> list[Sequence]:
        if plan is not self._plan:
            raise RuntimeError("this plan is not the step under way")
        sequences, self._plan, self._in_step = self._in_step, None, []
        return sequences

    def _observe(self, plan: StepPlan, sequences: Iterable[Sequence], seconds: float) -> None:
        num_decode = sum(
            len(chunk.tokens) for chunk, sequence in zip(plan.chunks, sequences, strict=True) if sequence.num_due
        )
        self.budget.observe(plan.num_tokens - num_decode, num_decode, seconds)
