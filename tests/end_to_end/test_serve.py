"""The daemon as a process: start, status, stop, and what it says when it cannot start."""

import json
import shlex
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from isotherm.daemon.state import live_daemons
from support import tiny
from support.api_service import wait_until
from support.daemon_process import COMMAND, PATIENCE_S, Daemon, command, environment, launched, running, wait_for_url

QUESTION = {"messages": [{"role": "user", "content": "the cat"}], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny-moe.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=4096)
    return path


def ask(daemon: Daemon, **fields: Any) -> httpx.Response:
    return httpx.post(f"{daemon.url}/v1/chat/completions", json=QUESTION | fields, timeout=60, trust_env=False)


def ask_beside(daemon: Daemon, **fields: Any) -> tuple[threading.Thread, list[httpx.Response | httpx.HTTPError]]:
    """Ask in a thread; the list gets the answer or the error. Returns when the request runs."""
    answers: list[httpx.Response | httpx.HTTPError] = []

    def work() -> None:
        try:
            answers.append(ask(daemon, **fields))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    daemon.wait_for("isotherm_requests_running", 1)
    return thread, answers


def test_background_daemon_is_started_asked_and_stopped(tmp_path: Path, model: Path) -> None:
    started = command(tmp_path, "serve", model, "--port", 0, "--threads", 2, "--background", "--no-pack-cache")
    assert started.returncode == 0, started.stderr
    try:
        assert "tiny-moe is served at http://127.0.0.1:" in started.stdout
        talk = command(tmp_path, "chat", "--once", "hello", "--max-tokens", 4)
        assert (talk.returncode, talk.stderr) == (0, "[cut off at 4 tokens]\n")
        status = json.loads(command(tmp_path, "status", "--json").stdout)
        assert status["state"] == "ready"
        assert status["model"]["formats"]["Q4_0"] == {"tensors": 16, "packed": "q4", "exact": True}
        assert status["generated_tokens"] > 0
        assert f"process {status['pid']}" in started.stdout
    finally:
        stopped = command(tmp_path, "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert command(tmp_path, "stop").returncode == 6


def test_signal_lets_the_open_request_finish_and_exits_with_0(tmp_path: Path, model: Path) -> None:
    """[67]"""
    with running(tmp_path, model) as daemon:
        thread, answers = ask_beside(daemon, max_tokens=1500)
        assert daemon.stop(signal.SIGTERM) == 0
        thread.join()
    (answer,) = answers
    assert isinstance(answer, httpx.Response)
    assert answer.json()["usage"]["completion_tokens"] == 1500


def test_prompts_are_scored_and_embedded(tmp_path: Path, model: Path) -> None:
    """The score of a token is what drawing it gives, and an embedding does not depend on how many there are."""
    with running(tmp_path, model) as daemon, httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as client:

        def complete(prompt: list[int], **fields: Any) -> dict[str, Any]:
            body = {"prompt": prompt, "logprobs": 1, "temperature": 0, **fields}
            answer: dict[str, Any] = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
            return answer

        ids = client.post("/tokenize", json={"prompt": "the cat sat on the mat " * 30}).json()["tokens"]
        scored = complete(ids, echo=True, max_tokens=0)
        drawn = complete(ids[:-1], max_tokens=1, allowed_token_ids=[ids[-1]])
        assert scored["token_logprobs"][-1] == drawn["token_logprobs"][0]
        assert len(scored["tokens"]) == len(ids)
        vectors = client.post("/v1/embeddings", json={"input": [ids, ids[:9]]}).json()["data"]
        (alone,) = client.post("/v1/embeddings", json={"input": ids}).json()["data"]
        assert vectors[0]["embedding"] == alone["embedding"]
        assert vectors[1]["embedding"] != alone["embedding"]


def test_the_routing_of_its_traffic_outlives_a_daemon(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, model) as daemon:
        assert ask(daemon, max_tokens=300).status_code == 200
        assert daemon.stop(signal.SIGTERM) == 0
    shown = json.loads(command(tmp_path, "profile", "show", model, "--json").stdout)
    assert shown["phases"]["decode"]["tokens"] == [299, 299]
    assert shown["skew"]["tokens"] == 299


def test_second_signal_cuts_the_open_request_off(tmp_path: Path, model: Path) -> None:
    """[67]"""
    with running(tmp_path, model) as daemon:
        thread, answers = ask_beside(daemon, max_tokens=4000)
        daemon.process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.HTTPError):
            while True:  # until the first signal has closed the door
                httpx.get(f"{daemon.url}/health", timeout=60, trust_env=False)
        assert daemon.stop(signal.SIGINT) == 8
        thread.join()
    (answer,) = answers
    assert isinstance(answer, httpx.HTTPError) or answer.status_code >= 500


def test_background_daemon_starts_where_the_standard_streams_are_closed(tmp_path: Path, model: Path) -> None:
    """Its socket must not take their numbers, nor its log be lost."""
    options = ("--port", "0", "--threads", "2", "--background", "--no-pack-cache")
    serve = shlex.join([*COMMAND, "serve", str(model), *options])
    subprocess.run(["sh", "-c", f"{serve} <&- >&- 2>&-"], env=environment(tmp_path), check=True, timeout=PATIENCE_S)
    assert command(tmp_path, "status").returncode == 0
    assert command(tmp_path, "stop").returncode == 0
    (log,) = (tmp_path / "state" / "isotherm").glob("*.log")
    assert "serving" in log.read_text()


def test_a_server_that_is_open_to_the_network_tells_so(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, model, "--host", "0.0.0.0") as daemon:
        assert daemon.metrics()['isotherm_fallback_events_total{name="open_to_network"}'] == 1
        assert "anyone who reaches this machine" in daemon.output.read_text()


def test_a_hangup_reloads_a_daemon_with_a_file_while_a_request_is_open(tmp_path: Path, model: Path) -> None:
    file, keys = tmp_path / "config.toml", tmp_path / "keys.txt"
    file.write_text(f"[server]\napi_key_file = {str(keys)!r}")
    keys.write_text("first")
    with running(tmp_path, model, "--config", file) as daemon, httpx.Client(trust_env=False, timeout=60) as client:
        first, second = ({"authorization": f"Bearer {key}"} for key in ("first", "second"))
        url = f"{daemon.url}/v1/chat/completions"
        body = QUESTION | {"stream": True, "max_tokens": 200}
        with client.stream("POST", url, json=body, headers=first) as answer:
            lines = answer.iter_lines()
            next(lines)
            keys.write_text("second")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: client.get(f"{daemon.url}/v1/models", headers=second).status_code == 200)
            assert client.get(f"{daemon.url}/v1/models", headers=first).status_code == 401
            assert list(lines)[-2] == "data: [DONE]"
        assert daemon.stop() == 0


def ran_s(pid: int) -> float:
    """Seconds that all threads of a process have run, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="exact CPU time is read from Linux's /proc")
def test_an_idle_daemon_uses_less_than_a_hundredth_of_a_core(tmp_path: Path, model: Path) -> None:
    with running(tmp_path, model) as daemon:
        assert ask(daemon, max_tokens=8).status_code == 200

        def ran_in_three_seconds() -> float:
            before = ran_s(daemon.process.pid)
            time.sleep(3)
            return ran_s(daemon.process.pid) - before

        wait_until(lambda: ran_in_three_seconds() < 0.03, 60)  # it may take a while until the request is all over


def test_nohup_keeps_the_daemon(tmp_path: Path, model: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running(tmp_path, model) as daemon:
            daemon.process.send_signal(signal.SIGHUP)  # there is no terminal: it reloads
            assert httpx.get(f"{daemon.url}/health", timeout=60, trust_env=False).status_code == 200
            assert daemon.stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("background", [(), ("--background",)])
def test_broken_model_exits_with_3_and_its_reason(tmp_path: Path, background: tuple[str, ...]) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 40)
    done = command(tmp_path, "serve", broken, "--port", 0, *background)
    assert done.returncode == 3
    assert f"isotherm: {broken}" in done.stderr


def test_model_that_does_not_fit_exits_with_4_and_what_would(tmp_path: Path, model: Path) -> None:
    done = command(tmp_path, "serve", model, "--port", 0, "--kv-gib", 100_000)
    assert done.returncode == 4
    assert "does not fit" in done.stderr
    assert "would" in done.stderr


def test_bench_prints_one_json_object(tmp_path: Path, model: Path) -> None:
    sizes = ("--prompt", 40, "--gen", 4, "--streams", "1,3")
    done = command(tmp_path, "bench", model, "--threads", 2, *sizes, "--no-pack-cache", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rates = (
        "prefill_tok_s",
        "decode_tok_s",
        "read_gb_s",
        "decode_gb_s",
        "memory_wall_share",
        "load_s",
        "first_token_s",
    )
    told = {"threads", "streams", "runs", "calibrated", "usual_gb_s", "counted", "of_all"}
    assert set(result) == {*told, *rates}
    assert all(result[name] > 0 for name in rates)
    assert result["streams"].keys() == {"1", "3"}
    assert all(set(row) == {"decode_tok_s", "prefill_tok_s"} for row in result["streams"].values())


def test_a_daemon_that_loads_says_so_and_no_request_is_refused_a_connection(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with launched(tmp_path, model) as (process, output), httpx.Client(trust_env=False, timeout=60) as client:
        wait_until(lambda: live_daemons(), PATIENCE_S)
        url, port = live_daemons()[0].url, live_daemons()[0].port
        wait_until(lambda: listens(port), PATIENCE_S)
        answers = [client.get(f"{url}/health")]
        while answers[-1].status_code != 200:
            answers.append(client.get(f"{url}/health"))
        told = [answer.json()["reason"] for answer in answers[:-1]]
        assert any(reason.startswith("tiny-moe is still loading (") for reason in told)
        assert {answer.status_code for answer in answers} == {503, 200}
        assert Daemon(process, wait_for_url(process, output), output).stop() == 0


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
