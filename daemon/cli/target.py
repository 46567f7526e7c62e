"""Files that commands are to write, looked at before the work is done."""

import os
from pathlib import Path

from ..config import readable
from .output import ExitCode, fail


def check_target(option: str, path: Path | None) -> None:
    """Refuse a file that could not be written, as far as can be seen; None is no file."""
    if path is None:
        return
    folder = path.absolute().parent
    # Not by methods of the path, which raise for a name that is too long.
    if os.path.isdir(path):
        what = "is a folder"
    elif not os.path.isdir(folder):
        what = "lies in no folder that exists"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        what = "cannot be written"
    else:
        return
    fail(f"{option} {readable(path)} {what}; name a file in a folder that exists and can be written", ExitCode.USAGE)
