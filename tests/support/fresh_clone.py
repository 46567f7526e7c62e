"""A clone as a user has it after `make setup`: files of his own, and an environment, made of this one's packages."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import isotherm
from isotherm.cpu_kernels.jit import cache_folder
from numba.core.caching import UserProvidedCacheLocator

SOURCE = Path(isotherm.__file__).parent


def fresh_clone(folder: Path) -> Path:
    """Make it there; the folder's name does not matter."""
    listed = ["git", "-C", str(SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0")):
        if (SOURCE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, folder / name)
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    place = next(environment.glob("lib/python*/site-packages"))
    (place / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-e", str(folder)]
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), *install]
    subprocess.run(pip, check=True, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    (environment / ".installed").touch()
    return folder


def copy_compiled(folder: Path, clone: Path) -> None:
    """Give the clone, by the cache in `folder`, what this one has compiled: numba keeps it by the paths of sources."""
    for package in sorted({path.parent for path in (SOURCE / "cpu_kernels").rglob("*.py")}):
        here, there = (
            UserProvidedCacheLocator.get_suitable_cache_subpath(str(root / package.relative_to(SOURCE) / "any.py"))
            for root in (SOURCE, clone)
        )
        if (cache_folder() / here).exists():
            shutil.copytree(cache_folder() / here, folder / "kernels" / cache_folder().name / there)
