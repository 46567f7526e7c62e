"""`isotherm bench --url` against a served app: what it shows, refuses and keeps to itself."""

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import OverloadedError
from isotherm.daemon.messages import Submit
from support.api_service import MODEL, make_service, serving
from support.cli import run
from support.held_port import held_port
from support.scripted_engine import HANG, ScriptedEngine, Step, says

pytestmark = pytest.mark.usefixtures("own_folders")

SHORT = ("--prompt", 200, "--gen", 8, "--requests", 4, "--warm-up", 1)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(make_service("Hello world")) as port:
        yield f"http://127.0.0.1:{port}/v1"


def bench(url: str, *arguments: object) -> Any:
    return run("bench", "--url", url, *SHORT, *arguments)


def found(url: str, *arguments: object) -> dict[str, Any]:
    result = bench(url, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_streams_are_measured_with_the_servers_own_counts(url: str) -> None:
    value = found(url, "--streams", "1,2")
    assert [(row["streams"], row["requests"], row["failures"]) for row in value["points"]] == [(1, 4, {}), (2, 4, {})]
    row = value["points"][0]
    assert row["output_tokens"]["p99"] == 8
    assert row["prompt_tokens"]["p50"] == pytest.approx(200, rel=0.2)
    assert row["ttft_s"]["count"] == row["e2e_s"]["count"] == 4
    assert 0 < row["ttft_s"]["p50"] <= row["e2e_s"]["p99"]
    assert row["output_tok_s"] > 0


def test_json_says_what_was_asked(url: str) -> None:
    value = found(url, "--streams", 1, "--shared-prefix", 50, "--seed", 7)
    workload = value["options"]["workload"]
    assert (value["url"], workload["model"]) == (url.removesuffix("/v1"), MODEL)
    assert (workload["shared_prefix"], workload["seed"], workload["gen"]) == (50, 7, 8)
    assert value["options"]["sized_by_server"] is True


def test_a_rate_is_measured(url: str) -> None:
    (row,) = found(url, "--rate", "200")["points"]
    assert (row["rate"], row["streams"], row["requests"]) == (200.0, None, 4)


def test_tables_and_notes_are_plain_words(url: str) -> None:
    result = bench(url, "--streams", 1, "--ttft-limit", 60000)
    assert result.exit_code == 0
    assert f"{MODEL} at http://127.0.0.1" in result.stdout
    for words in ("first token", "each token after", "between pieces", "whole answer", "p95", "in the limits"):
        assert words in result.stdout
    assert "of fewer than 100 values p99 is the slowest one" in result.stdout


def test_a_picture_is_written(url: str, tmp_path: Path) -> None:
    result = bench(url, "--streams", 1, "--plot", tmp_path / "a.png")
    assert "Written to" in result.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_structured_answers_are_asked_for_and_judged(url: str) -> None:
    value = found(url, "--streams", 1, "--structured")
    assert value["points"][0]["valid_share"] == 0.0  # this engine says the same whatever the schema


def test_prompts_of_a_file_are_sent(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda submit: says("Hi"))
    (tmp_path / "p.txt").write_text("What is blue?\n", encoding="utf-8")
    with serving(make_service(engine)) as port:
        arguments = ("--prompts", tmp_path / "p.txt", "--requests", 2, "--streams", 1, "--gen", 8)
        assert run("bench", "--url", f"http://127.0.0.1:{port}", *arguments).exit_code == 0
    assert bytes(engine.submitted[-1].prompt).decode() == "user: What is blue?\n"


def test_refusals_are_counted_and_quoted() -> None:
    class Full(ScriptedEngine):
        """Has room for one, and keeps those that are measured until another was refused."""

        refused = False

        def check_open(self, tenant: str = "") -> None:
            try:
                super().check_open(tenant)
            except OverloadedError:
                self.refused = True
                raise

        def answer(self, submit: Submit) -> Iterator[Step]:
            while len(self.submitted) > 3 and not self.refused:  # two size the prompts, and one warms up
                yield 0.005
            yield from says("Hi")

    engine = Full(lambda submit: engine.answer(submit), refuse=OverloadedError("the queue is full", 1.0), capacity=1)
    with serving(make_service(engine)) as port:
        result = run("bench", "--url", f"http://127.0.0.1:{port}", *SHORT, "--streams", 4)
    assert result.exit_code == 0
    assert re.search(r"4 streams: \d failed: status 429 \(.*the queue is full.*\)", result.stdout)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, though a shell may have started the tests in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_shows_what_was_measured() -> None:
    turns = iter(range(100))

    def script(submit: Submit) -> list[Step]:
        if next(turns) < 5:  # two that size the prompts, and one to warm up
            return says("Hi")
        asyncio.get_running_loop().call_later(0.1, signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
        return [HANG]

    with serving(make_service(ScriptedEngine(script))) as port:
        result = run("bench", "--url", f"http://127.0.0.1:{port}", *SHORT, "--streams", "1,2", "--json")
    value = json.loads(result.stdout)
    assert value["interrupted"] is True
    assert [(row["requests"], row["cut_off"]) for row in value["points"]] == [(2, 1)]
    assert result.exit_code == 0
    assert "stopped" in result.stderr


def keyed() -> Service:
    return make_service("Hi", api_keys=frozenset({key_digest("sk-right")}))


@pytest.mark.parametrize("way", ["file", "variable"])
def test_a_key_is_sent_and_not_shown(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("sk-right\n", encoding="utf-8")
    arguments: tuple[object, ...] = ("--api-key-file", tmp_path / "keys")
    if way == "variable":
        monkeypatch.setenv("ISOTHERM_API_KEY", "sk-right")
        arguments = ()
    with serving(keyed()) as port:
        result = run("bench", "--url", f"http://127.0.0.1:{port}", *SHORT, "--streams", 1, *arguments)
    assert result.exit_code == 0
    assert "sk-right" not in result.output


@pytest.mark.parametrize("named", [(), ("--served-model", "m")])
def test_without_the_key_the_remedy_is_named(named: tuple[str, ...]) -> None:
    with serving(keyed()) as port:
        result = run("bench", "--url", f"http://127.0.0.1:{port}", *SHORT, *named)
    assert result.exit_code == ExitCode.FAILURE
    assert "name the key by --api-key-file, or in ISOTHERM_API_KEY" in result.stderr


def test_no_server_is_told_without_the_password_of_the_address() -> None:
    with held_port() as port:
        result = run("bench", "--url", f"http://me:sesame@127.0.0.1:{port}", *SHORT)
    assert result.exit_code == ExitCode.NO_DAEMON
    assert f"no server answers at http://127.0.0.1:{port}" in result.stderr
    assert "sesame" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--streams", "0"), "--streams is '0'"),
        (("--rate", "0"), "--rate is 0; it must be more than 0"),
        (("--rate", "fast"), "--rate is nan"),
        (("--rate", "1", "--streams", "2"), "--streams does not go with --rate"),
        (("--shared-prefix", 200), "--shared-prefix is 200; it must be less than the 200 of --prompt"),
        (("--prompts", "p.jsonl"), "--prompt does not go with --prompts"),
        (("--structured", "--ignore-eos"), "--ignore-eos does not go with --structured"),
        (("--duration", "-1"), "--duration is -1"),
        (("--timeout", "0"), "--timeout is 0"),
        (("--ttft-limit", "0"), "--ttft-limit is 0"),
        (("--threads", "2"), "--threads does not go with --url"),
        (("--kernels",), "--kernels does not go with --url"),
        (("model.gguf",), "a model does not go with --url"),
        (("--plot", "nowhere/a.png"), "--plot nowhere/a.png lies in no folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(arguments: tuple[object, ...], words: str) -> None:
    result = bench("http://127.0.0.1:9", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr


def test_options_of_a_server_do_not_go_with_a_model() -> None:
    result = run("bench", "model.gguf", "--rate", 3)
    assert result.exit_code == ExitCode.USAGE
    assert "--rate does not go with a model" in result.stderr
