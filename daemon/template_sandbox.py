"""The Jinja environment of chat templates: sandboxed, and bounded where one expression could ask for gigabytes.

Jinja's own sandbox denies attributes that lead out, changes to lists and dicts, and ranges over 100,000 items. Added
here are bounds on *, **, + and %, on padding methods and on format widths. A template comes with the model and may
still loop for long or double a text by ~: this stops accidents and cheap attacks, not an author who means harm.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 24  # of any string that an expression builds, and of the rendered prompt
_MAX_BITS = 1 << 12  # of an integer
_MAX_WIDTH = 1000
# A width of four digits, or one that is computed, in "%1000d", "%(name)*d", "{:1000}" or "{:{}}".
_WIDE_FORMAT = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*(?:\d{4}|\*)|\{[^{}]*:[^{}]*(?:\d{4}|\{)")
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "translate", "zfill"})


class TemplateRefusal(TemplateError):
    """The template called raise_exception."""


class GenerationTag(Extension):
    """{% generation %} marks the model's own words for training; here its body is plain output."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tag and its end."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What chat templates may use: the names that Hugging Face gives them, and nothing that leads out."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
        self.filters["tojson"] = to_json
        self.filters["indent"] = _indent
        for name in ("batch", "center", "format", "slice"):
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator; raises SecurityError where the result would be huge."""
        if not _BOUNDS[operator](left, right):
            raise SecurityError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function; padding methods of strings only with small widths."""
        is_method = isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str)
        if is_method and __obj.__name__ in _PADDING and not all(map(_is_narrow, (*args, *kwargs.values()))):
            raise SecurityError(f"{__obj.__name__}() could build a huge string")
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """The sandboxed str.format, refused for formats with a huge or computed width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(value.__self__):
            raise SecurityError("format() with a large or computed width")
        return wrapped


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The tojson filter: plain JSON without HTML escapes."""
    if indent is not None and not 0 <= indent <= _MAX_WIDTH:
        raise SecurityError(f"tojson with an indent outside 0 to {_MAX_WIDTH}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (len(width) if isinstance(width, str) else width) > _MAX_WIDTH:
        raise SecurityError(f"indent with a width over {_MAX_WIDTH}")
    return do_indent(text, width, first, blank)


def _raise(message: str) -> None:
    raise TemplateRefusal(message)


def _is_narrow(value: Any) -> bool:
    return value <= _MAX_WIDTH if isinstance(value, int) else not isinstance(value, Mapping)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) else 1


def _may_multiply(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length() <= _MAX_BITS
    times = next((value for value in (left, right) if isinstance(value, int)), 1)
    return _size(left) * _size(right) * max(times, 1) <= MAX_CHARACTERS


def _may_raise_to(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 1) <= _MAX_BITS
    return True


def _may_add(left: Any, right: Any) -> bool:
    return _size(left) + _size(right) <= MAX_CHARACTERS


def _may_format(left: Any, _right: Any) -> bool:
    return not isinstance(left, str) or _WIDE_FORMAT.search(left) is None


_BOUNDS = {"*": _may_multiply, "**": _may_raise_to, "+": _may_add, "%": _may_format}
