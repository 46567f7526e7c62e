"""Load for whole daemons: requests of many kinds, several clients that send them together, and what each was told."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from isotherm.daemon.client import EngineClient
from isotherm.daemon.engine import Engine
from isotherm.daemon.mailbox import Mailbox
from isotherm.daemon.messages import Failed, Finished, FromEngine, Submit, Token
from isotherm.daemon.request import SamplingParams
from support.engine_runs import PATIENCE_S

CONTEXT = 112
_STEM = 36  # tokens with which prompts begin: two blocks and a part of one
_RULES = (
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "logprobs": 0},
    {"temperature": 1.3, "top_k": 20, "presence_penalty": 0.5},
    {"temperature": 0.7, "min_p": 0.02, "repetition_penalty": 1.2, "logprobs": 5},
    {"temperature": 0.0, "frequency_penalty": 0.8, "logit_bias": ((7, 2.0), (9, -3.0)), "logprobs": 1},
)


@dataclass(frozen=True, slots=True)
class Wish:
    """leaves: after so many tokens its client wants no more; None to stay to the end."""

    submit: Submit
    leaves: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: ids, and log-probabilities where they were wanted."""

    tokens: tuple[Token, ...]
    end: Finished | Failed


def wishes(vocabulary: int, count: int, seed: int = 0) -> list[Wish]:
    """Half are short prompts with long answers, which outgrow what was foreseen; half are long prompts, most of which
    begin as others do. Greedy and by seed, with and without log-probabilities; every fifth is given up in the middle.
    """
    rng = np.random.default_rng(seed)
    stem = rng.integers(0, vocabulary - 1, _STEM)
    made = []
    for number in range(count):
        talks = number % 6 in (0, 1, 3)
        head = stem[: 0 if talks or number % 6 == 5 else _STEM]
        tail = rng.integers(0, vocabulary - 1, int(rng.integers(1, 13) if talks else rng.choice((1, 20, 44))))
        sampling = SamplingParams(
            max_tokens=int(rng.integers(44, 53) if talks else rng.integers(4, 17)),
            seed=number,
            ignore_eos=talks,
            **_RULES[number % len(_RULES)],
        )
        submit = Submit(
            request_id=f"r{number}",
            prompt=tuple(map(int, (*head, *tail))),
            sampling=sampling,
            eos_token_ids=frozenset(range(16)),
            cache_salt="other" if number % 7 == 6 else "",
        )
        made.append(Wish(submit, int(rng.integers(0, 6)) if number % 5 == 4 else None))
    return made


def one_by_one(client: EngineClient, given: Sequence[Wish]) -> dict[str, Answer]:
    """The answers to requests each of which is alone, and stays to its end."""
    found: dict[str, Answer] = {}
    for wish in given:
        found |= _ask(client, [replace(wish, leaves=None)], lambda: None)
    return found


def together(engine: Engine, given: Sequence[Wish], clients: int = 4) -> dict[str, Answer]:
    """The answers to requests that so many clients send, each its share of them: every other one from a thread of its
    own, the others from an event loop. The engine is started when they have sent most of their requests, one after the
    other, so that there is the same queue each time at first; the others come while it works."""
    found: dict[str, Answer] = {}
    faults: list[BaseException] = []

    def run(share: Sequence[Wish], from_loop: bool, sent: threading.Event) -> None:
        try:
            if from_loop:
                found.update(asyncio.run(_ask_from_loop(engine.client, share, sent.set)))
            else:
                found.update(_ask(engine.client, share, sent.set))
        except BaseException as error:
            faults.append(error)

    threads = []
    for number in range(clients):
        sent = threading.Event()
        share = given[number * len(given) // clients : (number + 1) * len(given) // clients]
        threads.append(threading.Thread(target=run, args=(share, number % 2 == 0, sent)))
        threads[-1].start()
        assert sent.wait(PATIENCE_S), faults
    engine.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return found


def check(given: Sequence[Wish], answers: Mapping[str, Answer], expected: Mapping[str, Answer]) -> None:
    """Each request was told what is expected, to the last bit of its log-probabilities; one that was given up, the
    beginning of it."""
    assert sorted(answers) == sorted(expected)
    for wish in given:
        name = wish.submit.request_id
        got, wanted = answers[name], expected[name]
        assert isinstance(got.end, Finished), got.end
        assert isinstance(wanted.end, Finished)
        assert got.tokens == wanted.tokens[: len(got.tokens)], name
        if got.end.reason == "abort":
            assert wish.leaves is not None and len(got.tokens) >= wish.leaves
            continue
        assert got.tokens == wanted.tokens, name
        assert _without_hits(got.end) == _without_hits(wanted.end)


def _without_hits(end: Finished) -> Finished:
    return replace(end, usage=replace(end.usage, cached_tokens=0))


class _Reader:
    """Takes in the messages of a request, the last of which must be terminal and the only one that is."""

    def __init__(self, wish: Wish, leave: Callable[[str], None]) -> None:
        self._wish, self._leave, self._left = wish, leave, False
        self._tokens: list[Token] = []
        self._end: Finished | Failed | None = None
        self.take([])

    def take(self, batch: Sequence[FromEngine]) -> None:
        for message in batch:
            assert self._end is None and message.request_id == self._wish.submit.request_id
            if isinstance(message, Token):
                self._tokens.append(message)
            else:
                self._end = message
        if self._wish.leaves is not None and not self._left and len(self._tokens) >= self._wish.leaves:
            self._left = True
            self._leave(self._wish.submit.request_id)

    def answer(self) -> Answer:
        assert self._end is not None
        return Answer(tuple(self._tokens), self._end)


def _ask(client: EngineClient, share: Sequence[Wish], tell: Callable[[], object]) -> dict[str, Answer]:
    """Read one after the other, so that what comes to the others meanwhile piles up."""
    at_once = _at_once(share)
    mailboxes = [client.submit(wish.submit) for wish in share[:at_once]]
    tell()
    found = {}
    for number, wish in enumerate(share):
        mailbox = mailboxes[number] if number < at_once else client.submit(wish.submit)
        reader = _Reader(wish, client.abort)
        while batch := mailbox.wait_batch(PATIENCE_S):
            reader.take(batch)
        found[mailbox.request_id] = reader.answer()
    return found


async def _ask_from_loop(client: EngineClient, share: Sequence[Wish], tell: Callable[[], object]) -> dict[str, Answer]:
    """Read all together; each late request is sent when an early one has ended."""
    late = list(share[_at_once(share) :])

    async def read(wish: Wish, mailbox: Mailbox) -> dict[str, Answer]:
        reader = _Reader(wish, client.abort)
        while batch := await asyncio.wait_for(mailbox.next_batch(), PATIENCE_S):
            reader.take(batch)
        found = {mailbox.request_id: reader.answer()}
        if not late:
            return found
        following = late.pop(0)
        return found | await read(following, client.submit(following.submit))

    early = [(wish, client.submit(wish.submit)) for wish in share[: _at_once(share)]]
    tell()
    found: dict[str, Answer] = {}
    for answers in await asyncio.gather(*(read(*one) for one in early)):
        found |= answers
    return found


def _at_once(share: Sequence[Wish]) -> int:
    """How many of its requests a client sends at the beginning."""
    return 2 * len(share) // 3
