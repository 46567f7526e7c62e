"""What operators ask of the engine about accelerators."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ..gpu_kernels.sizes import parse_size
from .errors import InvalidRequestError
from .messages import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVram(Command):
    """Use no more than so many bytes of accelerators from now on, which are named as in plans: "gpu0". None: as many as
    at first."""

    limits: Mapping[str, int | None]

    @classmethod
    def of(cls, sizes: Mapping[str, object]) -> Self:
        """By sizes such as "6GiB". Raises InvalidRequestError for one that is none."""
        if not sizes:
            raise InvalidRequestError('name at least one accelerator and a size, such as {"gpu0": "6GiB"}')
        limits: dict[str, int | None] = {}
        for name, size in sizes.items():
            limits[name] = None if size is None else _bytes_of(name, size)
        return cls(limits=limits)


def _bytes_of(name: str, size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, str | int):
        raise InvalidRequestError(f"{name}: write a size such as 6GiB, a number of bytes, or null for all", name)
    try:
        return parse_size(str(size))
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}", name) from error


@dataclass(frozen=True, slots=True)
class ShowPlacement(Command):
    """Say where everything lies."""
