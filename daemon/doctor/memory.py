"""Looks at memory: speed, size, pages, and what may be locked."""

import re
from collections.abc import Iterator

from ...cpu_kernels.bandwidth import PlainReads
from ...cpu_kernels.seating import Seating
from ..calibrate import kept_profile
from ..machine import free_memory
from ..memory import GIB, RESERVE
from .finding import Finding, advice, fault, good
from .patient import Patient

_ENOUGH = 0.75  # of what was calibrated; neighbours on a shared machine take some
_READS = 3
_STALLED = 10.0  # percent of the last minute in which something waited for memory


def bandwidth(patient: Patient) -> Iterator[Finding]:
    """Plain reads by one thread, and by those that serve, against what was calibrated."""
    if free_memory() < RESERVE + GIB:
        yield advice("bandwidth", "not measured: less than 1 GiB of memory is free", "end other programs")
        return
    rates = {count: _reads(patient, count) for count in sorted({1, max(patient.threads // 2, 1), patient.threads})}
    told = "plain reads " + ", ".join(f"{rate:.0f} GB/s with {count}" for count, rate in rates.items()) + " thread(s)"
    kept = kept_profile(patient.threads)
    usual = kept.cpu.read_gb_s.get(patient.threads) if kept else None
    rate = rates[patient.threads]
    fewer = max(rates, key=lambda count: rates[count])
    if usual is None:
        yield advice("bandwidth", f"{told}; what is usual here was never measured", "isotherm calibrate")
    elif rate < _ENOUGH * usual.value:
        yield fault(
            "bandwidth",
            f"{told}; it was {usual.value:.0f} when this machine was calibrated",
            "see what else runs (top), and whether memory modules or clocks have changed; then isotherm calibrate",
        )
    elif rates[fewer] * _ENOUGH > rate:
        yield fault("bandwidth", f"{told}: more threads read less", f"serve with --threads {fewer}")
    else:
        yield good("bandwidth", told)


def _reads(patient: Patient, threads: int) -> float:
    reads = PlainReads(Seating(threads, patient.topology) if patient.cpus is None else threads)
    return max(reads.gb_s() for _ in range(_READS))


def pages(patient: Patient) -> Iterator[Finding]:
    """Huge pages, which spare a third of a decode step's time."""
    modes = patient.text("sys/kernel/mm/transparent_hugepage/enabled")
    if "[never]" in modes:
        yield fault(
            "huge pages",
            "transparent huge pages are off, so weights lie in millions of small ones",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    elif not modes:
        yield advice("huge pages", "this system has none", "a Linux kernel with transparent huge pages reads faster")
    else:
        yield good("huge pages", re.sub(r".*\[(.*)\].*", r"\1", modes))


def locked(patient: Patient) -> Iterator[Finding]:
    """What drivers may pin for copies to accelerators."""
    if not patient.accelerators:
        yield good("memlock", "not needed without accelerators")
    elif patient.memlock == -1:
        yield good("memlock", "without bound")
    else:
        yield fault(
            "memlock",
            f"only {patient.memlock // 1024} KiB may be locked; copies to accelerators want pinned memory",
            "LimitMEMLOCK=infinity in the unit, or a line '* - memlock unlimited' in /etc/security/limits.conf",
        )


def pressure(patient: Patient) -> Iterator[Finding]:
    """Whether programs wait for memory, and how much of it is swapped out."""
    some = next((line for line in patient.text("proc/pressure/memory").splitlines() if line.startswith("some")), "")
    stalled = re.search(r"avg60=([\d.]+)", some)
    if stalled and float(stalled[1]) >= _STALLED:
        yield fault(
            "memory",
            f"programs waited for memory in {float(stalled[1]):.0f} % of the last minute",
            "end other programs, or choose a smaller --kv-gib, --context or model",
        )
        return
    fields = dict(re.findall(r"^(\w+): +(\d+) kB", patient.text("proc/meminfo"), re.M))
    swapped = int(fields.get("SwapTotal", 0)) - int(fields.get("SwapFree", 0))
    if swapped > 2**20:
        yield advice(
            "memory",
            f"{swapped / 2**20:.1f} GiB are swapped out; weights among them would cost seconds a token",
            "end other programs, then: sudo swapoff -a && sudo swapon -a",
        )
    else:
        yield good("memory", f"{free_memory() / GIB:.1f} GiB can be used, nobody waits for it")


def nodes(patient: Patient) -> Iterator[Finding]:
    """Several memory nodes: each should have threads, and the system should leave pages where they are."""
    count = patient.topology.nodes
    if count == 1:
        return
    if patient.threads < count:
        yield fault(
            "memory nodes",
            f"{patient.threads} threads for {count} nodes: the others' bandwidth lies idle",
            f"serve with --threads {patient.sensible_threads}",
        )
    elif patient.text("proc/sys/kernel/numa_balancing") not in ("", "0"):
        yield advice(
            "memory nodes",
            "the system moves pages between nodes, which each have what their threads read",
            "sudo sysctl kernel.numa_balancing=0",
        )
    else:
        yield good("memory nodes", f"{count}, all with threads")


LOOKS = (bandwidth, pages, locked, pressure, nodes)
