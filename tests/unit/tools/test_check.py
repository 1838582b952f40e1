"""tools/check.sh: what it runs with and without --all and BASE, and that it fails with any of its steps."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("ruff", "mypy", "yamllint", "shellcheck", "pytest", "python")
# A tool that notes what it was called with. It fails where that begins with FAILS, and names one area for BASE.
TOOL = """#!/bin/sh
call="${0##*/} $*"
echo "$call" >>calls
case "$call" in *changed_areas*) echo tests/unit/tools ;; esac
case "$call" in "$FAILS"*) exit 1 ;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of check.sh alone."""
    for name in TOOLS:
        tool = tmp_path / ".venv/bin" / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(TOOL)
        tool.chmod(0o755)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/check.sh", tmp_path / "tools")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def check(checkout: Path, *arguments: str, base: str = "", fails: str = "no tool") -> tuple[int, list[str], str]:
    """How it ended, the calls of tools, and what it said of failures."""
    run = subprocess.run(
        ["tools/check.sh", *arguments],
        cwd=checkout,
        env={**os.environ, "BASE": base, "FAILS": fails},
        text=True,
        capture_output=True,
        check=False,
    )
    return run.returncode, (checkout / "calls").read_text().splitlines(), run.stderr


def test_the_fast_loop_leaves_out_slow_tests_and_lints_what_changed(checkout: Path) -> None:
    status, calls, _ = check(checkout)
    assert status == 0
    assert "python -m tools.ansible_lint" in calls
    fast = "-m not slow and not soak --durations=10 --durations-min=0.5"
    assert f"pytest -q -n 2 {fast} tests/unit --junitxml=build/unit.xml" in calls


def test_everything_has_slow_tests_and_lints_all(checkout: Path) -> None:
    status, calls, _ = check(checkout, "--all")
    assert status == 0
    assert "python -m tools.ansible_lint --all" in calls
    assert "pytest -q -n 2 -m not soak tests/unit --junitxml=build/unit.xml" in calls


def test_base_adds_slow_tests_of_what_changed_since_and_lints_that(checkout: Path) -> None:
    status, calls, _ = check(checkout, base="v1")
    assert status == 0
    assert {"python tools/changed_areas.py v1", "python -m tools.ansible_lint v1"} <= set(calls)
    assert "pytest -q -n 2 -m slow and not soak tests/unit/tools" in calls


@pytest.mark.parametrize(
    ("fails", "step"),
    [
        ("ruff check", "ruff"),
        ("ruff format", "format"),
        ("mypy", "mypy"),
        ("yamllint", "yamllint"),
        ("shellcheck", "shellcheck"),
        ("python -m tools.docs", "generated"),
        ("python -m tools.dashboards", "dashboards"),
        ("pytest", "unit"),
        ("python -m tools.ansible_lint", "ansible-lint"),
    ],
)
def test_it_fails_with_each_of_its_steps_and_names_it(checkout: Path, fails: str, step: str) -> None:
    status, calls, said = check(checkout, fails=fails)
    assert status == 1
    assert said.endswith(f"check: failed: {step}\n")
    assert calls[-1].startswith(("pytest", "python -m tools.ansible_lint")), "the others run all the same"


def test_an_unknown_base_ends_it_before_any_step(checkout: Path) -> None:
    assert check(checkout, base="v1", fails="python tools/changed_areas.py")[:2] == (
        2,
        ["python tools/changed_areas.py v1"],
    )
