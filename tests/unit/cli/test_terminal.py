"""What a person sees at a terminal, and what a file or a pipe gets."""

from __future__ import annotations

import io

import pytest

from gpu_burnin.cli import terminal


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(text: str, out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdout", out)
    terminal.show(text)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_verdicts_in_colour_and_words_that_look_like_one_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = shown("VERDICT  FAIL   (x)\n1  PASS  INCONCL\nPASSIVE NVLINK FAILED\n", _Tty(), monkeypatch)
    assert told == (
        "VERDICT  \x1b[31m\x1b[1mFAIL\x1b[0m   (x)\n"
        "1  \x1b[32mPASS\x1b[0m  \x1b[33mINCONCL\x1b[0m\nPASSIVE NVLINK FAILED\n"
    )


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_it_is_not_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert shown("FAIL\n", _Tty(), monkeypatch) == "FAIL\n"


def test_a_file_gets_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("FAIL", io.StringIO(), monkeypatch) == "FAIL\n"


def test_a_report_of_another_machine_commands_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("a\x1b[2Jb\x9bc\n", _Tty(), monkeypatch) == "a?[2Jb?c\n"


@pytest.mark.parametrize(("columns", "width"), [("132", 132), ("60", 60), ("8", 40)])
def test_width_is_that_of_the_terminal(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.width() == width
