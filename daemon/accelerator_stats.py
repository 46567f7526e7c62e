"""AcceleratorStats: a snapshot of the accelerators that any thread may read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """device: as plans name it; name: as it was opened by. Sizes in bytes: what may be used, what is, what of that the
    slots of experts take, and what nobody uses, other programs counted. experts: how many are there; hits: choices of
    decoded tokens that found theirs there. growing: more are being brought. lost: it has failed, and is done without
    until the daemon is started again. kv_blocks: of the KV cache, for how many it has room; of those, since the start,
    kv_offloaded went to RAM for others' sake and kv_brought_back came from there, each of kv_block_bytes."""

    device: str
    name: str
    limit_bytes: int
    used_bytes: int
    expert_bytes: int
    free_bytes: int
    experts: int
    hits: int
    growing: bool
    lost: bool = False
    kv_blocks: int = 0
    kv_block_bytes: int = 0
    kv_offloaded: int = 0
    kv_brought_back: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorStats:
    """experts, hits: of the CPU. given_back_bytes: RAM that experts on accelerators do not take any more. decode_tok_s,
    prefill_tok_s: of recent steps that did only that, on the accelerators' clock; None before there were any. coming:
    layer, expert and device of experts that are being brought."""

    devices: tuple[DeviceStats, ...]
    experts: int
    hits: int
    given_back_bytes: int
    decode_tok_s: float | None
    prefill_tok_s: float | None
    coming: tuple[tuple[int, int, int], ...] = ()

    @property
    def hit_rate(self) -> float | None:
        """The share of choices that found their expert on an accelerator; None before there were any."""
        found = sum(device.hits for device in self.devices)
        return found / (found + self.hits) if found + self.hits else None
