"""The alias set of metrics: the names that dashboards and routers of another server read, from what is counted here."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

VLLM = {
    "isotherm_requests_running": "vllm:num_requests_running",
    "isotherm_requests_waiting": "vllm:num_requests_waiting",
    "isotherm_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "isotherm_preemptions": "vllm:num_preemptions",
    "isotherm_prefix_cache_queries": "vllm:prefix_cache_queries",
    "isotherm_prefix_cache_hits": "vllm:prefix_cache_hits",
    "isotherm_prompt_tokens": "vllm:prompt_tokens",
    "isotherm_prompt_tokens_cached": "vllm:prompt_tokens_cached",
    "isotherm_generation_tokens": "vllm:generation_tokens",
    "isotherm_request_finished": "vllm:request_success",
    "isotherm_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "isotherm_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "isotherm_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "isotherm_request_queue_time_seconds": "vllm:request_queue_time_seconds",
    "isotherm_e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
}
_LABELS = {"reason": "finished_reason"}


class Alias(Collector):
    """The metrics of a registry that have another name too, with the labels that go with those."""

    def __init__(self, source: CollectorRegistry, model: str) -> None:
        self._source = source
        self._extra = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        for family in self._source.collect():
            if family.name not in VLLM:
                continue
            alias = VLLM[family.name]
            copy = Metric(alias, family.documentation, family.type)
            for sample in family.samples:
                labels = {_LABELS.get(name, name): value for name, value in sample.labels.items()} | self._extra
                name = alias + sample.name.removeprefix(family.name)
                copy.samples.append(Sample(name, labels, sample.value, sample.timestamp, sample.exemplar))
            yield copy
