"""The tensors that belong to one quantised matrix, checked as they are taken."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..checkpoint import RawTensor, Tensor
from ..errors import CheckpointError, UnsupportedModelError
from ..fields import Fields

Tensors = Mapping[str, RawTensor]
Find = Callable[[Fields, Tensors], Callable[[str], Tensor | None]]

REMEDY = "download the model again, or convert it again"
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<u4", "I8": "u1"}


@dataclass(frozen=True, slots=True)
class Parts:
    """Access to the parts of the matrix whose codes are `codes`."""

    tensors: Tensors
    codes: RawTensor

    def take(self, name: str, formats: Sequence[str], *shapes: tuple[int, ...]) -> RawTensor:
        """The part `name`, in one of the formats and of one of the shapes; CheckpointError where it is not so."""
        part = self.tensors.get(name)
        if part is None:
            raise self.broken(f"belongs to {name!r}, which is missing")
        if part.format not in formats:
            raise self.broken(f"belongs to {name!r}, which is {part.format} and not {' or '.join(formats)}")
        if part.shape not in shapes:
            expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise self.broken(
                f"of shape {self.codes.shape} does not fit {name!r} of shape {part.shape}, {expected} expected"
            )
        return part

    def matrix(self, kind: str) -> tuple[int, int]:
        """The sizes of the codes, which must be a matrix of this type."""
        if self.codes.format != kind or len(self.codes.shape) != 2:
            raise self.broken(f"is {self.codes.format} {self.codes.shape}, not a matrix of {kind}")
        return self.codes.shape[0], self.codes.shape[1]

    def broken(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.codes.file}: tensor {self.codes.name!r} {problem}; {REMEDY}")

    def unsupported(self, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.codes.file}: tensor {self.codes.name!r} {problem}, which is not supported; "
            "use the original model or a GGUF of it"
        )


def values_of(tensor: RawTensor) -> NDArray[Any]:
    """The tensor's entries in its shape, a view: numbers, or the bits of a type that NumPy does not have."""
    values: NDArray[Any] = tensor.data.view(_DTYPES.get(tensor.format, "u1"))
    return values.reshape(tensor.shape)
