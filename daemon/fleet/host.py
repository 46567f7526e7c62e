"""Hosted: a loaded model at work; ModelLoader: how a fleet comes to one."""

import ctypes
import gc
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from ...experts.model import open_model
from ...experts.progress import Progress
from ...placement.shape import CPU
from ..assembly import Assembly, assemble, demo_model, plan_memory, revived
from ..config import Config
from ..errors import EngineError
from ..events import EventLog, EventsOf
from ..queue_books import QueueLimits
from ..served_plan import obeyed, read_plan
from ..wedge import ailment_of, dump_threads

logger = logging.getLogger(__name__)

S = TypeVar("S")


class Hosted(Generic[S]):
    """A loaded model whose engine runs, and whose packed weights and routing are kept meanwhile.

    service: what requests are given of it; `make` makes it of the assembly.
    """

    def __init__(self, assembly: Assembly, make: Callable[[Assembly], S]) -> None:
        self.assembly, self.service = assembly, make(assembly)
        self._make = make
        self._stored, self._kept = ExitStack(), ExitStack()
        self._abandoned = False

    @property
    def nbytes(self) -> int:
        """Of weights, keys and values."""
        return self.assembly.runner.weight_bytes + self.assembly.kv_bytes

    def start(self) -> None:
        """Start the engine; what was submitted before is served now. Raises EngineError if it computes no token."""
        if self.assembly.cache:
            self._stored.enter_context(self.assembly.cache.writing())
        try:
            self._start()
        except EngineError:
            self.close()
            raise

    def _start(self) -> None:
        if self.assembly.keeper:
            self._kept.enter_context(self.assembly.keeper.keeping())
        if self.assembly.rebalanced:
            self._kept.enter_context(self.assembly.rebalanced.keeping())
        self.assembly.start()

    def limit_queue(self, limits: QueueLimits) -> None:
        """Let so much wait from now on, after a restart as well."""
        config = replace(self.assembly.config, max_queued=limits.max_queued, max_queued_tokens=limits.max_queued_tokens)
        self.assembly = replace(self.assembly, config=config)
        self.assembly.engine.limit_queue(limits)

    def ailment(self) -> str | None:
        """Why the engine will not go on, None if it does."""
        return ailment_of(self.assembly.engine, self.assembly.config.step_limit_s)

    def abandon(self, reason: str) -> None:
        """See `Loaded`."""
        dump_threads(reason)
        self._abandoned = True
        self.assembly.engine.abandon(reason)

    def restart(self) -> None:
        """See `Loaded`. Raises what `revived` does, and EngineError if it computes no token."""
        self._kept.close()
        self.assembly = revived(self.assembly)
        self.service = self._make(self.assembly)
        self._abandoned = False
        self._start()

    def close(self) -> None:
        """Stop the engine, unless it was abandoned and nobody waits for it, and keep what is to be kept."""
        if not self._abandoned:
            self.assembly.engine.stop()
        self._kept.close()
        self._stored.close()


class ModelLoader(Generic[S]):
    """Loads models by their settings, those of a reload included. make: of an assembly, what requests are given."""

    def __init__(self, configs: Mapping[str, Config], events: EventLog, make: Callable[[str, Assembly], S]) -> None:
        self.configs, self._events, self._make = configs, events, make

    def demand(self, name: str) -> Callable[[int], object]:
        """See `Loader`. Where parts lie on accelerators, only loading tells exactly."""
        config = self.configs[name]
        model = open_model(config.model or demo_model(_unseen))
        plan = read_plan(config, model)
        config = obeyed(config, plan)
        if plan is not None:
            elsewhere = [layer for layer, device in enumerate(plan.placement.dense) if device != CPU]
        else:
            elsewhere = list(range(model.spec.num_layers)) if config.accelerators else []
        return lambda free: plan_memory(model, config, free, elsewhere)

    def load(self, name: str, progress: Progress) -> Hosted[S]:
        """See `assemble`, whose errors it raises."""
        hosted = self.assembled(name, progress)
        hosted.start()
        gc.freeze()  # it stays for long, so no garbage is looked for in it
        logger.info("loaded %s in %.1f s", name, hosted.assembly.load_s)
        return hosted

    def tidy(self) -> None:
        """See `Loader`."""
        give_back()

    def assembled(self, name: str, progress: Progress) -> Hosted[S]:
        """A model whose engine is still to be started."""
        events = self._events if len(self.configs) == 1 else EventsOf(self._events, name)
        assembly = assemble(self.configs[name], progress, events)
        return Hosted(assembly, partial(self._make, name))


def give_back() -> None:
    """Have the system get memory back that nobody uses: the parts of an engine know one another, so it takes a look for
    garbage, also in what was thought to stay for good."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU library
        if trim is not None:
            trim(0)


def _unseen(stage: str, done: int, total: int) -> None:
    """Nobody looks at this progress."""
