"""Compiles Triton kernels for a card that is not here: `python compile_kernels.py ARCH MODULE` in its own process.

The module's `launch()` launches kernels on tensors of the host. Each is compiled to the card's own code, as a launch on
the card would do, and then not run. Prints JSON: of each kernel its name, constants, PTX, bytes of code and of shared
memory, and whether the compiler may fuse what it likes.
"""

import importlib
import json
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver


class _AbsentCard:
    """What a launch asks of a driver before it runs anything."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(arch: str, module: str) -> None:
    compiled: dict[int, dict[str, Any]] = {}
    compile_only = JITFunction.run

    def run(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found = compile_only(self, *args, grid=grid, warmup=True, **options)
        compiled[id(found)] = {
            "name": self.__name__,
            "constants": str([*(value for value in args if hasattr(value, "_fields")), options]),
            "ptx": found.asm["ptx"],
            "code": len(found.asm["cubin"]),
            "shared": found.metadata.shared,
            "fuses": found.metadata.enable_fp_fusion,
        }
        return found

    JITFunction.run = run
    driver.set_active(_AbsentCard(int(arch)))
    importlib.import_module(module).launch()
    json.dump(list(compiled.values()), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
