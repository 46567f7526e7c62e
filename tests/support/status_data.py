"""What a daemon tells of itself, made up."""

from typing import Any

from support.api_service import MODEL


def status_data(**changes: Any) -> dict[str, Any]:
    return {
        "state": "ready",
        "reason": "",
        "pid": 7,
        "uptime_s": 3700.0,
        "model": {
            "id": MODEL,
            "path": "moe.gguf",
            "architecture": "mixtral",
            "context": 512,
            "formats": {"IQ3_S": {"tensors": 3, "packed": "q8", "exact": False}},
        },
        "threads": 2,
        "affinity": "none",
        "memory_nodes": 1,
        "kernels": "avx2",
        "self_test": {"kernels": 5, "replaced": {"q4 product": "portable"}},
        "memory": {"resident_bytes": 2**30, "weight_bytes": 2**29, "kv_bytes": 2**28},
        "accelerators": None,
        "pack_cache": {"state": "writing", "path": "p.packed", "done_bytes": 2**28, "total_bytes": 2**29},
        "kv": {"format": "f16", "blocks": 8, "free_blocks": 6, "usage": 0.25, "prefix_blocks": 24},
        "requests": {"running": 1, "waiting": 2},
        "tokens_per_second": 12.34,
        "generated_tokens": 99,
        "prefix_cache": {"queried": 100, "hit": 50},
        "preemptions": 0,
        "audit_failures": 0,
        "events": {
            "counts": {"weights_reencoded": 3},
            "recent": [{"name": "weights_reencoded", "detail": "[x]", "at": 0}],
        },
    } | changes
