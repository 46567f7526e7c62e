"""PlayedDaemon: what a daemon tells its dashboard, made up, and a rebalancing that can be followed."""

import math
from concurrent.futures import Future
from typing import Any

from isotherm.api.service import Service
from isotherm.daemon.errors import InvalidRequestError, OverloadedError
from isotherm.daemon.messages import Command
from isotherm.daemon.rebalance import Rebalance
from isotherm.daemon.vram import SetVram
from support.api_service import make_service
from support.scripted_engine import ScriptedEngine, Step, says

GIB = 1 << 30
MODEL = "org/tiny-moe"


class PlayedDaemon(ScriptedEngine):
    """layers, experts: of its model, none for a dense one. hot: how many experts of each layer lie on the accelerator;
    None for a daemon without accelerators. polls: a round of swaps is under way for so many questions."""

    def __init__(
        self,
        answer: list[Step] | str = "Hi",
        *,
        layers: int = 4,
        experts: int = 16,
        hot: int | None = None,
        pid: int = 4711,
        polls: int = 2,
    ) -> None:
        steps = says(answer) if isinstance(answer, str) else answer
        super().__init__(lambda submit: steps)
        self.layers, self.experts, self.hot, self.pid, self.polls = layers, experts, hot, pid, polls
        self.where = [_hottest(layer, experts, hot or 0) for layer in range(layers)]
        self.changes: dict[str, Any] = {}
        self.vram: list[SetVram] = []
        self.rounds: list[list[tuple[int, int, int]]] = []
        self.automatic, self._busy = True, 0

    def service(self, **changes: Any) -> Service:
        return make_service(self, status=self.status, plan=self.plan, experts=self.use, model_id=MODEL, **changes)

    def ask(self, command: Command) -> "Future[Any]":
        answer: Future[Any] = Future()
        try:
            answer.set_result(self._obey(command))
        except (InvalidRequestError, OverloadedError) as error:
            answer.set_exception(error)
        return answer

    def _obey(self, command: Command) -> dict[str, Any]:
        if self.hot is None:
            raise InvalidRequestError("this daemon serves without accelerators")
        if isinstance(command, SetVram):
            self.vram.append(command)
            return {"devices": []}
        assert isinstance(command, Rebalance)
        return self._rebalance(command)

    def _rebalance(self, command: Rebalance) -> dict[str, Any]:
        if command.automatic is not None:
            self.automatic = command.automatic
        self._busy = max(self._busy - 1, 0)
        swaps: list[tuple[int, int, int]] = []
        if not self._busy:
            swaps = [(layer, up, down) for layer, down, up in self.rounds[-1]] if command.back else self._paying()
        if swaps and not command.dry_run:
            for layer, up, down in swaps:
                self.where[layer][up], self.where[layer][down] = 1, 0
            self.rounds = self.rounds[:-1] if command.back else [*self.rounds, swaps]
            self._busy = self.polls
        return {
            "automatic": self.automatic,
            "dry_run": command.dry_run,
            "under_way": self._busy > 0,
            "swaps": [_swap(*swap) for swap in swaps],
            "nbytes": len(swaps) << 20,
            "transfer_ms": 1.5 * len(swaps),
            "saving_ms": 40.0 * len(swaps),
            "rest_tokens": 0.0,
            "rounds_made": len(self.rounds),
            "rounds_back": len(self.rounds),
        }

    def _paying(self) -> list[tuple[int, int, int]]:
        """The hottest expert of the first layers is in RAM until it is moved, to the place of another."""
        hottest = self.experts - 1
        rows = [layer for layer in range(min(self.layers, 2)) if self.where[layer][hottest] == 0]
        return [(layer, hottest, self.where[layer].index(1)) for layer in rows]

    def use(self, phase: str) -> dict[str, Any]:
        heat = [[_heat(layer, expert, self.experts) for expert in range(self.experts)] for layer in range(self.layers)]
        return {
            "phase": phase,
            "devices": ["ram"] if self.hot is None else ["ram", "gpu0"],
            "layers": list(range(self.layers)),
            "experts": self.experts,
            "top_k": min(8, self.experts),
            "tokens": 1234.0 if self.layers else 0.0,
            "heat": heat,
            "where": self.where,
            "coming": [],
        }

    def status(self) -> dict[str, Any]:
        rate = {"value": 38.4, "low": 34.9, "high": 41.2}
        predicted = {"as_planned": True, "streams": 1, "context": 512, "prompt": 512, "decode_tok_s": rate}
        speed = {
            "predicted": None
            if self.hot is None
            else predicted | {"prefill_tok_s": rate | {"value": 640.0, "low": 580.0, "high": 700.0}},
            "measured": {"decode_tok_s": 36.7, "prefill_tok_s": 612.0},
        }
        on_card = sum(map(sum, self.where))
        device = {
            "device": "gpu0",
            "name": "emulated:0",
            "limit_bytes": 16 * GIB,
            "used_bytes": 14 * GIB,
            "expert_bytes": 11 * GIB,
            "experts": on_card,
            "hits": 4321,
            "growing": False,
            "lost": False,
        }
        accelerators = {"devices": [device], "ram": {"experts": 1, "hits": 9}, "hit_rate": 0.71, **speed}
        return {
            "state": "ready",
            "reason": "",
            "version": "0.1.0",
            "pid": self.pid,
            "uptime_s": 3700.0,
            "load_s": 2.4,
            "model": {
                "id": MODEL,
                "path": "models/Tiny-MoE-Q4_K_M.gguf",
                "architecture": "qwen3_moe",
                "context": 32768,
                "formats": {"Q4_K": {"tensors": 288, "packed": "q4k", "exact": True}},
            },
            "threads": 16,
            "affinity": "none",
            "memory_nodes": 1,
            "kernels": "avx512",
            "self_test": {"kernels": 41, "replaced": {}},
            "memory": {"resident_bytes": 19 * GIB, "weight_bytes": 17 * GIB, "kv_bytes": GIB},
            "accelerators": None if self.hot is None else accelerators,
            "speed": speed,
            "pack_cache": {"state": "kept", "path": "packed/tiny-moe.packed"},
            "kv": {"format": "int16", "blocks": 2048, "free_blocks": 1410, "usage": 0.31, "prefix_blocks": 2048},
            "requests": {"running": 2, "waiting": 1},
            "tokens_per_second": 36.2,
            "generated_tokens": 91234,
            "prefix_cache": {"queried": 20000, "hit": 12400},
            "preemptions": 0,
            "audit_failures": 0,
            "events": {
                "counts": {"weights_reencoded": 3},
                "recent": [{"name": "weights_reencoded", "detail": "blk.0.ffn_down_exps.weight", "at": 1_700_000_000}],
            },
        } | self.changes

    def plan(self) -> dict[str, Any] | None:
        return None if self.hot is None else PLAN


def _heat(layer: int, expert: int, experts: int) -> float:
    """Some experts of a layer are much hotter than others, which ones depending on the layer; the last one always."""
    if expert == experts - 1:
        return 4.5
    wave = math.sin(12.9898 * (expert + 1) + 78.233 * (layer + 1)) * 43758.5453
    slope = 1.5 - 2.5 * expert / max(experts - 1, 1)
    return float(round(2.0 ** (slope + 2.4 * (wave - math.floor(wave)) - 1.2), 2))


def _hottest(layer: int, experts: int, count: int) -> list[int]:
    """1 for so many of the hottest experts, but for the very hottest."""
    order = sorted(range(experts - 1), key=lambda expert: -_heat(layer, expert, experts))
    return [int(expert in order[:count]) for expert in range(experts)]


def _swap(layer: int, promoted: int, demoted: int) -> dict[str, Any]:
    return {
        "layer": layer,
        "device": 0,
        "promoted": promoted,
        "demoted": demoted,
        "promoted_rate": 0.312,
        "demoted_rate": 0.041,
        "nbytes": 1 << 20,
        "horizon": 4096.0,
        "saving_ms": 40.0,
        "transfer_ms": 1.5,
        "reason": f"layer {layer}: expert {promoted} is chosen more often",
    }


def _account(budget: int, **terms: int) -> dict[str, Any]:
    total = sum(terms.values())
    named = {name.replace("_", " "): size for name, size in terms.items()}
    return {"budget_bytes": budget, "total_bytes": total, "free_bytes": budget - total, "terms": named}


PLAN: dict[str, Any] = {
    "model": MODEL,
    "hardware": "AMD Ryzen 9 9950X with one card of 16 GiB",
    "trace": "the model's own traffic",
    "kv_kind": "int16",
    "context": 32768,
    "traffic": {"streams": 1, "context": 512, "prompt": 512, "chunk": 512},
    "policy": "hottest experts, dense parts on gpu0",
    "reasons": [
        "The dense part of all 48 layers lies on gpu0: a token needs all of it, and it takes 1.9 GiB.",
        "2,212 of 6,144 experts lie on gpu0. By the recorded traffic they take 71 % of the choices.",
        "The KV cache of 32,768 positions lies beside its layers.",
    ],
    "predicted_decode_tok_s": {"value": 38.4, "low": 34.9, "high": 41.2},
    "predicted_prefill_tok_s": {"value": 640.0, "low": 580.0, "high": 700.0},
    "step_ms": 26.04,
    "parts_ms": {"attention": 4.1, "experts on gpu0": 5.2, "experts in RAM": 13.9, "transfers": 1.5, "head": 1.34},
    "cpu_gb": 0.71,
    "bound_tok_s": 88.0,
    "shadow_price_ms_per_gib": {"gpu0": 0.93},
    "value_ms_by_gib": {"gpu0": [3.8, 2.9, 2.2, 1.9, 1.6, 1.4, 1.2, 1.1, 1.0]},
    "considered": [
        {"policy": "all in RAM", "step_ms": 41.7, "note": ""},
        {"policy": "whole layers first", "step_ms": 31.2, "note": "19 layers"},
        {"policy": "one share of each layer", "step_ms": 29.8, "note": "36 % of the experts"},
    ],
    "ledger": {
        "ram": _account(
            58 * GIB, experts=11 * GIB, embedding=GIB // 3, activations=GIB // 8, Python_and_kernels=GIB // 2
        ),
        "gpu0": _account(
            16 * GIB,
            dense_weights=2 * GIB,
            experts=11 * GIB,
            KV_cache=GIB,
            prefill_staging=GIB // 2,
            headroom=GIB // 4,
            accelerator_context=GIB * 3 // 8,
        ),
    },
}
