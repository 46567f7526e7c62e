"""Bounds on what a client may send in numbers. The size of a body is bounded before, see `api.middleware`."""

from collections.abc import Sequence
from typing import Any, TypeGuard

from ...daemon.errors import InvalidRequestError

MAX_MESSAGES = 10_000
MAX_BLOCKS = 50_000  # parts of messages, of all together
MAX_TOOLS = 1024
MAX_METADATA = 16
MAX_NAME = 256  # characters of an id or a name


def check_count(values: Sequence[Any], limit: int, param: str) -> None:
    """Raises InvalidRequestError for more values than allowed."""
    if len(values) > limit:
        raise InvalidRequestError(f"{param} has {len(values)} entries; at most {limit} are allowed", param)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """JSON's objects have texts as keys."""
    return isinstance(value, dict)


def objects(value: Any, limit: int, param: str) -> list[dict[str, Any]]:
    """A list of objects of bounded length. Raises InvalidRequestError."""
    if not isinstance(value, list) or not all(map(is_object, value)):
        raise InvalidRequestError(f"{param} must be a list of objects", param)
    check_count(value, limit, param)
    return value


def text_of(value: dict[str, Any], key: str, where: str, limit: int | None = None) -> str:
    """A text that must be there. Raises InvalidRequestError."""
    text = value.get(key)
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.{key} must be a string", where)
    if limit is not None and not 0 < len(text) <= limit:
        raise InvalidRequestError(f"{where}.{key} must have 1 to {limit} characters", where)
    return text
