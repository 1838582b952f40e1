"""The campaign that make test runs: fewer draws of each fault, and each fault."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.lab.paths import REPOSITORY


def cases(each: int) -> dict[str, list[int]]:
    """The draws of each fault of a node's state, as pytest collects them."""
    options = ["-p", "tests.campaign.plugin", f"--each={each}", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/campaign/cases/test_state.py::test_state_fault"]
    told = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[int]] = {}
    for fault, draw in re.findall(r"^\S+::test_state_fault\[(.*)-(\d+)\]$", told, re.MULTILINE):
        found.setdefault(fault, []).append(int(draw))
    return found


@pytest.mark.slow
def test_every_third_draw_has_each_fault() -> None:
    every, third = cases(1), cases(3)
    assert list(third) == list(every) and len(every) > 50
    assert {fault: [draw for draw in draws if draw % 3 == 0] for fault, draws in every.items()} == third
    assert sum(map(len, third.values())) < sum(map(len, every.values()))
