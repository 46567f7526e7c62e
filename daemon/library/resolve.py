"""What a model is called on a command line: a path, or the name of one that was pulled."""

from pathlib import Path

from ..paths import models_folder
from .shelf import Shelf


def model_path(name: Path) -> Path:
    """The path of a model: `name` itself where it exists, else that of the pulled model of this name.

    What is neither stays as it is: whoever opens it says what is wrong with it. Raises LibraryError for a name that
    several pulled models have.
    """
    if name.exists():
        return name
    shelf = Shelf(models_folder())
    kept = shelf.find(str(name))
    return name if kept is None else shelf.path(kept)
