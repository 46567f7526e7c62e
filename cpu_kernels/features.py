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
    needs: tuple[frozenset[str], ...]  # alternatives: a CPU with all features of one of them will do
    registers: int = 16
    bf16: bool = False  # vdpbf16ps on 512-bit registers
    vnni: int = 0  # bits of the widest vpdpbusd
    avx2: bool = False  # vpmaddubsw, vpshufb and others on 256-bit registers
    half: bool = False  # hardware float16 conversion


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_VNNI_256 = _AVX2 | {"avx512f", "avx512vl", "avx512vnni"}
_AVX512 = _VNNI_256 | {"avx512bw"}
TIERS = (  # the best first
    Tier("avx512_bf16", (_AVX512 | {"avx512bf16"},), registers=32, bf16=True, vnni=512, avx2=True, half=True),
    Tier("avx512_vnni", (_AVX512,), registers=32, vnni=512, avx2=True, half=True),
    Tier("avx_vnni", (_AVX2 | {"avxvnni"}, _VNNI_256), vnni=256, avx2=True, half=True),
    Tier("avx2", (_AVX2,), avx2=True, half=True),
    Tier("portable", (frozenset(),)),
)


def tiers_of(features: frozenset[str]) -> tuple[Tier, ...]:
    """The tiers that `features` hold, the best first and the portable one last."""
    return tuple(tier for tier in TIERS if any(needs <= features for needs in tier.needs))


def tier_of(features: frozenset[str]) -> Tier:
    """The best tier that `features` hold."""
    return tiers_of(features)[0]


def host_tier() -> Tier:
    """The tier of the code that this process generates."""
    return tier_of(target_features())
