"""The nominal profiles that come with Isotherm, from data sheets. `python tests/support/nominal_machines.py FOLDER`
writes them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isotherm.placement.hardware import AcceleratorProfile, CpuProfile, Estimate, HardwareProfile, ProductCost
from isotherm.placement.hardware_file import save_profile

GIB = 1 << 30
MEMORY, VRAM, LINK, TENSOR = 0.8, 0.88, 0.82, 0.6  # of what data sheets say, that programs reach
UNPINNED = 0.4  # of the link's rate, from memory that is copied once more on its way
RATE_SPREAD, TIME_SPREAD = 0.15, 0.4  # what such numbers may be off by
REFERENCE_GHZ = 3.7  # of the core that BLOCK_NS and attention were measured on

# Nanoseconds of one core of Zen 4 (AVX-512) for a KiB of weights in cache, with 1, 2, 4, 8 tokens.
BLOCK_NS: dict[str, tuple[float, float, float, float]] = {
    "q4": (14.7, 21.2, 38.8, 76.4),
    "f32": (10.3, 11.1, 17.7, 35.2),
    "f16": (18.1, 20.3, 35.5, 70.3),
    "bf16": (13.3, 13.5, 18.0, 35.6),
    "q4m": (16.0, 23.0, 40.2, 78.4),
    "q5": (19.5, 25.1, 36.7, 65.9),
    "q5m": (19.7, 25.5, 36.9, 68.7),
    "q8": (9.9, 11.2, 20.9, 40.9),
    "q2k": (43.2, 59.4, 95.1, 188.3),
    "q3k": (39.0, 50.0, 73.9, 128.2),
    "q4k": (20.2, 27.4, 46.9, 90.8),
    "q5k": (23.3, 29.5, 42.8, 86.2),
    "q6k": (17.9, 22.3, 33.9, 62.1),
    "iq4k": (27.2, 34.0, 49.3, 89.8),
    "iq4": (19.9, 26.6, 41.9, 79.1),
    "mx4": (20.0, 26.9, 41.1, 78.2),
    "nv4": (20.0, 28.1, 45.4, 81.3),
    "q2": (28.8, 40.1, 72.0, 136.3),
    "f8": (42.3, 52.5, 71.9, 142.1),
    "q4b": (14.9, 20.9, 38.5, 76.1),
    "q4z": (16.7, 23.4, 41.1, 78.7),
    "q4zb": (16.6, 23.6, 41.1, 78.5),
    "q8b": (9.9, 11.4, 21.0, 40.4),
}
AVX2_SLOWER = (1.5, 1.6, 1.65, 1.66)
ATTENTION_GOPS = {"int16": 235.0, "int8": 225.0, "f16": 142.0, "bf16": 140.0, "f32": 145.0}  # a core
AVX2_ATTENTION = 0.6
KV_SHARE = {"int16": 0.7, "int8": 0.4, "f16": 0.55, "bf16": 0.5, "f32": 0.7}  # of the memory's rate


@dataclass(frozen=True, slots=True)
class Host:
    """channels of mt_s megatransfers a second, 8 bytes each; core_gb_s: what one core reads at most."""

    title: str
    tier: str
    cores: int
    ghz: float
    channels: int
    mt_s: int
    core_gb_s: float
    ram_gib: int

    @property
    def read_gb_s(self) -> float:
        return MEMORY * self.channels * self.mt_s * 8 / 1e3


@dataclass(frozen=True, slots=True)
class Card:
    """vram_gb_s and tflops (dense tensor, 16-bit floats summed in 32 bits) by the data sheet."""

    title: str
    vram_gib: int
    vram_gb_s: float
    tflops: float


HOSTS = {
    "ddr4-desktop": Host("8 cores (AVX2, 4.3 GHz), 2 channels of DDR4-3200", "avx2", 8, 4.3, 2, 3200, 24, 64),
    "ddr5-desktop": Host(
        "16 cores (AVX-512, 4.8 GHz), 2 channels of DDR5-5600", "avx512_bf16", 16, 4.8, 2, 5600, 36, 96
    ),
    "ddr4-server-8ch": Host("32 cores (AVX2, 3.2 GHz), 8 channels of DDR4-3200", "avx2", 32, 3.2, 8, 3200, 16, 256),
    "ddr5-server-8ch": Host(
        "32 cores (AVX-512, 4.0 GHz), 8 channels of DDR5-5200", "avx512_bf16", 32, 4.0, 8, 5200, 26, 256
    ),
    "ddr5-server-12ch": Host(
        "32 cores (AVX-512, 3.5 GHz), 12 channels of DDR5-4800", "avx512_bf16", 32, 3.5, 12, 4800, 24, 384
    ),
}
CARDS = {
    "rtx3060": Card("RTX 3060 12 GB", 12, 360, 25.3),
    "rtx3090": Card("RTX 3090", 24, 936, 71.0),
    "rtx4090": Card("RTX 4090", 24, 1008, 165.2),
    "rtx5090": Card("RTX 5090", 32, 1792, 209.5),
}
PCIE_GB_S = {3: 0.985, 4: 1.969, 5: 3.938}  # of a lane, each way
MACHINES = (  # host, card, how many, PCIe generation, lanes
    *((host, None, 0, 0, 0) for host in HOSTS),
    ("ddr4-desktop", "rtx3060", 1, 4, 16),
    ("ddr4-desktop", "rtx3090", 1, 4, 16),
    ("ddr5-desktop", "rtx3060", 1, 4, 16),
    ("ddr5-desktop", "rtx3090", 1, 4, 16),
    ("ddr5-desktop", "rtx3090", 2, 4, 8),
    ("ddr5-desktop", "rtx4090", 1, 4, 16),
    ("ddr5-desktop", "rtx5090", 1, 5, 16),
    ("ddr4-server-8ch", "rtx3090", 1, 4, 16),
    ("ddr4-server-8ch", "rtx3090", 2, 4, 16),
    ("ddr5-server-8ch", "rtx4090", 1, 4, 16),
    ("ddr5-server-12ch", "rtx5090", 1, 5, 16),
)


def rate(value: float) -> Estimate:
    return Estimate(round(value, 3), RATE_SPREAD)


def duration(value: float) -> Estimate:
    return Estimate(round(value, 3), TIME_SPREAD)


def cpu(host: Host) -> CpuProfile:
    counts = sorted({*(1 << i for i in range(7) if 1 << i < host.cores), host.cores})
    cores_ghz, avx2 = host.cores * host.ghz / REFERENCE_GHZ, host.tier == "avx2"
    products = {
        kind: ProductCost(
            read_gb_s=rate(host.read_gb_s),
            block_ns_per_kib=tuple(
                duration(ns * (slower if avx2 else 1) / cores_ghz)
                for ns, slower in zip(BLOCK_NS[kind], AVX2_SLOWER, strict=True)
            ),
            overlap=Estimate(0.9, 0.1),
        )
        for kind in BLOCK_NS
    }
    return CpuProfile(
        name=host.title,
        tier=host.tier,
        threads=host.cores,
        cores=host.cores,
        read_gb_s={n: rate(min(n * host.core_gb_s, host.read_gb_s)) for n in counts},
        products=products,
        # meetings of more cores take longer
        call_us=duration(6 + 0.6 * host.cores),
        expert_us=duration(0.2),
        op_us=duration(1 + 0.1 * host.cores),
        step_us=duration(40 + host.cores),
        token_ns_per_value=duration(4 / cores_ghz),
        kv_gb_s={kind: rate(share * host.read_gb_s) for kind, share in KV_SHARE.items()},
        attention_gops={
            kind: rate(gops * cores_ghz * (AVX2_ATTENTION if avx2 else 1)) for kind, gops in ATTENTION_GOPS.items()
        },
        ram_bytes=host.ram_gib * GIB,
        free_bytes=(host.ram_gib - 6) * GIB,
    )


def accelerator(card: Card, generation: int, lanes: int) -> AcceleratorProfile:
    link = LINK * PCIE_GB_S[generation] * lanes
    return AcceleratorProfile(
        name=card.title,
        vram_bytes=card.vram_gib * GIB,
        free_bytes=card.vram_gib * GIB - GIB // 2,
        read_gb_s=rate(VRAM * card.vram_gb_s),
        tflops={"other": rate(TENSOR * card.tflops)},
        launch_us=duration(4),
        hop_us=duration(15),
        to_gb_s=rate(link),
        from_gb_s=rate(link),
        to_unpinned_gb_s=rate(UNPINNED * link),
        from_unpinned_gb_s=rate(UNPINNED * link),
    )


def machines() -> Iterator[HardwareProfile]:
    for name, card, count, generation, lanes in MACHINES:
        host = HOSTS[name]
        source = (
            f"data sheets: {host.title}, {MEMORY:.0%} of {host.read_gb_s / MEMORY:.1f} GB/s; kernels as measured on "
            "one core of Zen 4, by cores and clock"
        )
        cards: tuple[AcceleratorProfile, ...] = ()
        if card:
            cards = (accelerator(CARDS[card], generation, lanes),) * count
            source += (
                f"; {CARDS[card].title}, {VRAM:.0%} of {CARDS[card].vram_gb_s:g} GB/s and {TENSOR:.0%} of "
                f"{CARDS[card].tflops:g} dense tensor TFLOPS, each on {LINK:.0%} of PCIe {generation}.0 x{lanes}"
            )
            name = f"{name}-{f'{count}x-' if count > 1 else ''}{card}"
        yield HardwareProfile(
            name=name, nominal=True, source=source, cpu=cpu(host), accelerators=cards, ssd_read_gb_s=rate(5.0)
        )


if __name__ == "__main__":
    for machine in machines():
        save_profile(machine, Path(sys.argv[1]) / f"{machine.name}.json")
