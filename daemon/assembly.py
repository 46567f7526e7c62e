"""How a daemon is put together: model -> runner -> scheduler -> engine, with the tokenizer and template beside them."""

import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .. import __version__
from ..cpu_kernels.features import host_tier
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.topology import Topology, read_topology
from ..experts.demo import build_demo, demo_source
from ..experts.formats import format_of
from ..experts.model import Model, open_model
from ..experts.outline import shape_of
from ..experts.progress import Progress
from ..experts.store import PackedStore
from ..placement.plan import Plan
from ..placement.plan_file import to_json
from .attendants import Attendant
from .budget import StepBudget
from .chat_template import ChatTemplate
from .config import Config, ConfigError, readable
from .engine import Engine
from .errors import EngineError
from .events import EventLog
from .expert_map import ExpertMap
from .kv_cache import BlockPool
from .machine import default_threads, free_memory
from .memory import GIB, RESERVE, MemoryPlanError, demand_of, plan_blocks, plan_offload
from .pace_metrics import PaceMetrics
from .pack_cache import PackCache
from .paths import cache_folder, packed_folder, routing_file
from .pulse import FirstToken, Pulse
from .queue_books import QueueLimits
from .routing_recorder import RoutingRecorder
from .runner import DecoderRunner, load_runner, load_weights
from .scheduler import Scheduler
from .self_test import check_ops
from .served_plan import obeyed, read_plan
from .speed import speed
from .structures import Structures
from .throughput import Throughput
from .tokenizer import Tokenizer
from .trace_keeper import TraceKeeper
from .unused_prefixes import UnusedPrefixes

if TYPE_CHECKING:  # it imports torch, which a daemon without accelerators does not
    from .accelerated import Accelerated
    from .accelerator_keeper import AcceleratorKeeper
    from .accelerator_status import AcceleratorStatus
    from .rebalanced import Rebalanced


def demo_model(progress: Progress) -> Path:
    """The embedded demo model's file, built first where it is missing. Raises ModelError."""

    def tokenise(text: str) -> list[int]:
        dense = open_model(demo_source())
        return Tokenizer.from_gguf(dense.checkpoint.metadata).encode(text, add_special=False)

    path = build_demo(cache_folder(), progress, tokenise)
    with suppress(OSError):  # it may lie on a disk that cannot be written
        os.utime(path.parent)  # so the housekeeping knows that it is used
    return path


def tokenizer_of(model: Model) -> Tokenizer:
    """The tokenizer that came with a model. Raises ModelError."""
    checkpoint = model.checkpoint
    if checkpoint.source == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata)
    return Tokenizer.from_folder(checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent)


def context_of(model: Model, config: Config) -> int:
    """Tokens of prompt and answer together: what is asked for, else the model's own within reason.

    Raises ConfigError if more is asked for than the model takes.
    """
    if config.context is not None and config.context > model.spec.max_context:
        raise ConfigError(f"--context is {config.context}; this model takes at most {model.spec.max_context} tokens")
    return config.context or min(model.spec.max_context, config.max_default_context)


def plan_memory(model: Model, config: Config, free_bytes: int, device_layers: Collection[int] = ()) -> int:
    """Number of KV blocks. device_layers: whose attention accelerators run.

    Raises MemoryPlanError, before any weight is read, if the load would not fit.
    """
    shape, kv_gib = shape_of(model, config.kv_cache), config.kv_gib
    kv_bytes = None if kv_gib is None else int(kv_gib * GIB)
    demand = demand_of(shape, context_of(model, config), kv_bytes, device_layers)
    blocks = plan_blocks(demand, free_bytes)
    if config.kv_offload_gib:
        blocks = plan_offload(demand, blocks, int(config.kv_offload_gib * GIB), free_bytes)
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A loaded model with everything that serves it. The engine's thread has not been started."""

    config: Config
    model: Model
    runner: DecoderRunner
    cache: PackCache | None
    keeper: TraceKeeper | None
    rebalanced: "Rebalanced | None"
    engine: Engine
    accelerators: "AcceleratorStatus | None"
    experts: ExpertMap
    plan: Plan | None
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    structures: Structures
    throughput: Throughput
    threads: int
    kv_bytes: int
    tested_ops: int
    load_s: float
    created: int  # seconds since the epoch
    loaded: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Start the engine's thread and have it compute a first token. Raises EngineError if that fails."""
        self.engine.start()
        try:
            self.engine.client.ask(FirstToken()).result(self.config.step_limit_s)
        except Exception as error:
            raise EngineError(f"no first token could be computed: {error or type(error).__name__}") from error

    def sample(self) -> None:
        """Look at the token counter; called several times a second."""
        self.throughput.sample(time.monotonic(), self.engine.stats().generated_tokens)

    def status(self) -> dict[str, Any]:
        """What /admin/status answers. Sizes in bytes, times in seconds."""
        stats, spec, events = self.engine.stats(), self.model.spec, self.engine.events
        kernels, accelerators = self.runner.tile_kernels, self.accelerators.show() if self.accelerators else None
        return {
            "state": stats.state,
            "reason": stats.reason,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self.loaded,
            "load_s": self.load_s,
            "model": {
                "id": self.config.model_id,
                "path": readable(self.model.checkpoint.path.resolve()),
                "architecture": spec.architecture,
                "context": self.engine.client.max_context,
                "formats": formats_of(self.model),
            },
            "threads": self.threads,
            "affinity": self.config.affinity,
            "memory_nodes": self.runner.seating.nodes,
            "kernels": host_tier().name,
            "self_test": {"kernels": len(kernels.chosen) + self.tested_ops, "replaced": kernels.replaced},
            "memory": {
                "resident_bytes": psutil.Process().memory_info().rss,
                "weight_bytes": self.runner.weight_bytes,
                "kv_bytes": self.kv_bytes,
            },
            "accelerators": accelerators,
            "speed": speed(stats, self.plan, accelerators),
            "pack_cache": self.cache.status() if self.cache else None,
            "kv": {
                "format": self.config.kv_cache,
                "blocks": stats.kv_blocks,
                "free_blocks": stats.kv_blocks_free,
                "prefix_blocks": self.runner.num_blocks,
                "usage": stats.kv_usage,
            },
            "requests": {"running": stats.running, "waiting": stats.waiting},
            "tokens_per_second": self.throughput.rate,
            "generated_tokens": stats.generated_tokens,
            "prefix_cache": {"queried": stats.prefix_queried_tokens, "hit": stats.prefix_hit_tokens},
            "preemptions": stats.preemptions,
            "audit_failures": stats.audit_failures,
            "events": {
                "counts": events.counts(),
                "recent": [{"name": e.name, "detail": e.detail, "at": e.at} for e in events.recent()],
            },
        }

    def plan_json(self) -> dict[str, Any] | None:
        """What /admin/plan answers: the plan by which it was loaded, None without one."""
        return None if self.plan is None else to_json(self.plan)


def formats_of(model: Model) -> dict[str, dict[str, Any]]:
    """Per format of the model's matrices: how many tensors, the kind they are packed into, whether that is exact."""
    matrices = [tensor for tensor in model.weights.stored_tensors if len(tensor.shape) > 1]
    counts = Counter(tensor.format for tensor in matrices)
    rows = {tensor.format: format_of(tensor) for tensor in matrices}
    return {
        name: {"tensors": counts[name], "packed": row.packed, "exact": row.exact} for name, row in sorted(rows.items())
    }


def assemble(config: Config, progress: Progress, events: EventLog | None = None) -> Assembly:
    """Load a model and put a daemon together. events: where it tells of degradations, a log of its own if None.

    Raises ModelError for a model that cannot be served, MemoryPlanError for one that does not fit, ConfigError for a
    setting that does not suit it, and PlanError for a plan that does not.
    """
    started = time.monotonic()
    path = config.model or demo_model(progress)
    model = open_model(path)
    plan, events = read_plan(config, model), EventLog() if events is None else events
    tokenizer = tokenizer_of(model)  # a model without a usable tokenizer is refused before the weights are read
    template = ChatTemplate(tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    accelerated = _accelerated(config, path, plan, events, progress)
    config = obeyed(config, accelerated.plan if accelerated else plan)
    num_blocks = plan_memory(model, config, free_memory(), accelerated.attending if accelerated else ())
    _tell_fallbacks(tokenizer, events)
    seating = seat(config, read_topology(), events)
    cache = PackCache(PackedStore(packed_folder(), model), events) if config.pack_cache else None
    weights = load_weights(model, threads=seating, cache=cache, progress=progress, events=events)
    progress("testing kernels", 0, 1)
    tested_ops = check_ops(model.spec, weights, config.kv_cache)
    progress("testing kernels", 1, 1)
    runner = load_runner(
        model,
        threads=seating,
        num_blocks=num_blocks,
        max_context=context_of(model, config),
        max_step_tokens=config.max_step_tokens,
        max_running=config.max_running,
        kv_cache=config.kv_cache,
        weights=weights,
        acceleration=accelerated.acceleration(events.record) if accelerated else None,
        progress=progress,
    )
    recorder = RoutingRecorder(model, runner) if model.spec.routing else None
    accelerators = accelerated.keeper(runner, events, int(config.vram_free_gib * GIB)) if accelerated else None
    movers = [accelerators, *accelerated.rebalanced.attendants(runner)] if accelerated and accelerators else []
    engine = _engine(runner, config, events, recorder, [Pulse(runner), *movers])
    _add_metrics(engine, config, None if accelerators else PaceMetrics(engine.stats, plan))
    return Assembly(
        config=config,
        model=model,
        runner=runner,
        cache=cache,
        keeper=_keeper(recorder, events),
        rebalanced=accelerated.rebalanced if accelerated else None,
        engine=engine,
        accelerators=_shown(accelerated, accelerators, engine) if accelerated and accelerators else None,
        experts=ExpertMap(recorder, accelerators),
        plan=accelerated.plan if accelerated else plan,
        tokenizer=tokenizer,
        chat_template=template,
        structures=Structures(tokenizer),
        throughput=Throughput(),
        threads=seating.threads,
        kv_bytes=runner.kv_bytes,
        tested_ops=tested_ops,
        load_s=time.monotonic() - started,
        created=int(time.time()),
    )


def revived(old: Assembly) -> Assembly:
    """The same model with a new engine over the same packed weights, in place of one that hangs or has failed.

    Raises EngineError for one with accelerators, whose memory is not had twice, MemoryPlanError without room for a new
    KV cache: the old one may still be written to.
    """
    if old.accelerators is not None:
        raise EngineError("an engine with accelerators is not restarted within its process")
    free = free_memory()
    if free < old.kv_bytes + RESERVE:
        raise MemoryPlanError(f"a new KV cache needs {old.kv_bytes >> 20} MiB beside the old one, of {free >> 20} free")
    events, runner = old.engine.events, old.runner.anew()
    recorder = RoutingRecorder(old.model, runner) if old.model.spec.routing else None
    engine = _engine(runner, old.config, events, recorder, [])
    _add_metrics(engine, old.config, PaceMetrics(engine.stats, old.plan))
    return replace(
        old,
        runner=runner,
        engine=engine,
        keeper=_keeper(recorder, events),
        experts=ExpertMap(recorder, None),
        throughput=Throughput(),
    )


def _keeper(recorder: RoutingRecorder | None, events: EventLog) -> TraceKeeper | None:
    return TraceKeeper(recorder, routing_file(recorder.fingerprint), events) if recorder else None


def _accelerated(
    config: Config, path: Path, plan: Plan | None, events: EventLog, progress: Progress
) -> "Accelerated | None":
    if not config.accelerators:
        return None
    from .accelerated import accelerate

    return accelerate(config, path, plan, events, progress)


def _add_metrics(engine: Engine, config: Config, paces: PaceMetrics | None) -> None:
    """paces: None where accelerators tell of them."""
    if paces is not None:
        engine.metrics.add(paces)
    if config.metrics_alias is not None:
        engine.metrics.add_alias(config.model_id)


def _engine(
    runner: DecoderRunner,
    config: Config,
    events: EventLog,
    recorder: RoutingRecorder | None,
    attendants: Sequence[Attendant],
) -> Engine:
    limits = QueueLimits(max_queued=config.max_queued, max_queued_tokens=config.max_queued_tokens)
    scheduler = make_scheduler(runner, config)
    if not config.accelerators:
        attendants = [*attendants, UnusedPrefixes(scheduler.pool, runner)]
    pulsing = [Pulse(runner), *attendants]
    return Engine(runner, scheduler, limits, events=events, recorder=recorder, attendants=pulsing)


def _shown(accelerated: "Accelerated", keeper: "AcceleratorKeeper", engine: Engine) -> "AcceleratorStatus":
    from .accelerator_metrics import AcceleratorMetrics
    from .accelerator_status import AcceleratorStatus

    engine.metrics.add(AcceleratorMetrics(keeper.stats, accelerated.plan))
    return AcceleratorStatus(keeper, accelerated.plan, accelerated.cost)


def seat(config: Config, topology: Topology, events: EventLog) -> Seating:
    """The seats of the engine's threads: as many as are asked for, else one for each core that is not a slow one."""
    threads = config.threads or default_threads(topology=topology)
    slow = len(topology.cores) - topology.fast_cores
    if slow and threads <= topology.fast_cores:
        detail = (
            f"{slow} slower cores of {len(topology.cores)} get no thread of their own; more --threads would use them"
        )
        events.record("slow_cores_unused", detail, logging.INFO)
    return Seating(threads, topology, config.affinity, events.record)


def _tell_fallbacks(tokenizer: Tokenizer, events: EventLog) -> None:
    for detail in tokenizer.fallbacks:
        events.record("tokenizer_guessed", detail)
    if host_tier().name == "portable":
        events.record("portable_kernels", "no AVX2 was found, or NUMBA_CPU_FEATURES hides it: kernels run much slower")


def make_scheduler(runner: DecoderRunner, config: Config) -> Scheduler:
    """A scheduler with the runner's sizes and the config's limits."""
    return Scheduler(
        BlockPool(runner.num_blocks, runner.block_size, num_resident=runner.num_resident),
        max_running=config.max_running,
        max_step_tokens=runner.max_step_tokens,
        max_context=min(runner.max_context, config.context or runner.max_context),  # the runner's is whole blocks
        budget=StepBudget(config.step_target_s, runner.max_step_tokens),
        rows=runner.row_limits,
    )
