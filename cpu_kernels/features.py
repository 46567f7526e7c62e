"""Which instructions kernels may use: decided once, from the same feature set that Numba compiles for."""

from dataclasses import dataclass

from numba.core import config
from numba.core.codegen import get_host_cpu_features


def target_features() -> frozenset[str]:
    """Names of the CPU features Numba generates code for (NUMBA_CPU_FEATURES, else this machine's)."""
    text: str = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))


@dataclass(frozen=True, slots=True)
class Tier:
    """A level of instruction sets.

    A target intrinsic that the CPU lacks aborts the process in the code generator, so kernels ask here first.
    registers: how many there are for vectors.
    """

    name: str
    registers: int
    bf16: bool  # vdpbf16ps on 512-bit registers
    vnni: bool  # vpdpbusd on 512-bit registers
    maddubs: bool  # vpmaddubsw on 256-bit registers
    half: bool  # hardware float16 conversion


def tier_of(features: frozenset[str]) -> Tier:
    """The best tier that `features` holds whole."""
    if {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c"} <= features:
        bf16 = "avx512bf16" in features
        name = "avx512_bf16" if bf16 else "avx512_vnni"
        return Tier(name, 32, bf16=bf16, vnni=True, maddubs=False, half=True)
    if {"avx2", "fma", "f16c"} <= features:
        return Tier("avx2", 16, bf16=False, vnni=False, maddubs=True, half=True)
    return Tier("portable", 16, bf16=False, vnni=False, maddubs=False, half=False)


def host_tier() -> Tier:
    """The tier of the code that this process generates."""
    return tier_of(target_features())
