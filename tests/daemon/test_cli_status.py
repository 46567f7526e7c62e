"""`isotherm status` against daemons that are played by a scripted engine."""

import json
from typing import Any

import pytest
from isotherm.daemon.cli.output import ExitCode
from support.api_service import make_service, serving
from support.cli import run
from support.status_data import status_data

pytestmark = pytest.mark.usefixtures("own_folders")


def test_status_shows_formats_load_and_degradations() -> None:
    with serving(make_service(status=status_data)) as port:
        result = run("status", "--url", f"http://127.0.0.1:{port}")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for words in (
        "ready, up for 1 h 01 min",
        f"dashboard http://127.0.0.1:{port}/ui",
        "3 tensors in IQ3_S, run as q8 (re-encoded, not bit-exact)",
        "1.00 GiB in use, 0.50 GiB of it weights",
        "0.25 GiB reserved, 25% in use, 6 of 8 blocks free, f16; prefixes may fill 24",
        "pack cache writing 0.25 GiB of 0.50 GiB, p.packed",
        "1 running, 2 waiting",
        "12.3 tokens/s in the last seconds, 99 since the start",
        "kernels avx2, 2 threads",
        "self-test passed (5 kernels; q4 product runs as portable)",
        "weights_reencoded x 3: [x]",
    ):
        assert words in text


def test_status_shows_accelerators_and_the_foretold_beside_the_measured() -> None:
    device = {"device": "gpu0", "name": "cuda:0", "limit_bytes": 2**30, "used_bytes": 2**29, "expert_bytes": 2**28}
    kv = {"kv_blocks": 64, "kv_block_bytes": 2**26, "kv_offloaded": 32, "kv_brought_back": 8}
    rate = {"value": 20.0, "low": 18.0, "high": 22.0}
    accelerators = {
        "devices": [
            device | {"experts": 12, "hits": 30, "growing": True, "lost": False} | kv,
            device
            | {"device": "gpu1", "name": "cuda:1", "experts": 0, "hits": 0, "growing": False, "lost": True}
            | {"kv_blocks": 0, "kv_block_bytes": 0, "kv_offloaded": 0, "kv_brought_back": 0},
        ],
        "ram": {"experts": 4, "hits": 10, "given_back_bytes": 2**27},
        "hit_rate": 0.75,
        "predicted": {
            "as_planned": False,
            "streams": 1,
            "context": 512,
            "prompt": 256,
            "decode_tok_s": rate,
            "prefill_tok_s": None,
        },
        "measured": {"decode_tok_s": 19.06, "prefill_tok_s": None},
    }
    with serving(make_service(status=lambda: status_data(accelerators=accelerators))) as port:
        result = run("status", "--url", f"http://127.0.0.1:{port}")
    text = " ".join(result.stdout.split())
    for words in (
        "gpu0 cuda:0, 0.50 GiB of 1.00 GiB in use, 12 experts in 0.25 GiB, more are coming; of 64 KV blocks "
        "32 (2.00 GiB) went to RAM and 8 (0.50 GiB) came back",
        "experts 4 in RAM, 0.12 GiB given back to the system; 75.0% of the choices",
        "gpu1 cuda:1 has failed and is done without; start the daemon again to use it",
        "found theirs on an accelerator: 75.0% on gpu0, 0.0% on gpu1",
        "prediction decode 20.0 tokens/s, measured 19.1; prefill not known, measured nothing yet",
        "(where experts lie now, for 1 stream after 512 tokens and a prompt of 256)",
    ):
        assert words in text


def test_status_of_a_failed_engine_exits_with_7() -> None:
    with serving(make_service(status=lambda: status_data(state="failed", reason="three steps failed"))) as port:
        result = run("status", "--url", f"http://127.0.0.1:{port}", "--json")
    assert result.exit_code == ExitCode.ENGINE
    assert json.loads(result.stdout)["reason"] == "three steps failed"


def test_status_in_a_pipe_keeps_lines_whole() -> None:
    path = "/models/" + "deep/" * 40 + "moe.gguf"
    model = status_data()["model"] | {"path": path}
    with serving(make_service(status=lambda: status_data(model=model))) as port:
        assert f"file          {path}\n" in run("status", "--port", port).stdout


def test_one_of_a_kind_is_singular() -> None:
    with serving(make_service(status=lambda: status_data(threads=1))) as port:
        assert "1 thread\n" in run("status", "--port", port).stdout


def test_threads_that_are_bound_are_told() -> None:
    with serving(make_service(status=lambda: status_data(affinity="cores", memory_nodes=2))) as port:
        assert "avx2, 2 threads at 2 memory nodes, each bound to a core\n" in run("status", "--port", port).stdout


@pytest.mark.parametrize("answer", [{"state": "ready"}, [], {}])
def test_another_server_is_named_as_such(answer: Any) -> None:
    with serving(make_service(status=lambda: answer)) as port:
        result = run("status", "--port", port)
    assert result.exit_code == ExitCode.NO_DAEMON
    assert "is not an Isotherm daemon" in result.stderr


@pytest.mark.parametrize(
    ("cache", "shown"),
    [
        (None, "pack cache    off\n"),
        ({"state": "read", "path": "p.packed", "done_bytes": 0, "total_bytes": 0}, "pack cache    read, p.packed\n"),
    ],
)
def test_the_pack_cache_is_told(cache: dict[str, Any] | None, shown: str) -> None:
    with serving(make_service(status=lambda: status_data(pack_cache=cache))) as port:
        assert shown in run("status", "--port", port).stdout
