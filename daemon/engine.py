"""Engine: the one thread that owns the model. Receive, schedule, execute, sample, commit, deliver.

Whatever fails, each accepted request ends in exactly one terminal message. A failed step fails the requests in it, a
failed sampler its own request; the loop goes on. Several failed steps in a row fail the engine: it refuses new requests
and says why. Keys and values that are lost are computed anew, and fail nobody.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from ..experts.errors import CacheLostError
from .attendants import Attendant, Attendants
from .client import EngineClient
from .errors import EngineError, RequestError
from .events import EventLog
from .guide import Guide, GuideWorkers
from .inbox import Inbox
from .messages import Ask, Failed, Finished, FinishReason, Submit, Token, TokenLogprobs, Usage
from .metrics import Metrics, RequestTimer
from .open_request import Floats, OpenRequest
from .prompt_rows import reader_of
from .queue_books import QueueLimits
from .sampler import Sampler
from .scheduler import Outcome, Scheduler
from .sequence import Follow
from .status import EngineState, EngineStats
from .step import Runner, StepPlan, StepRecorder
from .step_counts import StepCounts
from .thoughts import Thoughts

logger = logging.getLogger(__name__)

_STOPPING = "the engine is shutting down"


class Engine:
    """Runs requests from `client` until it is drained or stopped. It owns the runner and closes it.

    recorder: is shown each step that did not fail. attendants: what else is done between steps. max_failures: failed
    steps in a row after which the engine gives up.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        limits: QueueLimits,
        *,
        events: EventLog | None = None,
        recorder: StepRecorder | None = None,
        attendants: Sequence[Attendant] = (),
        max_failures: int = 3,
    ) -> None:
        self.events = EventLog() if events is None else events
        self._runner = runner
        self._scheduler = scheduler
        self._recorder = recorder
        self._attendants = Attendants(attendants, self.events)
        self._max_failures = max_failures
        self._inbox = Inbox(limits)
        self.client = EngineClient(
            self._inbox, vocab_size=runner.vocab_size, max_context=scheduler.max_context, stats=self.stats
        )
        self.metrics = Metrics(self.stats, self.events)
        self._requests: dict[str, OpenRequest] = {}
        self._guide_workers = GuideWorkers()
        self._thread = threading.Thread(target=self._run, name="isotherm-engine", daemon=True)
        self._state: EngineState = "starting"
        self._reason = ""
        self._stats = EngineStats()
        self._stopping = False
        self._failures = 0  # in a row
        self._stepped: StepPlan | None = None  # the attendants have not seen it
        self._worked = False  # requests came in since the last audit
        self._counts = StepCounts()
        self._audit_failures = self._generated_tokens = 0

    def start(self) -> None:
        """Start the thread. What was submitted before is served now."""
        self._state = "ready"
        self._thread.start()

    def stats(self) -> EngineStats:
        """The state now and the numbers after the last step. Any thread may ask."""
        return replace(self._stats, state=self._state, reason=self._reason)

    def limit_queue(self, limits: QueueLimits) -> None:
        """Let so much wait from now on; what waits already stays. Any thread may call it."""
        self._inbox.limit(limits)

    def drain(self, timeout: float) -> bool:
        """Refuse new requests, give the accepted ones `timeout` seconds to finish, then stop. True if all did."""
        self._refuse()
        finished = self._join(timeout)
        self.stop()
        return finished

    def stop(self, timeout: float = 30.0) -> None:
        """End now: after the step under way each open request gets Failed(EngineError). Safe to call again.

        A step that does not end within `timeout` seconds is abandoned with its thread.
        """
        self._refuse()
        self._stopping = True
        if self._thread.ident is None:
            self._close()
        elif not self._join(timeout):
            self.abandon(f"a step did not end within {timeout} s of shutting down")

    def abandon(self, reason: str) -> None:
        """Wait no more for the thread, which ends by itself if its step ever does; each open request gets
        Failed(EngineError)."""
        self._state, self._reason, self._stopping = "failed", reason, True
        self.events.record("engine_abandoned", reason, logging.ERROR)
        self._inbox.close(reason)
        self._inbox.fail_all(EngineError(reason))

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _refuse(self) -> None:
        if self._state in ("starting", "ready"):
            self._state, self._reason = "draining", _STOPPING
        self._inbox.close(_STOPPING)

    def _join(self, timeout: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._receive():
                if self._scheduler.has_work:
                    self._step()
        except Exception as error:  # a bug of ours, not of a step: nothing can be trusted any more
            logger.exception("the engine loop broke")
            self._give_up(f"the engine loop broke: {error!r}")
        finally:
            self._close()

    def _receive(self) -> bool:
        """Wake clients and take in what they sent; with nothing to do, audit and sleep until something comes.

        False: the end.
        """
        for request_id in self._inbox.flush():
            self._abort(request_id, "abort")
        if self._stepped is not None:
            self._attendants.between_steps(self._stepped)
            self._stepped = None
        idle = not self._scheduler.has_work
        if idle:
            self._audit()
            self._publish(busy=False)
            self._inbox.flush()
        pause = self._attendants.between_steps(None) if idle else None
        for message in self._inbox.take(wait=idle, timeout=pause):
            if isinstance(message, Submit):
                self._accept(message)
            elif isinstance(message, Ask):
                self._attendants.answer(message)
            else:
                self._abort(message.request_id, message.reason)
        self._inbox.flush()
        return not self._stopping and (self._scheduler.has_work or not self._inbox.closed)

    def _accept(self, submit: Submit) -> None:
        self._worked = True
        timer = RequestTimer(self.metrics, self._inbox.opened_at(submit.request_id))
        sampling = submit.sampling
        stop_ids = sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else submit.eos_token_ids)
        failure: Exception
        guide: Guide | None = None
        try:
            if submit.constraint is not None:
                # Log-probabilities of a forced token are known only to the model; bans might forbid it.
                force = sampling.logprobs is None and sampling.allowed_token_ids is None and not sampling.bad_words
                guide = Guide(submit.constraint, stop_ids, submit.eos_token_ids, self._guide_workers, force=force)
            thoughts = None if submit.thoughts is None else Thoughts(submit.thoughts)
            sampler = Sampler(sampling, submit.prompt, stop_ids)
            request = OpenRequest(sampler, timer, reader_of(submit), guide, thoughts)
            self._scheduler.submit(submit)
        except RequestError as error:
            failure = error
        except Exception as error:
            logger.exception("request %s could not be queued", submit.request_id)
            failure = EngineError(f"the request could not be queued: {error}")
        else:
            self._requests[submit.request_id] = request
            return
        if guide is not None:
            guide.close()
        timer.ended("error", None, time.monotonic())
        self._inbox.deliver(Failed(submit.request_id, failure))

    def _abort(self, request_id: str, reason: FinishReason) -> None:
        finished = self._scheduler.abort(request_id, reason)
        if finished is not None:
            self._end(finished, finished.reason, finished.usage)

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        started = time.monotonic()
        self._publish(busy=True)
        for chunk in plan.chunks:
            self._requests[chunk.request_id].timer.scheduled(started)
        try:
            logits, states = self._execute(plan)
        except CacheLostError as error:
            self._begin_anew(plan, error)
            return
        except Exception as error:
            self._fail_step(plan, error)
            return
        tokens, logprobs, follows = self._sample(plan, logits, states)
        ended = time.monotonic()
        outcomes = self._scheduler.commit(plan, tokens, ended - started, follows)
        for outcome in outcomes:
            self._deliver(outcome, None if outcome.row is None else logprobs[outcome.row], ended)
        self._record(plan)
        self._stepped = plan
        self.metrics.step_time.observe(ended - started)
        self._counts.add(plan, ended - started)
        self._generated_tokens += sum(outcome.has_token for outcome in outcomes)
        self._failures = 0

    def _record(self, plan: StepPlan) -> None:
        """A recorder that fails is done without: no request depends on it."""
        if self._recorder is None:
            return
        try:
            self._recorder.record(plan)
        except Exception as error:
            logger.exception("a step could not be recorded")
            self._recorder = None
            self.events.record("recording_stopped", f"{type(error).__name__}: {error}", logging.ERROR)

    def _execute(self, plan: StepPlan) -> tuple[Floats, Floats]:
        """Logits and states of the step."""
        if not plan.chunks:
            raise RuntimeError("requests are open, but the step plans none of them")
        logits = self._runner.execute(plan)
        expected = (sum(chunk.rows for chunk in plan.chunks), self._runner.vocab_size)
        if logits.shape != expected:
            raise RuntimeError(f"the runner gave logits of shape {logits.shape} instead of {expected}")
        wants_states = any(chunk.states for chunk in plan.chunks)
        return logits, self._runner.states() if wants_states else logits[:0]

    def _sample(
        self, plan: StepPlan, logits: Floats, states: Floats
    ) -> tuple[list[int], list[TokenLogprobs | None], dict[int, Follow]]:
        """Have prompts read their rows, and draw a token per chunk with `sample` from the last of its rows. Where that
        fails the request ends here, and its token means nothing to the scheduler."""
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        follows: dict[int, Follow] = {}
        row = state = 0
        for chunk in plan.chunks:
            wanted = states[state : state + chunk.states] if chunk.states else logits[row : row + chunk.scored]
            row, state = row + chunk.rows, state + chunk.states
            token, token_logprobs = 0, None
            try:
                request = self._requests[chunk.request_id]
                if request.reader is not None:
                    request.reader.take(wanted)
                if chunk.sample:
                    token, token_logprobs = request.sample(logits[row - 1])
                    if not 0 <= token < logits.shape[1]:  # would fail the next step, and with it every request in it
                        raise RuntimeError(f"the sampler chose token {token} of {logits.shape[1]}")
                    follows[len(tokens)] = request.follow(token)
            except Exception as error:
                logger.exception("sampling failed for %s", chunk.request_id)
                self._fail(chunk.request_id, EngineError(f"sampling failed: {error}"))
                token, token_logprobs = 0, None
            if chunk.sample:
                tokens.append(token)
                logprobs.append(token_logprobs)
        return tokens, logprobs, follows

    def _deliver(self, outcome: Outcome, logprobs: TokenLogprobs | None, now: float) -> None:
        request_id, finished = outcome.request_id, outcome.finished
        request = self._requests[request_id]
        if request.reader is not None and (message := request.reader.message()) is not None:
            self._inbox.deliver(message)
        if outcome.has_token:
            request.timer.token(now)
        if outcome.token_id is not None:
            self._inbox.deliver(Token(request_id, outcome.token_id, logprobs))
        if finished is not None:
            if finished.stop_token is not None:
                finished = replace(finished, stop_logprobs=logprobs)
            self._end(finished, finished.reason, finished.usage)

    def _fail_step(self, plan: StepPlan, error: Exception) -> None:
        self._failures += 1
        self._counts.failed_steps += 1
        logger.error("a step with %d requests failed", len(plan.chunks), exc_info=error)
        self.events.record("step_failed", f"{type(error).__name__}: {error}", logging.ERROR)
        for chunk in plan.chunks:
            self._fail(chunk.request_id, EngineError(f"a step of the model failed: {error}"))
        self._scheduler.discard(plan)
        if self._failures >= self._max_failures:
            self._give_up(f"{self._failures} steps in a row failed, the last with: {error}")

    def _begin_anew(self, plan: StepPlan, error: CacheLostError) -> None:
        """Nobody fails: all tokens are known, and those of a running request are computed again like a prompt."""
        self._scheduler.discard(plan)
        count = self._scheduler.begin_anew()
        detail = f"{error}; the keys and values of {count} requests are computed anew"
        self.events.record("requests_begun_anew", detail)

    def _fail(self, request_id: str, error: EngineError) -> None:
        finished = self._scheduler.abort(request_id)
        self._end(Failed(request_id, error), "error", None if finished is None else finished.usage)

    def _end(self, message: Finished | Failed, reason: str, usage: Usage | None) -> None:
        request = self._requests.pop(message.request_id)
        if request.guide is not None:
            request.guide.close()
        request.timer.ended(reason, usage, time.monotonic())
        self._inbox.deliver(message)

    def _give_up(self, reason: str) -> None:
        self._state, self._reason = "failed", reason
        self.events.record("engine_failed", reason, logging.ERROR)
        self._inbox.close(reason)
        self._stopping = True

    def _audit(self) -> None:
        """Once after each stretch of work: nothing may be left behind."""
        if not self._worked:
            return
        self._worked = False
        lost = sorted({*self._requests, *self._inbox.unended()})
        try:
            self._scheduler.check_integrity()
            self._runner.check_integrity(self._scheduler.pool.cached_blocks)
            if lost:
                raise RuntimeError(f"idle, but these requests have not ended: {', '.join(lost)}")
        except RuntimeError as error:
            self._audit_failures += 1
            self.events.record("audit_failed", str(error), logging.ERROR)
        self._requests.clear()
        for request_id in lost:
            self._inbox.deliver(Failed(request_id, EngineError("the engine lost this request")))

    def _publish(self, busy: bool) -> None:
        """Tell clients how things are."""
        numbers, counts = self._scheduler.stats, self._counts
        self._inbox.publish_queue(numbers.queued, self._scheduler.budget.prefill_rate)
        self._stats = EngineStats(
            busy=busy,
            heartbeat=time.monotonic(),
            running=numbers.num_running,
            waiting=numbers.num_waiting,
            waiting_tokens=numbers.num_waiting_tokens,
            kv_blocks=numbers.num_blocks,
            kv_blocks_free=numbers.num_free_blocks,
            queued=numbers.queued,
            steps=counts.steps,
            failed_steps=counts.failed_steps,
            generated_tokens=self._generated_tokens,
            prefill_tokens=counts.prefill_tokens,
            decode_tokens=counts.decode_tokens,
            prefill_rate=counts.prefill_rate,
            decode_rate=counts.decode_rate,
            preemptions=numbers.num_preemptions,
            prefix_queried_tokens=numbers.num_prefix_queried_tokens,
            prefix_hit_tokens=numbers.num_prefix_hit_tokens,
            audit_failures=self._audit_failures,
        )

    def _close(self) -> None:
        """The end of the thread: every open request gets its terminal message, then the runner is closed."""
        error = EngineError(self._reason or _STOPPING)
        try:
            for request_id in list(self._requests):
                self._fail(request_id, error)
            self._audit()
            self._publish(busy=False)
        except Exception:  # only after the loop broke: the books are not in order, but clients still get their answer
            logger.exception("the engine could not tidy up")
        self._inbox.flush()
        self._inbox.fail_all(error)
        self._guide_workers.close()
        if self._state != "failed":
            self._state = "stopped"
        try:
            self._runner.close()
        except Exception as problem:
            logger.exception("the runner could not be closed")
            self.events.record("runner_close_failed", f"{type(problem).__name__}: {problem}", logging.ERROR)
