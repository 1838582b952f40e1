"""A function is named by what it does or gives; that something is told or seen says neither."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VAGUE = r"^ *(async )?def (asked|said|seen|tell|told)\("
# One that is there may go, and none may come.
KEPT = {"tests/support/decide_helpers.py"}


def vague_names(root: Path) -> list[str]:
    """FILE:LINE:TEXT of each function whose name says nothing, in a checkout; what is not committed yet counts too."""
    command = ["git", "grep", "--untracked", "-nE", VAGUE, "--", "*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_functions_are_named_by_what_they_do() -> None:
    found = vague_names(ROOT)
    assert [one for one in found if one.partition(":")[0] not in KEPT] == []
    assert len(found) <= len(KEPT)


def test_a_name_that_says_nothing_is_seen(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "a.py").write_text("def told_of(): ...\nclass A:\n    async def told(self): ...\n")
    assert vague_names(tmp_path) == ["a.py:3:    async def told(self): ..."]
