"""Isotherm: a daemon that serves mixture-of-experts language models larger than the graphics card."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("isotherm")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"
