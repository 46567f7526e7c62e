"""`isotherm chat` against daemons that are played by a scripted engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.cli.remote import connect
from isotherm.daemon.cli.talk import Talk
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import ContextLengthError, EngineError, InvalidRequestError
from support.api_service import make_service, serving
from support.cli import prompts, run, scripted
from support.scripted_engine import ByteTokenizer, ScriptedEngine, says
from typer.testing import Result

pytestmark = pytest.mark.usefixtures("own_folders")


def test_chat_once_prints_the_answer() -> None:
    with serving(make_service("Hi there")) as port:
        result = run("chat", "--url", f"http://127.0.0.1:{port}", "--once", "hello")
    assert (result.exit_code, result.stdout) == (0, "Hi there\n")


def test_chat_shows_reasoning_beside_the_answer() -> None:
    service = make_service("<think>Hm</think>Yes", chat_template=ChatTemplate("</think>"))
    with serving(service) as port:
        result = run("chat", "--url", f"http://127.0.0.1:{port}", "--once", "hello")
    assert (result.exit_code, result.stdout) == (0, "Yes\n")
    assert result.stderr.startswith("Hm\n")


def test_chat_sends_bytes_that_are_no_text_as_replacement_characters() -> None:
    engine = ScriptedEngine(lambda submit: says("ok"))
    with serving(make_service(engine)) as port:
        assert run("chat", "--url", f"http://127.0.0.1:{port}", "--once", "a\udcffb").exit_code == 0
    assert "a\ufffdb" in ByteTokenizer().decode(engine.submitted[0].prompt)


def test_the_terminal_may_know_no_unicode() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with serving(make_service("é!")) as port:
        line = [sys.executable, "-m", "isotherm.daemon.cli", "chat", "--url", f"http://127.0.0.1:{port}"]
        result = subprocess.run(line, env=environment, input=b"caf\xff\n", capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, b"?!\n")


def test_chat_reads_a_pipe_and_remembers_the_talk() -> None:
    engine = scripted(says("yes"))
    with serving(make_service(engine)) as port:
        result = run("chat", "--url", f"http://127.0.0.1:{port}", stdin="first\n\nsecond\n")
    assert result.stdout == "yes\nyes\n"
    assert prompts(engine)[1].startswith("user: first\nassistant: yes\nuser: second\n")


def test_chat_reset_forgets_the_talk_and_quit_ends_it() -> None:
    engine = scripted(says("yes"))
    with serving(make_service(engine)) as port:
        run("chat", "--url", f"http://127.0.0.1:{port}", stdin="first\n/reset\nsecond\n/quit\nthird\n")
    assert len(prompts(engine)) == 2
    assert prompts(engine)[1].startswith("user: second\n")


def test_chat_goes_on_after_a_refusal_and_forgets_the_question() -> None:
    engine = scripted([InvalidRequestError("too long")], says("yes"))
    with serving(make_service(engine)) as port:
        result = run("chat", "--url", f"http://127.0.0.1:{port}", stdin="first\nsecond\n")
    assert "the daemon refuses: too long" in result.stderr
    assert prompts(engine)[1].startswith("user: second\n")
    assert (result.exit_code, result.stdout) == (ExitCode.FAILURE, "yes\n")


def test_chat_once_exits_with_1_after_a_refusal() -> None:
    with serving(make_service([InvalidRequestError("too long")])) as port:
        result = run("chat", "--url", f"http://127.0.0.1:{port}", "--once", "hello")
    assert result.exit_code == ExitCode.FAILURE


def ask(service: Service, *arguments: object, stdin: str = "") -> Result:
    with serving(service) as port:
        return run("chat", "--port", port, *arguments, stdin=stdin)


def test_chat_takes_the_question_as_an_argument() -> None:
    assert ask(make_service("Hi"), "hello").stdout == "Hi\n"


def test_chat_with_two_questions_is_a_wrong_setting() -> None:
    result = run("chat", "hello", "--once", "hello")
    assert result.exit_code == ExitCode.USAGE
    assert "leave --once out" in result.stderr


@pytest.mark.parametrize(("limit", "words"), [(("--max-tokens", 2), "[cut off at 2 tokens]"), ((), "")])
def test_an_answer_that_was_cut_off_is_marked(limit: tuple[object, ...], words: str) -> None:
    result = ask(make_service("Hi!"), *limit, "hello")
    assert (result.exit_code, result.stderr.strip()) == (0, words)


def test_an_answer_that_fills_the_context_is_marked() -> None:
    engine = ScriptedEngine(lambda submit: says("Hi" * 100), max_context=100)
    assert "[the context is full; /reset starts a new talk]" in ask(make_service(engine), "hello").stderr


def test_a_talk_that_no_longer_fits_is_told_its_remedy() -> None:
    engine = scripted(says("yes"), [ContextLengthError("too long")])
    assert "/reset starts a new talk" in ask(make_service(engine), stdin="first\nsecond\n").stderr


def test_a_question_that_never_fits_has_no_such_remedy() -> None:
    assert "/reset" not in ask(make_service([ContextLengthError("too long")]), "hello").stderr


def test_an_error_in_the_middle_begins_a_line_of_its_own() -> None:
    result = ask(make_service([*says("Hi"), 0.3, EngineError("a step failed")]), "hello")
    assert result.stdout == "Hi\n"
    assert "the answer was cut off: a step failed" in result.stderr


def test_chat_help_lists_the_commands_and_reset_says_so() -> None:
    result = ask(make_service("Hi"), stdin="/help\n/reset\n/what\n")
    assert result.stderr.count("/quit or Ctrl-D ends") == 2
    assert "a new talk begins" in result.stderr
    assert "no such command" in result.stderr


def test_a_daemon_that_dies_between_two_questions_went_away() -> None:
    with serving(make_service("Hi")) as port:
        client = connect(None, port, None)
        talk = Talk(client, {})
        assert talk.say("hello")
    with pytest.raises(typer.Exit) as ended:
        talk.say("hello")
    assert ended.value.exit_code == ExitCode.NO_DAEMON


def test_chat_sends_the_first_key_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alpha\nbeta\n")
    with serving(make_service("Hi", api_keys=frozenset({key_digest("alpha")}))) as port:
        command = ("chat", "--url", f"http://127.0.0.1:{port}", "--once", "hello")
        refused, answered = run(*command), run(*command, "--api-key-file", tmp_path / "keys")
    assert refused.exit_code == ExitCode.USAGE
    assert "name the key by --api-key-file" in refused.stderr
    assert answered.stdout == "Hi\n"


def test_a_key_that_is_not_accepted_is_no_missing_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("beta\n")
    service = make_service("Hi", api_keys=frozenset({key_digest("alpha")}))
    result = ask(service, "hello", "--api-key-file", tmp_path / "keys")
    assert result.exit_code == ExitCode.USAGE
    assert "does not know the first key" in result.stderr
