"""How many rows of logits and states a step gives, and what requests want of them beside the rows they draw from."""

from dataclasses import dataclass

from .messages import Submit


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Of a runner. rows: of logits in a step. states_are_rows: each state takes one of them too."""

    rows: int
    states_are_rows: bool = False


@dataclass(slots=True)
class RowsLeft:
    """Of the step that is being planned. Decoding requests have theirs already."""

    rows: int
    states_are_rows: bool

    def most(self, wish: "Wish", start: int, count: int, *, draws: bool) -> int:
        """How many of `count` tokens from `start` on can be computed. draws: the last one wants a row."""
        if wish.states and not self.states_are_rows:
            return count
        free = max(wish.first - start, 0) if wish.open else count - draws  # tokens that want nothing
        return min(count, free + self.rows)

    def take(self, rows: int, states: int) -> None:
        self.rows -= rows + (states if self.states_are_rows else 0)


@dataclass(slots=True)
class Wish:
    """What a request wants of the positions first .. last - 1 of its prompt: logits, or states. It wants nothing more
    once first has reached last."""

    first: int
    last: int
    states: bool

    @classmethod
    def of(cls, submit: Submit) -> "Wish":
        length = len(submit.prompt)
        if submit.pooling is not None:
            return cls(0 if submit.pooling == "mean" else length - 1, length, states=True)
        scored = submit.sampling.prompt_logprobs is not None
        return cls(0, length - 1 if scored else 0, states=False)  # the last position's logits tell of no prompt token

    @property
    def open(self) -> bool:
        return self.first < self.last

    def rows(self, start: int, end: int) -> int:
        """Of how many last tokens of a chunk something is wanted."""
        return max(end - max(start, self.first), 0) if self.open else 0

    def told(self, end: int) -> None:
        """A step has computed all positions below `end`."""
        self.first = max(self.first, end)
