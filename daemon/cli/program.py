"""The program's own name, for hints that can be pasted."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """How to call this program again: its bare name where the PATH finds it, else the way it was called now."""
    called = sys.argv[0]
    name = os.path.basename(called)
    if Path(called).resolve() == Path(__file__).resolve().with_name("__main__.py"):
        return f"{shlex.quote(sys.executable)} -m isotherm.daemon.cli"
    if name != "isotherm":  # another program has us as a library
        return "isotherm"
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return name
    return shlex.quote(called)
