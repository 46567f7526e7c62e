"""Verdict: whether a model that is still on the hub would fit here, by its header alone, and how fast it would be."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...experts.errors import CheckpointError, ModelError
from ...experts.outline import outline
from ...experts.progress import Progress
from ...placement.plan import Plan
from ...placement.room import FitError
from ..calibrate import kept_profile
from ..config import Config
from ..machine import default_threads, free_memory
from ..memory import GIB, RESERVE, MemoryPlanError, demand_of, plan_blocks
from ..planning import PlanOptions, make_plan
from .choices import Choice
from .hub import Hub, Listing
from .names import LibraryError

_HEADS = 8 << 20, 64 << 20  # bytes of a file that are tried for its header
_PACKED = 0.9  # of a file's size its packed weights need at least
_CONTEXT = 4096  # tokens that a model which fits has room for


@dataclass(frozen=True, slots=True)
class Verdict:
    """told: why not, or what it would need. rate: decode tokens/s that a plan predicts, None where none was made."""

    choice: Choice
    fits: bool
    told: str
    rate: float | None = None


def verdicts(hub: Hub, listing: Listing, choices: Sequence[Choice], progress: Progress) -> Iterator[Verdict]:
    """One for each choice, the best first, each made when it is asked for."""
    usable = max(free_memory() - RESERVE, 0)
    for choice in choices:
        if choice.size * _PACKED > usable:
            told = f"{choice.size / GIB:.1f} GiB are more than the {usable / GIB:.1f} GiB of memory that can be used"
            yield Verdict(choice, False, told)
        else:
            yield _judged(hub, listing, choice, progress)


def best(found: Iterator[Verdict], repo_id: str) -> Verdict:
    """The first that fits. Raises LibraryError where none does."""
    refused = []
    for verdict in found:
        if verdict.fits:
            return verdict
        refused.append(f"{verdict.choice.label}: {verdict.told}")
    raise LibraryError(
        f"nothing of {repo_id} fits here ({'; '.join(refused)}); name one all the same as {repo_id}:FORMAT, or a "
        "smaller model"
    )


def _judged(hub: Hub, listing: Listing, choice: Choice, progress: Progress) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        for size in (None,) if choice.is_folder else _HEADS:
            path = _head(hub, listing, choice, size, Path(folder))
            try:
                return _planned(path, choice, progress)
            except CheckpointError as error:
                told = str(error).replace(f"{path}: ", "")
            except (ModelError, FitError, MemoryPlanError) as error:
                return Verdict(choice, False, str(error).replace(str(path), choice.files[0].path))
    return Verdict(choice, False, told)


def _head(hub: Hub, listing: Listing, choice: Choice, size: int | None, folder: Path) -> Path:
    """A file with the beginning of a .gguf file, or a folder with a config.json."""
    if size is None:
        file = next(file for file in choice.files if file.path == "config.json")
        hub.head(listing, file, _HEADS[0], folder / "config.json")
        return folder
    path = folder / PurePosixPath(choice.files[0].path).name
    hub.head(listing, choice.files[0], size, path)
    return path


def _planned(path: Path, choice: Choice, progress: Progress) -> Verdict:
    """Raises ModelError, FitError and MemoryPlanError."""
    shape = outline(path, Config().kv_cache)
    plan_blocks(demand_of(shape, min(shape.max_context, _CONTEXT)), free_memory())
    told = f"{shape.nbytes / GIB:.1f} GiB of weights in memory"
    kept = kept_profile(default_threads())
    if kept is None or not set(shape.kinds) <= set(kept.cpu.products):  # measuring takes a minute: not for a question
        return Verdict(choice, True, told)
    plan: Plan = make_plan(PlanOptions(model=path, context=min(shape.max_context, _CONTEXT)), progress)
    return Verdict(choice, True, told, plan.predicted_decode_tok_s.value)
