"""Structures: compiles what an answer may look like, once for all requests that ask for the same."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as CompileTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits

from .constraint import Constraint, guarded
from .errors import EngineError, InvalidRequestError, OverloadedError
from .json_schema import check_schema
from .structure import Structure
from .token_table import TokenTable, Vocabulary
from .trigger import Trigger

# Compact JSON, with a space after a separator if the model likes it: a model that may write any space may never end.
# Escapes by number are left out: two of them make one character, which lengths do not know.
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}
_AFTER_TRIGGER = "start: SPACE? body\nSPACE: /[ \\n]{{1,4}}/\nbody: %json {}"
_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureLimits:
    """source, trigger: characters. kept: compiled structures. at_once: compiled at the same time. compile_s: seconds
    until one is given up. The others are named as in llguidance's LLParserLimits, nearly.
    """

    source: int = 256 * 1024
    trigger: int = 64
    kept: int = 64
    at_once: int = 2
    compile_s: float = 5.0
    lexer_fuel: int = 1_000_000
    step_fuel: int = 200_000
    states: int = 50_000
    grammar_size: int = 200_000
    row: int = 2_000
    step_items: int = 50_000


class Structures:
    """Of one model. Thread-safe; what it needs of the vocabulary is made when first asked for."""

    def __init__(self, vocabulary: Vocabulary, limits: StructureLimits | None = None) -> None:
        self._vocabulary = vocabulary
        self._limits = limits or StructureLimits()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Structure, Constraint] = OrderedDict()
        self._slots = threading.Semaphore(self._limits.at_once)
        self._workers = ThreadPoolExecutor(self._limits.at_once, "isotherm-structures")  # it starts none before work
        self._known: TokenTable | None = None

    def compile(self, structure: Structure, param: str = "structure") -> Constraint:
        """The constraint of a structure; takes up to seconds, so not for an event loop. param: the client's name of it.

        Raises InvalidRequestError that names the keyword or the place at fault, or OverloadedError.
        """
        with self._lock:
            kept = self._kept.get(structure)
            if kept is not None and not kept.broken:
                self._kept.move_to_end(structure)
                return kept
        constraint = self._in_time(structure, param)
        with self._lock:
            self._kept[structure] = constraint
            while len(self._kept) > self._limits.kept:
                self._kept.popitem(last=False)
        return constraint

    @property
    def _table(self) -> TokenTable:
        with self._lock:
            if self._known is None:
                self._known = TokenTable(self._vocabulary)
            return self._known

    def _in_time(self, structure: Structure, param: str) -> Constraint:
        limits = self._limits
        with self._slot():
            work = self._workers.submit(self._compile, structure, param)
            try:
                return work.result(limits.compile_s)
            except CompileTimeoutError:
                work.cancel()
                problem = f"{param} takes longer than {limits.compile_s:g} s to prepare; make it simpler"
                raise InvalidRequestError(problem, param) from None

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=self._limits.compile_s):
            raise OverloadedError("too many structures are being prepared; try again later", _RETRY_AFTER_S)
        try:
            yield
        finally:
            self._slots.release()

    def _compile(self, structure: Structure, param: str) -> Constraint:
        self._check(structure, param)
        is_json = structure.kind == "json_schema" or (structure.kind == "lark" and "%json" in structure.source)
        matcher = self._matcher(_grammar(structure, param), param)
        trigger = None
        if structure.trigger is not None:
            trigger = Trigger(structure.trigger, self._table, lambda rest: self._may_begin(matcher, rest))
        return Constraint(self._table, matcher, trigger, is_json)

    def _check(self, structure: Structure, param: str) -> None:
        for what, text, limit in (
            (param, structure.source, self._limits.source),
            ("the trigger", structure.trigger, self._limits.trigger),
        ):
            if text is not None and len(text) > limit:
                problem = f"{what} has {len(text)} characters; at most {limit} are allowed"
                raise InvalidRequestError(problem, param)
        if structure.trigger == "":
            raise InvalidRequestError("the trigger must not be empty", param)
        if not structure.source.isascii():
            try:
                structure.source.encode()
            except UnicodeEncodeError:
                raise InvalidRequestError(
                    f"{param} holds half of a surrogate pair; send valid Unicode", param
                ) from None

    def _matcher(self, grammar: str, param: str) -> LLMatcher:
        """A matcher at its beginning, which has shown that it can begin."""
        limits = self._limits
        library_limits = LLParserLimits(
            max_items_in_row=limits.row,
            initial_lexer_fuel=limits.lexer_fuel,
            step_lexer_fuel=limits.step_fuel,
            step_max_items=limits.step_items,
            max_lexer_states=limits.states,
            max_grammar_size=limits.grammar_size,
            verbose_errors=False,
        )
        try:
            matcher = LLMatcher(self._table.matcher_tokenizer, grammar, log_level=0, limits=library_limits)
            guarded(matcher, lambda: None)
            probe = matcher.deep_copy()
            guarded(probe, probe.compute_bitmask)
        except EngineError as error:
            raise InvalidRequestError(f"{param} cannot be served: {_plain(str(error))}", param) from None
        return matcher

    def _may_begin(self, matcher: LLMatcher, data: bytes) -> bool:
        ids = self._table.bytewise(data)
        return bool(ids) and matcher.deep_copy().validate_tokens(ids) == len(ids)


def json_for_lark(schema: str, param: str) -> str:
    """What a Lark grammar takes after %json: a schema that was checked, with what keeps its text compact.

    Raises InvalidRequestError that names the keyword or the place at fault.
    """
    return json.dumps({**check_schema(schema, param), "x-guidance": _JSON_OPTIONS})


def _grammar(structure: Structure, param: str) -> str:
    if structure.kind == "regex":
        return LLMatcher.grammar_from_regex(structure.source)
    if structure.kind == "lark":
        return structure.source
    text = json_for_lark(structure.source, param)
    if structure.trigger is not None:
        return _AFTER_TRIGGER.format(text)
    return LLMatcher.grammar_from_json_schema(text)


def _plain(reason: str) -> str:
    """The library's words without its own remedies."""
    if "NoExtension" in reason:
        return "no text can satisfy it"
    if "oneOf constraints" in reason:
        return "oneOf is only supported where it is plain that its branches exclude each other; anyOf may do"
    return reason.replace("patternProperty regexes", "patternProperties whose names")
