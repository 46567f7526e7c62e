"""The tables of a hardware profile."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from .output import plus_minus

if TYPE_CHECKING:
    from ...placement.hardware import AcceleratorProfile, Estimate, HardwareProfile

_GIB = 2**30


def profile_tables(profile: "HardwareProfile") -> Iterator[Table]:
    """What it is of, rates and times, products by kind, and cards."""
    yield _machine(profile)
    yield _terms(profile)
    yield _products(profile)
    for card in profile.accelerators:
        yield _card(card)


def names_table(profiles: Sequence["HardwareProfile"]) -> Table:
    """One row each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("CPU")
    for heading in ("RAM, GiB", "reads, GB/s", "cards"):
        table.add_column(heading, justify="left" if heading == "cards" else "right")
    for profile in profiles:
        cards = ", ".join(card.name for card in profile.accelerators)
        rate, ram = max(each.value for each in profile.cpu.read_gb_s.values()), profile.cpu.ram_bytes / _GIB
        table.add_row(profile.name, profile.cpu.name, f"{ram:.0f}", f"{rate:.0f}", cards)
    return table


def _machine(profile: "HardwareProfile") -> Table:
    cpu = profile.cpu
    table = _plain()
    table.add_row("machine", profile.name)
    table.add_row("", profile.source if not profile.nominal else f"nominal, by {profile.source}")
    table.add_row("CPU", f"{cpu.name}, {cpu.cores} cores, {cpu.threads} threads, {cpu.tier}")
    table.add_row("memory", f"{cpu.ram_bytes / _GIB:.1f} GiB, of which {cpu.free_bytes / _GIB:.1f} can be used")
    if profile.ssd_read_gb_s.value:
        table.add_row("disk", f"{shown(profile.ssd_read_gb_s)} GB/s")
    return table


def _terms(profile: "HardwareProfile") -> Table:
    cpu = profile.cpu
    table = _plain()
    table.columns[1].justify = "right"
    table.add_column()
    for threads, rate in cpu.read_gb_s.items():
        table.add_row(f"plain reads, {threads} thread{'s' if threads > 1 else ''}", shown(rate), "GB/s")
    for kind, rate in cpu.kv_gb_s.items():
        table.add_row(f"attention of a token, {kind}", shown(rate), "GB/s of keys and values")
    for kind, rate in cpu.attention_gops.items():
        table.add_row(f"attention of a prompt, {kind}", shown(rate), "GOPS")
    table.add_row("a step by itself", shown(cpu.step_us), "us")
    table.add_row("an op of a layer", shown(cpu.op_us), "us")
    table.add_row("experts of a layer, whatever they are", shown(cpu.call_us), "us")
    table.add_row("an expert, whatever it holds", shown(cpu.expert_us), "us")
    table.add_row("a token's norms and sums", shown(cpu.token_ns_per_value), "ns a layer and value")
    return table


def _products(profile: "HardwareProfile") -> Table:
    caption = "weights from memory, GB/s; in cache, ns a KiB with 1, 2, 4 and 8 tokens; how far both overlap"
    table = Table("kind", box=None, pad_edge=False, caption=caption, caption_justify="left")
    for heading in ("GB/s", "1", "2", "4", "8", "overlap"):
        table.add_column(heading, justify="right", overflow="fold")  # no digit is cut off
    for kind, cost in profile.cpu.products.items():
        table.add_row(kind, *map(shown, (cost.read_gb_s, *cost.block_ns_per_kib, cost.overlap)))
    return table


def _card(card: "AcceleratorProfile") -> Table:
    table = _plain()
    table.columns[1].justify = "right"
    table.add_column()
    table.add_row("card", card.name)
    table.add_row("memory", f"{card.vram_bytes / _GIB:.1f}", "GiB")
    table.add_row("free", f"{card.free_bytes / _GIB:.1f}", "GiB")
    table.add_row("reads", shown(card.read_gb_s), "GB/s")
    for kind, rate in card.tflops.items():
        table.add_row(f"products, {kind}", shown(rate), "TFLOPS")
    table.add_row("an op", shown(card.launch_us), "us")
    table.add_row("activations to or from it", shown(card.hop_us), "us")
    table.add_row("link to it", shown(card.to_gb_s), "GB/s")
    table.add_row("link from it", shown(card.from_gb_s), "GB/s")
    table.add_row("link to it, memory not pinned", shown(card.to_unpinned_gb_s), "GB/s")
    table.add_row("link from it, memory not pinned", shown(card.from_unpinned_gb_s), "GB/s")
    return table


def _plain() -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column()
    return table


def shown(estimate: "Estimate") -> str:
    """A value to three digits, with its spread if it has one."""
    spread = f" {plus_minus()} {estimate.spread:.0%}" if estimate.spread else ""
    return f"{estimate.value:.3g}{spread}"
