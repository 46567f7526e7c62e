"""`isotherm profile`: a model's prompts are run and recorded, and what is known is shown."""

import json
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon import assembly as assembly_module
from isotherm.daemon import runner as runner_module
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.paths import routing_file
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import StepPlan
from isotherm.experts.model import open_model
from isotherm.placement.trace_file import load_trace, merge_into, save_trace
from numpy.typing import NDArray
from support.cli import run
from support.tiny import write_gguf
from support.traces import FINGERPRINT, decoded

pytestmark = pytest.mark.usefixtures("own_folders")

PNG = b"\x89PNG\r\n\x1a\n"
RUN = ("--threads", 1, "--context", 64, "--tokens", 4, "--no-pack-cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "mixtral", "Q4_0")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the other"}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    return path


def test_prompts_are_recorded_for_the_model_and_added_up(model: Path, prompts: Path) -> None:
    path = routing_file(open_model(model).checkpoint.fingerprint)
    for times in (1, 2):
        result = run("profile", model, "--prompts", prompts, *RUN)
        assert result.exit_code == 0, result.output
        assert str(path) in result.output
        trace = load_trace(path)
        prompt_tokens = trace.phases["prefill"].tokens[0]
        assert f"2 prompts: {prompt_tokens / times:.0f} tokens of them" in result.output
        assert trace.phases["decode"].tokens[0] == len(trace.sample) <= times * 2 * 3
        assert trace.phases["decode"].counts.sum() == trace.phases["decode"].tokens.sum() * trace.top_k


def test_a_file_of_its_own_leaves_the_model_s_trace_alone(model: Path, prompts: Path, tmp_path: Path) -> None:
    result = run("profile", "--out", tmp_path / "own.npz", model, "--prompts", prompts, *RUN)
    assert result.exit_code == 0, result.output
    assert load_trace(tmp_path / "own.npz").fingerprint == open_model(model).checkpoint.fingerprint
    assert not routing_file(open_model(model).checkpoint.fingerprint).exists()
    assert not list(tmp_path.glob("own.npz?*"))


def test_prompts_come_from_standard_input(model: Path, tmp_path: Path) -> None:
    result = run("profile", model, "--prompts", "-", "--out", tmp_path / "t.npz", *RUN, stdin="the\nother\nin\n")
    assert result.exit_code == 0, result.output
    assert "3 prompts" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--prompts", ""), "--prompts names nothing; name a file or a folder"),
        (("--out", "nowhere/t.npz"), "--out nowhere/t.npz lies in no folder that exists"),
        (("--context", 4), "--context is 4; it must lie between"),
        (("--tokens", 600, "--context", 500), "--tokens 600 leaves no room for a prompt in a context of 500"),
    ],
)
def test_a_wrong_setting_exits_with_2_and_says_why(arguments: tuple[object, ...], words: str, model: Path) -> None:
    result = run("profile", model, *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr


def test_a_prompt_that_does_not_fit_is_named_before_weights_are_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("short\n" + "no room " * 40)
    result = run("profile", model, "--prompts", tmp_path / "p.txt", *RUN)
    assert result.exit_code == ExitCode.USAGE
    assert "p.txt, line 2: the prompt has" in result.stderr and "at most 60 tokens" in result.stderr


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "dense.gguf", "llama", "Q4_0")
    for command in (("profile",), ("profile", "show")):
        result = run(*command, tmp_path / "dense.gguf")
        assert result.exit_code == ExitCode.USAGE
        assert "dense.gguf has no experts" in result.stderr


def test_a_model_that_is_not_there_is_named() -> None:
    result = run("profile", "nowhere.gguf")
    assert result.exit_code == ExitCode.MODEL
    assert "nowhere.gguf" in result.stderr


def test_a_trace_is_drawn_with_what_it_says_of_pinning(tmp_path: Path) -> None:
    save_trace(tmp_path / "t.npz", decoded(300))
    result = run("profile", "show", tmp_path / "t.npz", "--png", tmp_path / "t.png")
    assert result.exit_code == 0, result.output
    assert "300 decoded tokens, 2 of 8 experts in each of 3 layers" in result.output
    assert "Pinning will help this model" in result.output
    assert "20% (5)" in result.output  # of 24 experts
    assert (tmp_path / "t.png").read_bytes().startswith(PNG)


def test_too_little_traffic_is_said_and_still_drawn(tmp_path: Path) -> None:
    save_trace(tmp_path / "t.npz", decoded(5))
    result = run("profile", "show", tmp_path / "t.npz", "--png", tmp_path / "t.png", "--phase", "prefill")
    assert result.exit_code == 0, result.output
    assert "0 tokens of prompts" in result.output
    assert "Nothing can be said of pinning yet" in result.output
    assert (tmp_path / "t.png").read_bytes().startswith(PNG)


def test_json_holds_counts_skew_and_verdict(tmp_path: Path) -> None:
    trace = decoded(300)
    save_trace(tmp_path / "t.npz", trace)
    shown = json.loads(run("profile", "show", tmp_path / "t.npz", "--json").stdout)
    np.testing.assert_array_equal(shown["phases"]["decode"]["counts"], trace.phases["decode"].counts)
    assert (shown["fingerprint"], shown["layers"], shown["top_k"]) == (FINGERPRINT, [0, 1, 2], 2)
    assert shown["verdict"]["pinning"] == "helps"
    assert shown["skew"]["coverage"][0]["held_out"] > shown["skew"]["coverage"][0]["uniform"]


def test_json_of_too_little_traffic_has_no_skew(tmp_path: Path) -> None:
    save_trace(tmp_path / "t.npz", decoded(5))
    shown = json.loads(run("profile", "show", tmp_path / "t.npz", "--json").stdout)
    assert shown["skew"] is None and shown["verdict"]["pinning"] == "unknown"


def test_the_trace_of_a_model_is_found_by_the_model(model: Path) -> None:
    fingerprint = open_model(model).checkpoint.fingerprint
    result = run("profile", "show", model)
    assert result.exit_code == ExitCode.FAILURE
    assert f"no routing of {model} was recorded yet" in result.stderr and "isotherm profile" in result.stderr
    merge_into(routing_file(fingerprint), decoded(100, fingerprint=fingerprint))
    assert "100 decoded tokens" in run("profile", "show", model).output


def test_without_a_name_the_last_trace_is_shown() -> None:
    result = run("profile", "show")
    assert result.exit_code == ExitCode.FAILURE
    assert "no routing was recorded yet" in result.stderr
    merge_into(routing_file(FINGERPRINT), decoded(100))
    assert "100 decoded tokens" in run("profile", "show").output


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_text("no archive")
    result = run("profile", "show", tmp_path / "t.npz")
    assert result.exit_code == ExitCode.USAGE
    assert "t.npz" in result.stderr and "isotherm profile" in result.stderr


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    save_trace(tmp_path / "t.npz", decoded(100))
    result = run("profile", "show", tmp_path / "t.npz", "--png", tmp_path / "nowhere" / "t.png")
    assert result.exit_code == ExitCode.USAGE
    assert "lies in no folder that exists" in result.stderr


def test_a_model_that_gives_no_numbers_ends_with_the_engine_s_code(
    model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(DecoderRunner):
        def execute(self, plan: StepPlan) -> NDArray[np.float32]:
            return super().execute(plan) * np.float32(np.nan)

    monkeypatch.setattr(runner_module, "DecoderRunner", Broken)
    monkeypatch.setattr(assembly_module, "check_ops", lambda *arguments: 0)
    result = run("profile", model, "--prompts", prompts, *RUN)
    assert result.exit_code == ExitCode.ENGINE
    assert "NaN or infinite logit" in result.stderr


def test_a_kept_trace_that_is_damaged_is_named_before_prompts_are_run(
    model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = routing_file(open_model(model).checkpoint.fingerprint)
    kept.parent.mkdir(parents=True)
    kept.write_text("damaged")
    monkeypatch.setattr("isotherm.daemon.routing_profile.run_profile", lambda *arguments: pytest.fail("was run"))
    result = run("profile", model, "--prompts", prompts, *RUN)
    assert result.exit_code == ExitCode.USAGE
    assert f"{kept} is damaged" in result.stderr
