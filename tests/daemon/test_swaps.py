"""Two tiny models under traffic in a real server with room for one: each answer is of the right model, none is lost,
and memory comes back."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from isotherm.api.app import create_app
from isotherm.api.sinks import Sinks
from isotherm.daemon.api_keys import KeyFile
from isotherm.daemon.cli.address import bind
from isotherm.daemon.cli.join import Models, join
from isotherm.daemon.cli.server import DaemonServer
from isotherm.daemon.config import Config
from isotherm.daemon.memory import GIB, RESERVE
from support import tiny

pytestmark = pytest.mark.usefixtures("own_folders", "thawed")

SWAPS = 20


def one_at_a_time(fleet: Models) -> None:
    """Room for one model, as far as the fleet is told."""
    room = RESERVE + int(0.06 * GIB)
    fleet._free = lambda: room - sum(hosted.nbytes for _, hosted in fleet.loaded())


def test_two_models_are_swapped_under_traffic(tmp_path: Path) -> None:
    configs = {}
    for name, architecture in (("one", "mixtral"), ("two", "qwen3_moe")):
        path = tmp_path / f"{name}.gguf"
        tiny.write_gguf(path, architecture, "Q4_0", max_position_embeddings=512)
        configs[name] = Config(model=path, threads=2, kv_gib=0.05, context=512, pack_cache=False)
    server, fleet, *_ = join(configs, KeyFile({}, (), None), Sinks(None, None, "one"))
    one_at_a_time(fleet)
    ready = threading.Event()
    daemon = DaemonServer(create_app(server), fleet, Config(drain_s=20), ready.set)
    daemon.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    sizes: list[int] = []
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=daemon.serve_on, args=(listener,))
        thread.start()
        try:
            assert ready.wait(20)
            answers = _swap(url, fleet, sizes)
            metrics = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
        finally:
            daemon.should_exit = True
            thread.join(60)
    assert {name: len(texts) for name, texts in answers.items()} == {"one": 1, "two": 1}
    assert answers["one"] != answers["two"]
    loads = sum(row["loads"] for row in fleet.show())
    assert loads >= SWAPS
    assert 'isotherm_model_loads_total{model="one"}' in metrics
    assert 'isotherm_steps_total{model="' in metrics
    assert max(sizes[4:]) - sizes[3] < 30 << 20, sizes


def _swap(url: str, fleet: Models, sizes: list[int]) -> dict[str, set[str]]:
    """Ask both at the same time, again and again; the different answers of each."""
    answers: dict[str, set[str]] = {"one": set(), "two": set()}

    def ask(client: httpx.Client, name: str) -> None:
        body = {"model": name, "prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["model"] == name
        answers[name].add(response.json()["choices"][0]["text"])

    limits = {"base_url": url, "trust_env": False, "timeout": 60}
    with httpx.Client(**limits) as client, ThreadPoolExecutor(4) as pool:  # type: ignore[arg-type]
        while sum(row["loads"] for row in fleet.show()) < SWAPS:
            list(pool.map(lambda name: ask(client, name), ("one", "two", "one", "two")))
            sizes.append(psutil.Process().memory_info().rss)
    return answers
