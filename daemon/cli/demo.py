"""`isotherm demo`: build the embedded demo model."""

from .output import out, refusals
from .progress import progress_bars


def demo() -> None:
    """Build the embedded demo model, unless it is there, and print where it lies.

    It is SmolLM2-135M-Instruct upcycled to 8 experts, of which 2 are active.
    `isotherm serve` without a model builds it too, and serves it.

    Example: isotherm bench "$(isotherm demo)"
    """
    from ..assembly import demo_model

    with refusals(), progress_bars() as report:
        path = demo_model(report)
    out.out(str(path), highlight=False)
