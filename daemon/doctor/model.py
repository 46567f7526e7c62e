"""Looks at a model, and at the plan, the trace and the packed weights that belong to it."""

from collections.abc import Iterator

from ...cpu_kernels.seating import Seating
from ...experts.errors import ModelError
from ...experts.model import Model, open_model
from ...experts.outline import shape_of
from ...experts.store import PackedStore
from ...placement.plan import Plan, PlanError
from ...placement.plan_file import load_plan
from ...placement.shape import ModelShape
from ...placement.trace import TraceError
from ...placement.trace_file import load_trace
from ..config import Config
from ..machine import free_memory
from ..memory import GIB, RESERVE
from ..paths import packed_folder
from .finding import Finding, advice, fault, good
from .patient import Patient

_PLAN_AGAIN = "make one by: isotherm plan MODEL --out FILE"


def model(patient: Patient) -> Iterator[Finding]:
    """Whether it can be served, and whether it fits."""
    if patient.model is None:
        return
    try:
        opened = open_model(patient.model)
    except ModelError as error:
        yield fault("model", str(error), "name a .gguf file or a safetensors folder of a supported architecture")
        return
    shape = shape_of(opened, Config().kv_cache)
    yield _fits(patient, shape)
    yield from _packed(opened, Seating(patient.threads, patient.topology).nodes)
    yield from _plan(patient, opened)
    yield from _trace(patient, shape)


def _fits(patient: Patient, shape: ModelShape) -> Finding:
    needed, free = shape.nbytes, max(free_memory() - RESERVE, 0)
    told = f"{shape.name}: {needed / GIB:.1f} GiB of weights, {free / GIB:.1f} GiB of memory can be used"
    if needed > free and not patient.accelerators:
        return fault("model", told, f"isotherm plan {patient.model} shows what would fit; or end other programs")
    return good("model", told)


def _packed(opened: Model, nodes: int) -> Iterator[Finding]:
    store = PackedStore(packed_folder(), opened)
    told = store.fault(nodes)
    if told is None:
        yield good("packed weights", str(store.path) if store.path.exists() else "not there yet; the first start packs")
    else:
        yield fault("packed weights", f"{store.path}: {told}", f"rm {store.path}; the next start packs again")


def _plan(patient: Patient, opened: Model) -> Iterator[Finding]:
    if patient.plan is None:
        return
    try:
        plan = load_plan(patient.plan)
        plan.check_model(shape_of(opened, plan.kv_kind))
    except (PlanError, OSError) as error:
        yield fault("plan", f"{patient.plan}: {error}", _PLAN_AGAIN)
        return
    yield good("plan", f"decode at {_rate(plan)}, for {plan.hardware}")


def _rate(plan: Plan) -> str:
    rate = plan.predicted_decode_tok_s
    return f"{rate.value:.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f})"


def _trace(patient: Patient, shape: ModelShape) -> Iterator[Finding]:
    if patient.trace is None:
        return
    try:
        trace = load_trace(patient.trace, shape.fingerprint)
    except (TraceError, OSError) as error:
        yield fault("trace", str(error), "leave it out, or make one by: isotherm profile MODEL")
        return
    if trace.empty:
        yield advice("trace", f"{patient.trace} has no tokens yet", "serve for a while, or isotherm profile MODEL")
    else:
        tokens = max(phase.tokens.max(initial=0.0) for phase in trace.phases.values())
        yield good("trace", f"{patient.trace} has {tokens:.0f} tokens")


LOOKS = (model,)
