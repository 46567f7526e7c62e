"""What `isotherm calibrate` measures: this machine, with the kernels that serve."""

from collections.abc import Collection

from ..experts.progress import Progress
from ..placement.hardware import HardwareProfile


def this_machine(kinds: Collection[str], threads: int | None, progress: Progress) -> HardwareProfile:
    """The kept profile of this machine with at least these kinds of packed weights; what is missing is measured and
    kept. threads: None is what `serve` takes."""
    raise NotImplementedError
