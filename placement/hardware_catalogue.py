"""Profiles by name: nominal ones of common workstations, which come with Isotherm as files."""

import os
from difflib import get_close_matches
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from .hardware import HardwareProfile
from .hardware_file import HardwareError, load_profile, parse_profile

_ENDING = ".json"


def nominal_names() -> tuple[str, ...]:
    """The names of the profiles that come with Isotherm."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)))


def nominal_profile(name: str) -> HardwareProfile:
    """One of `nominal_names`."""
    return parse_profile((_folder() / (name + _ENDING)).read_bytes(), name)


def find_profile(name_or_path: str | Path) -> HardwareProfile:
    """The profile that comes with Isotherm by that name, else that of a file. Raises HardwareError."""
    text = str(name_or_path)
    names = nominal_names()
    if text in names:
        return nominal_profile(text)
    path = Path(text)
    if path.suffix == _ENDING or len(path.parts) > 1 or os.path.exists(path):  # which takes a name of any length
        return load_profile(path)
    near = get_close_matches(text, names, 3, 0.5)
    raise HardwareError(
        f"{text}: neither a file nor a hardware profile that comes with Isotherm; "
        f"{'perhaps ' + ' or '.join(near) if near else '`isotherm calibrate --list` shows their names'}"
    )


def _folder() -> Traversable:
    package = __package__.rpartition(".")[0]
    return resources.files(package) / "profiles" / "hardware"
