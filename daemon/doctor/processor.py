"""Looks at the processor: instructions, threads, clocks, and whether a layer comes out right."""

from collections.abc import Iterator

from ...cpu_kernels.features import TIERS, host_tier
from ...cpu_kernels.jit import cache_folder
from ...experts.random_weights import MoeShape
from ..bench_moe import MoeOptions, measure_moe
from .finding import Finding, advice, fault, good
from .patient import Patient

_LAYER = MoeShape(experts=8, active=2, hidden=1024, intermediate=512)
_TOLERANCE = 0.05  # of a layer's output, from rounding activations; measured are 0.005 to 0.01
_FLAGS = {  # as /proc/cpuinfo calls them: the best tier that a CPU can have by them
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni",
    "avx2": "avx2",
}
_CAPPED = 0.9  # of the highest clock


def instructions(patient: Patient) -> Iterator[Finding]:
    """Which kernels run, against what the processor says of itself."""
    flags = next((line for line in patient.text("proc/cpuinfo").splitlines() if line.startswith("flags")), "").split()
    names = [tier.name for tier in TIERS]
    best = next((_FLAGS[flag] for flag in _FLAGS if flag in flags), "portable")
    used = host_tier().name
    if names.index(used) > names.index(best):
        yield advice(
            "instructions",
            f"kernels are compiled for {used}, but the processor has {best}",
            "unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, and start the daemon again",
        )
    elif used == "portable":
        yield advice(
            "instructions",
            "the processor has no AVX2: kernels without it are several times slower",
            "serve on another machine, or put more on an accelerator",
        )
    else:
        yield good("instructions", f"kernels for {used}")


def layer(patient: Patient) -> Iterator[Finding]:
    """Run a layer of experts with random weights against its definition."""
    threads = max(1, min(patient.threads, patient.topology.logical_cpus or patient.threads))
    row = measure_moe(
        MoeOptions(shape=_LAYER, format="Q4_0", threads=threads, tokens=(4,)), lambda stage, done, total: None
    )[0]
    if row.product_error <= _TOLERANCE:
        yield good("a layer", f"4 tokens in {row.us:.0f} us with {threads} threads, off by {row.product_error:.2%}")
    else:
        yield fault(
            "a layer",
            f"the kernels compute something else than they should: off by {row.product_error:.0%}",
            f"remove {cache_folder()} and start again; if that is no help, the memory or the processor is broken",
        )


def threads(patient: Patient) -> Iterator[Finding]:
    """Their number against cores, and against what the control group lets run."""
    topology, count, sensible = patient.topology, patient.threads, patient.sensible_threads
    cores, logical = len(topology.cores), topology.logical_cpus
    remedy = f"serve with --threads {sensible}, or leave it out; isotherm bench --threads auto measures them all"
    if count > logical:
        yield fault("threads", f"{count} threads on {logical} CPUs: they take turns, and wait for each other", remedy)
    elif count > cores:
        yield fault("threads", f"{count} threads on {cores} cores: some share a core (SMT), which slows all", remedy)
    elif count > topology.fast_cores:
        yield fault("threads", f"{count} threads, but {topology.fast_cores} fast cores: all wait for slow ones", remedy)
    elif count > sensible:
        yield fault("threads", f"{count} threads, but the control group lets {sensible} run at a time", remedy)
    elif count < sensible:
        yield advice("threads", f"{count} threads leave {sensible - count} cores idle", remedy)
    else:
        yield good("threads", f"{count} of {cores} cores, {logical} CPUs, {topology.nodes} memory node(s)")


def clocks(patient: Patient) -> Iterator[Finding]:
    """Governor, limits, and how often heat slowed the cores."""
    base = "sys/devices/system/cpu/cpu0/cpufreq/"
    governor, driver = patient.text(base + "scaling_governor"), patient.text(base + "scaling_driver")
    highest, allowed = patient.text(base + "cpuinfo_max_freq"), patient.text(base + "scaling_max_freq")
    dynamic = driver.startswith(("intel_pstate", "amd-pstate"))  # theirs goes up under load all the same
    if governor == "powersave" and not dynamic:
        yield fault(
            "clocks",
            "the governor powersave keeps the cores at their lowest clock",
            "sudo cpupower frequency-set -g performance",
        )
    elif highest.isdecimal() and allowed.isdecimal() and int(allowed) < _CAPPED * int(highest):
        yield advice(
            "clocks",
            f"the cores may run at {int(allowed) / 1e6:.1f} GHz, and could at {int(highest) / 1e6:.1f}",
            f"sudo cpupower frequency-set -u {int(highest) // 1000}MHz, or look at the power profile",
        )
    else:
        yield good("clocks", f"governor {governor}" if governor else "not told here")
    counts = patient.paths("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
    throttled = sum(int(text) for path in counts if (text := path.read_text().strip()).isdecimal())
    if throttled:
        yield advice(
            "heat", f"heat has slowed cores {throttled} times since the start", "look at fans, dust and the power limit"
        )


LOOKS = (instructions, threads, layer, clocks)
