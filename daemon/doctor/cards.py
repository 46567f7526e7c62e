"""Looks at graphics cards: is there one, does it have a driver, and can torch use it."""

import re
from collections.abc import Iterator
from pathlib import Path

from .finding import Finding, advice, fault, good
from .patient import Patient

_NVIDIA, _DISPLAY = "0x10de", "0x03"
_INSTALL = "pip install torch --index-url with a CUDA build that the driver has; see docs/accelerators.md"


def cards(patient: Patient) -> Iterator[Finding]:
    """The driver and torch's build, as far as cards are there or are asked for."""
    found = sum(_is_card(device) for device in patient.paths("sys/bus/pci/devices/*"))
    asked = [name for name in patient.accelerators if name.startswith("cuda")]
    driver = re.search(r"Kernel Module +(?:for \S+ +)?([\d.]+)", patient.text("proc/driver/nvidia/version"))
    torch = patient.torch
    if not found and not driver:
        if asked:
            yield fault(
                "graphics card", f"{', '.join(asked)} is asked for, and no card is there", "leave --accelerator out"
            )
        else:
            yield good("graphics card", "none; serving from the CPU")
    elif driver is None:
        yield fault("graphics card", f"{found} without a driver", "install NVIDIA's driver, and reboot")
    elif torch is None or not _has_cuda(torch):
        build = "torch is not installed" if torch is None else f"torch {torch} is a build without CUDA"
        grade = fault if asked else advice
        yield grade("graphics card", f"driver {driver[1]}, but {build}", _INSTALL)
    elif not patient.accelerators:
        yield advice("graphics card", f"driver {driver[1]}, not used", "serve with --accelerator cuda:0")
    else:
        yield good("graphics card", f"driver {driver[1]}, torch {torch}")


def _has_cuda(torch: str) -> bool:
    """A version without a build is the one of the package index: on Linux for x86 with CUDA."""
    return "+cu" in torch or "+" not in torch


def _is_card(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY)


LOOKS = (cards,)
