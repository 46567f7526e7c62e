"""The tables of a hardware profile on plain and narrow terminals."""

import subprocess
import sys

import pytest

SHOW = (sys.executable, "-m", "isotherm.daemon.cli", "calibrate", "--show", "ddr5-desktop")


def shown(monkeypatch: pytest.MonkeyPatch, **settings: str) -> str:
    """What the command prints with these environment variables."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return subprocess.run(SHOW, capture_output=True, check=True).stdout.decode()


def test_a_terminal_that_knows_only_ascii_is_shown_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, PYTHONIOENCODING="ascii")
    assert "71.7 +- 15%" in text
    assert "?" not in text


def test_a_narrow_terminal_cuts_no_number_of_a_product_off(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, PYTHONIOENCODING="utf-8", COLUMNS="40")
    assert "±" in text
    assert "…" not in text[text.index("kind ") :]
