"""`isotherm serve --plan`: the settings that a plan was made for, if it is one of the model and can be kept to."""

import logging
from dataclasses import replace
from typing import cast

from ..cpu_kernels.kv_layout import KvCache
from ..experts.model import Model
from ..experts.outline import shape_of
from ..placement.ledger import device_name
from ..placement.plan import Plan, PlanError
from ..placement.plan_file import load_plan
from ..placement.shape import CPU
from .config import Config, ConfigError
from .memory import GIB

logger = logging.getLogger(__name__)


def read_plan(config: Config, model: Model) -> Plan | None:
    """The plan that the settings name, if they name one.

    Raises PlanError for a plan of another model or for accelerators that are not given, ConfigError where a setting
    contradicts it.
    """
    if config.plan is None:
        return None
    plan = load_plan(config.plan)
    try:
        plan.check_model(shape_of(model, plan.kv_kind))
    except PlanError as error:
        raise PlanError(f"{config.plan}: {error}") from error
    _check_devices(config, plan)
    if config.kv_cache not in (Config().kv_cache, plan.kv_kind):
        raise ConfigError(
            f"--kv-cache is {config.kv_cache}, but the plan is for {plan.kv_kind}; leave it out, or make another plan"
        )
    _check_free("context", config.context, plan.context)
    _check_free("kv-gib", config.kv_gib, _kv_gib(plan))
    logger.info("by %s decode runs at %.1f tokens/s", config.plan, plan.predicted_decode_tok_s.value)
    return plan


def obeyed(config: Config, plan: Plan | None) -> Config:
    """The settings with the plan's context, kind of KV cache and memory of it; as they are without a plan."""
    if plan is None:
        return config
    return replace(config, context=plan.context, kv_cache=cast(KvCache, plan.kv_kind), kv_gib=_kv_gib(plan))


def _check_devices(config: Config, plan: Plan) -> None:
    if any(layer.from_disk for layer in plan.layers):
        raise PlanError(
            f"{config.plan}: keeps parts on disk, and weights are served from RAM and accelerators; make a plan for "
            "that by isotherm plan on this machine"
        )
    used = {plan.embed, plan.head, *(at for layer in plan.layers for at in (layer.dense, *layer.experts))} - {CPU}
    if max(used, default=CPU) >= len(config.accelerators):
        names = ", ".join(device_name(device) for device in sorted(used))
        given = len(config.accelerators)
        raise PlanError(
            f"{config.plan}: keeps parts on {names}, and {given or 'no'} accelerator{'s' * (given != 1)} "
            f"{'is' if given == 1 else 'are'} given; name each in turn by --accelerator, or make a plan for this by "
            "isotherm plan, with --vram gpuN=0GiB for each that is to be left out"
        )


def _check_free(name: str, told: float | None, planned: float) -> None:
    if told is not None and told != planned:
        raise ConfigError(f"--{name} is {told:g}, but the plan is for {planned:g}; leave it out, or make another plan")


def _kv_gib(plan: Plan) -> float:
    return sum(account.of("KV cache") for account in plan.ledger) / GIB
