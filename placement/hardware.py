"""HardwareProfile: what a machine can do, as measured by `isotherm calibrate` or as a data sheet says."""

from dataclasses import dataclass, field

BLOCKS = (1, 2, 4, 8)  # tokens that a CPU product takes at a time
LAYER_OPS = 6  # of each layer: norm, projections, rope, attention, output, norm
BRANCH_OPS = 3  # of a dense or shared feed-forward part: gate and up, down, sum
MOST_SPREAD = 10.0  # of an estimate: with more it would say nothing
FLOPS_PER_PAIR = 4  # of attention, for a query's head, a position that it sees and an element: q * k and p * v


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured quantity; spread: its relative standard deviation between measurements."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCost:
    """Products with one kind of packed weights, on all threads of the profile.

    read_gb_s: weights out of cache, for one token. block_ns_per_kib: time for a KiB of weights that lie in cache, by
    the number of tokens multiplied at once, for each of BLOCKS. overlap: how much of the shorter of reading and
    computing hides behind the longer, 0 .. 1.
    """

    read_gb_s: Estimate
    block_ns_per_kib: tuple[Estimate, ...]
    overlap: Estimate

    def us(self, nbytes: float, tokens: int) -> float:
        """Time of so many tokens, at least one, for `nbytes` of weights from memory: they go in blocks of 8, the rest
        in blocks of 4, 2, 1. The first of them reads the weights, for the others they lie in cache."""
        by_size = dict(zip(BLOCKS, self.block_ns_per_kib, strict=True))
        sizes = [8] * (tokens // 8) + [size for size in (4, 2, 1) if tokens & size]
        first, *others = (nbytes / 1024e3 * by_size[size].value for size in sizes)
        reading = nbytes / self.read_gb_s.value / 1e3
        return max(reading, first) + (1 - self.overlap.value) * min(reading, first) + sum(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProfile:
    """The CPU engine with `threads` threads.

    read_gb_s: plain reading, by the number of threads. products: by packed kind. call_us: of one MoE layer from its
    router to its sum, whatever it holds; expert_us: of each expert that is touched; op_us: of each of a layer's
    LAYER_OPS and BRANCH_OPS; step_us: of a step, before and after its ops. token_ns_per_value: norms, rope, routing and
    sums, for each token, layer and value of the hidden state. kv_gb_s: keys and values read by attention of one token;
    attention_gops: attention of a prompt, at FLOPS_PER_PAIR; by kind of the KV cache. ram_bytes: all of it;
    free_bytes: what could be used.
    """

    name: str
    tier: str
    threads: int
    cores: int
    read_gb_s: dict[int, Estimate]
    products: dict[str, ProductCost]
    call_us: Estimate
    expert_us: Estimate
    op_us: Estimate
    step_us: Estimate
    token_ns_per_value: Estimate
    kv_gb_s: dict[str, Estimate]
    attention_gops: dict[str, Estimate]
    ram_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorProfile:
    """A graphics card.

    read_gb_s: its memory; tflops: dense products by packed kind, "other" for those not named. launch_us: of one op, or
    of many that are replayed together; hop_us: fixed cost of handing activations to or from it. The link's rates are to
    it and from it, from pinned and from other host memory.
    """

    name: str
    vram_bytes: int
    free_bytes: int
    read_gb_s: Estimate
    tflops: dict[str, Estimate]
    launch_us: Estimate
    hop_us: Estimate
    to_gb_s: Estimate
    from_gb_s: Estimate
    to_unpinned_gb_s: Estimate
    from_unpinned_gb_s: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """A machine. nominal: from data sheets, not measured; source: where the numbers come from, in words.

    isotherm_version: by which it was measured, empty if it was not. ssd_read_gb_s: 0 where no disk is to be counted on.
    """

    name: str
    nominal: bool
    source: str
    cpu: CpuProfile
    accelerators: tuple[AcceleratorProfile, ...] = field(default=())
    ssd_read_gb_s: Estimate = Estimate(0.0)
    isotherm_version: str = ""
