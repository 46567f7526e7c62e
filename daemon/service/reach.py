"""Reach: which files a service needs, which of them its sandbox hides, and who may read them."""

import os
import pwd
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .systemctl import ServiceError

# ProtectHome= and PrivateTmp= put empty folders in the place of these.
HIDDEN = tuple(Path("/") / name for name in ("home", "root", "run/user", "tmp", "var/tmp"))


def program() -> tuple[str, ...]:
    """How a service starts this very installation."""
    script = Path(sys.executable).with_name("isotherm")
    return (str(script),) if script.exists() else (sys.executable, "-m", "isotherm.daemon.cli")


def needs(models: Iterable[Path]) -> list[Path]:
    """Folders that the program and the models lie in, as far as they exist; the parts of a split model are siblings."""
    found: list[str | Path] = [sys.prefix, sys.base_prefix, Path(__file__).parents[2], *sys.path[1:]]
    for model in models:
        found += [model if model.is_dir() else model.parent, *_linked(model)]
    return list(dict.fromkeys(Path(path).absolute() for path in found if path and Path(path).exists()))


def _linked(model: Path) -> list[Path]:
    """Folders that a model's links lead to: hubs keep files elsewhere."""
    files = list(model.iterdir()) if model.is_dir() else [model]
    return [Path(os.path.realpath(file)).parent for file in files if file.is_symlink()]


def hidden(paths: Sequence[Path]) -> list[Path]:
    """Those that a sandboxed service would not see, without what lies inside another one."""
    below = [path for path in paths if any(path.is_relative_to(root) for root in HIDDEN)]
    return sorted(path for path in below if not any(path != other and path.is_relative_to(other) for other in below))


def user_for(paths: Sequence[Path]) -> str | None:
    """None if every user may read the paths, else the one that all closed ones belong to.

    A folder that hides what lies in it counts only if the service sees the folder: in a home of which it is given parts
    it does not. Raises ServiceError if there is no such user but root.
    """
    closed = [path for path in paths if not _open_to_all(path)]
    owners = {pwd.getpwuid(path.stat().st_uid).pw_name for path in closed}
    if not closed:
        return None
    if len(owners) > 1 or "root" in owners:
        raise ServiceError(
            f"{closed[0]} can be read by {', '.join(sorted(owners))} alone; let others read it (chmod -R o+rX), "
            "or name a user who may by --run-as"
        )
    return owners.pop()


def _open_to_all(path: Path) -> bool:
    within = next((other for other in hidden([path])), None)
    folders = () if within else path.parents
    return all(_others(folder, stat.S_IXOTH) for folder in folders) and _others(path, stat.S_IROTH)


def _others(path: Path, bit: int) -> bool:
    mode = path.stat().st_mode
    return bool(mode & bit) and (not stat.S_ISDIR(mode) or bool(mode & stat.S_IXOTH))
