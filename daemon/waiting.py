"""WaitingQueue: who is admitted next, fairly among tenants.

Preempted requests come first: they had been admitted. The others are queued by tenant, and tenants take turns by
deficit round robin: each turn is worth QUANTUM tokens of work, what a tenant does not spend it keeps while it has more
waiting. So tenants that always have something waiting get equal shares of work, whoever asks for more of it, and a lone
one gets all of it, first come, first served.

Within a tenant the lower priority comes sooner. Each step of priority is worth PLACES places and no more: so many later
requests may pass, those that come after them wait behind. So nobody starves.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from itertools import chain

from .messages import Submit
from .sequence import Sequence

QUANTUM = 2048  # tokens of work in a turn
PLACES = 16  # later requests of a tenant that one step of priority may pass
LONG_ANSWER = 1024  # tokens: few are longer, whatever was allowed

_Place = tuple[int, int, Sequence]  # rank and number of arrival, by which they are sorted


def cost_of(submit: Submit) -> int:
    """The work of a request in tokens: its prompt, and an answer as long as it may be, or as few are."""
    return len(submit.prompt) + min(submit.sampling.max_tokens, LONG_ANSWER)


class _Tenant:
    """One tenant's queue, and the tokens of work that it may spend."""

    __slots__ = ("credit", "num_arrived", "places")

    def __init__(self) -> None:
        self.credit = 0
        self.num_arrived = 0
        self.places: list[_Place] = []

    def add(self, sequence: Sequence) -> None:
        rank = self.num_arrived + PLACES * sequence.submit.priority
        insort(self.places, (rank, self.num_arrived, sequence))
        self.num_arrived += 1

    @property
    def first(self) -> Sequence:
        return self.places[0][2]


class WaitingQueue:
    """Sequences that wait, in an order that depends on nothing but what was done here."""

    def __init__(self) -> None:
        self._preempted: deque[Sequence] = deque()
        self._tenants: dict[str, _Tenant] = {}  # those with something waiting
        self._turns: deque[str] = deque()  # the same, the one whose turn it is in front
        self._paid = False  # it has got what its turn is worth

    def __len__(self) -> int:
        return len(self._preempted) + sum(len(tenant.places) for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[Sequence]:
        """In no order that means anything."""
        queued = (place[2] for tenant in self._tenants.values() for place in tenant.places)
        return chain(self._preempted, queued)

    def add(self, sequence: Sequence) -> None:
        """A new request."""
        name = sequence.submit.tenant
        if name not in self._tenants:
            self._tenants[name] = _Tenant()
            self._turns.append(name)
        self._tenants[name].add(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A request that was admitted and preempted. The last one put back is the first to come again."""
        self._preempted.appendleft(sequence)

    def first(self) -> Sequence | None:
        """The one to be admitted next. It stays that one until it leaves, unless its tenant brings one of an earlier
        place or another request is put back."""
        if self._preempted:
            return self._preempted[0]
        if not self._turns:
            return None
        while True:
            tenant = self._tenants[self._turns[0]]
            if not self._paid:
                tenant.credit += QUANTUM
                self._paid = True
            if cost_of(tenant.first.submit) <= tenant.credit:
                return tenant.first
            self._end_turn()

    def take(self) -> Sequence:
        """The first one, which leaves. Raises IndexError if nothing waits."""
        sequence = self.first()
        if sequence is None:
            raise IndexError("nothing waits")
        if self._preempted:
            return self._preempted.popleft()
        tenant = self._tenants[sequence.submit.tenant]
        tenant.credit -= cost_of(sequence.submit)
        del tenant.places[0]
        self._forget_if_empty(sequence.submit.tenant)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take one out that is not wanted any more. Raises ValueError if it does not wait."""
        if sequence in self._preempted:
            self._preempted.remove(sequence)
            return
        name = sequence.submit.tenant
        tenant = self._tenants.get(name, _Tenant())
        del tenant.places[[place[2] for place in tenant.places].index(sequence)]
        tenant.credit = min(tenant.credit, QUANTUM)  # what was saved up for it is not spent on others
        self._forget_if_empty(name)

    def _end_turn(self) -> None:
        self._turns.rotate(-1)
        self._paid = False

    def _forget_if_empty(self, name: str) -> None:
        if self._tenants[name].places:
            return
        if self._turns[0] == name:
            self._paid = False
        self._turns.remove(name)
        del self._tenants[name]
