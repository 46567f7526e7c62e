"""What /metrics tells of accelerators."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..placement.ledger import RAM
from ..placement.plan import Plan
from .accelerator_stats import AcceleratorStats


class AcceleratorMetrics(Collector):
    """stats: asked for each time. plan: what was predicted."""

    def __init__(self, stats: Callable[[], AcceleratorStats], plan: Plan) -> None:
        self._stats, self._plan = stats, plan

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from self._devices(stats)
        predicted = GaugeMetricFamily(
            "isotherm_predicted_tokens_per_second", "What the plan foretold, for its traffic", labels=("phase",)
        )
        measured = GaugeMetricFamily(
            "isotherm_measured_tokens_per_second",
            "Of recent steps of one phase, by the devices' clock",
            labels=("phase",),
        )
        for phase, rate, seen in (
            ("decode", self._plan.predicted_decode_tok_s, stats.decode_tok_s),
            ("prefill", self._plan.predicted_prefill_tok_s, stats.prefill_tok_s),
        ):
            predicted.add_metric((phase,), rate.value)
            if seen is not None:
                measured.add_metric((phase,), seen)
        yield predicted
        yield measured

    def _devices(self, stats: AcceleratorStats) -> Iterator[Metric]:
        experts = GaugeMetricFamily("isotherm_experts", "Experts by where they lie", labels=("device",))
        hits = CounterMetricFamily(
            "isotherm_expert_choices", "Choices of decoded tokens by where the expert lay", labels=("device",)
        )
        memory = GaugeMetricFamily("isotherm_vram_bytes", "Memory of accelerators", labels=("device", "kind"))
        experts.add_metric((RAM,), stats.experts)
        hits.add_metric((RAM,), stats.hits)
        blocks = GaugeMetricFamily("isotherm_kv_device_blocks", "KV blocks that have room there", labels=("device",))
        ways = ("device", "direction")
        moved = CounterMetricFamily("isotherm_kv_offload_blocks", "KV blocks to RAM and back", labels=ways)
        nbytes = CounterMetricFamily("isotherm_kv_offload_bytes", "Keys and values in these", labels=ways)
        for device in stats.devices:
            blocks.add_metric((device.device,), device.kv_blocks)
            for way, count in (("to_ram", device.kv_offloaded), ("from_ram", device.kv_brought_back)):
                moved.add_metric((device.device, way), count)
                nbytes.add_metric((device.device, way), count * device.kv_block_bytes)
            experts.add_metric((device.device,), device.experts)
            hits.add_metric((device.device,), device.hits)
            for kind in ("limit", "used", "expert", "free"):
                memory.add_metric((device.device, kind), getattr(device, f"{kind}_bytes"))
        yield experts
        yield hits
        yield memory
        yield blocks
        yield moved
        yield nbytes
        yield GaugeMetricFamily(
            "isotherm_ram_given_back_bytes", "Memory of weights that only accelerators use", stats.given_back_bytes
        )
