"""Constraint: a structure that was compiled for a model. Requests take copies of its matcher."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher

from .errors import EngineError
from .token_table import Allowed, TokenTable
from .trigger import Trigger

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Constraint:
    """matcher: at the beginning, never advanced. trigger: what it waits for. is_json: it is JSON or holds some, whose
    numbers are kept short.

    Copies share what the matcher has learned, and its fate if it meets a limit of complexity: `broken` is set then.
    """

    table: TokenTable
    matcher: LLMatcher
    trigger: Trigger | None
    is_json: bool
    broken: bool = field(default=False)


def allowed_of(bitmask: bytes, table: TokenTable) -> Allowed:
    """By token id, `end_id` included, from the matcher's bits."""
    return np.unpackbits(np.frombuffer(bitmask, np.uint8), count=table.size + 1, bitorder="little").astype(np.bool_)


def guarded(matcher: LLMatcher, work: Callable[[], T]) -> T:
    """The result of one call into the library; its failures, even panics, as EngineError."""
    try:
        result = work()
    except BaseException as error:  # a panic is no Exception, but must end no thread
        raise EngineError(f"the matcher broke: {error}") from error
    if matcher.is_error():
        raise EngineError(" ".join(matcher.get_error().replace("<non-verbose/>", "").split()))
    return result
