"""Drives a Scheduler and a FakeRunner as the engine does, greedily, and audits after every operation."""

from isotherm.daemon.budget import StepBudget
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.messages import Finished, Submit
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.step import StepPlan
from support.fake_runner import FakeRunner, InjectedFailureError


def make_submit(
    request_id: str,
    prompt: list[int],
    *,
    eos: frozenset[int] = frozenset(),
    salt: str = "",
    tenant: str = "",
    priority: int = 0,
    **sampling: object,
) -> Submit:
    params = SamplingParams(temperature=0.0, **sampling)  # type: ignore[arg-type]
    return Submit(
        request_id=request_id,
        prompt=tuple(prompt),
        sampling=params,
        eos_token_ids=eos,
        cache_salt=salt,
        tenant=tenant,
        priority=priority,
    )


class Bench:
    """A scheduler over a fake model. `texts` holds the tokens sent per request, `ends` its terminal messages."""

    def __init__(self, runner: FakeRunner | None = None, *, target_s: float = 1e9, max_running: int = 8) -> None:
        self.runner = runner or FakeRunner()
        self.pool = BlockPool(self.runner.num_blocks, self.runner.block_size, num_resident=self.runner.num_resident)
        self.budget = StepBudget(target_s, self.runner.max_step_tokens)
        self.scheduler = Scheduler(
            self.pool,
            max_running=max_running,
            max_step_tokens=self.runner.max_step_tokens,
            max_context=self.runner.max_context,
            budget=self.budget,
        )
        self.step_seconds = 1.0  # what each step is said to have taken
        self.texts: dict[str, list[int]] = {}
        self.ends: dict[str, list[Finished]] = {}

    def submit(self, submit: Submit) -> None:
        self.scheduler.submit(submit)
        self.texts[submit.request_id] = []
        self.ends[submit.request_id] = []
        self.scheduler.check_integrity()

    def abort(self, request_id: str) -> None:
        finished = self.scheduler.abort(request_id)  # None if it never was, or has ended
        if finished is not None:
            self.ends[request_id].append(finished)
        self.scheduler.check_integrity()

    def preempt(self) -> None:
        """Take the blocks of the request admitted last, if one runs, as a full pool would."""
        if self.scheduler.stats.num_running:
            self.scheduler._preempt()
        self.scheduler.check_integrity()

    def lose_cache(self) -> None:
        """All that steps have left in the blocks is gone."""
        self.runner.forget()
        self.scheduler.begin_anew()
        self.scheduler.check_integrity()

    def step(self, *, abort_during: str | None = None) -> StepPlan:
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if not plan.chunks:
            self.scheduler.discard(plan)
            return plan
        if abort_during is not None:
            self.abort(abort_during)
        try:
            logits = self.runner.execute(plan)
        except InjectedFailureError:
            self.scheduler.discard(plan)
            self.scheduler.check_integrity()
            return plan
        sampled = [int(row.argmax()) for row in logits]
        for outcome in self.scheduler.commit(plan, sampled, self.step_seconds):
            if outcome.token_id is not None:
                assert outcome.token_id == sampled[outcome.row]
                self.texts[outcome.request_id].append(outcome.token_id)
            if outcome.finished is not None:
                self.ends[outcome.request_id].append(outcome.finished)
        self.scheduler.check_integrity()
        return plan

    def run(self, max_steps: int = 2000) -> None:
        """Step until all requests have ended; each step must compute something."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            assert self.step().num_tokens > 0
        raise AssertionError(f"still {self.scheduler.stats} after {max_steps} steps")

    def complete(self, submit: Submit) -> Finished:
        """Run one request to its end, with whatever else is there."""
        self.submit(submit)
        self.run()
        (finished,) = self.ends[submit.request_id]
        return finished
