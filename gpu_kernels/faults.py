"""Faults: what an emulated device does wrong, and when. For tests of those who use it."""

from dataclasses import dataclass
from typing import Literal

Fault = Literal["copy", "launch", "hang", "allocation"]


@dataclass(slots=True)
class _Plan:
    left: int
    forever: bool


class Faults:
    """taken_bytes: memory that another program holds. dead: the device cannot be reset."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.dead = False
        self._plans: dict[Fault, _Plan] = {}

    def fail(self, what: Fault, *, after: int = 0, forever: bool = False) -> None:
        """Let a copy, launch or allocation fail, or a launch hang, once so many more of them have gone well; then again
        never, or each time."""
        self._plans[what] = _Plan(after, forever)

    def mend(self) -> None:
        """Nothing fails any more; what was taken is given back."""
        self._plans.clear()
        self.taken_bytes, self.dead = 0, False

    def strikes(self, what: Fault) -> bool:
        """Whether the one that comes now fails; counts it."""
        plan = self._plans.get(what)
        if plan is None:
            return False
        if plan.left:
            plan.left -= 1
            return False
        if not plan.forever:
            del self._plans[what]
        return True
