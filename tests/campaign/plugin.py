"""A pytest plugin that shows the campaign's progress and prints its matrix: fault x (muster | gpu-burn | DCGM).

Loaded by `python -m tests.campaign`; it sees every report in the process that controls the workers.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.matrix import AREAS, Case, render, summary, write
from tests.campaign.model import Row, base_seed

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"
_PROGRESS_EVERY_S = 2.0


class Campaign:
    """Collects the rows of all cases and shows how far the campaign is. `whole`: no case was left out."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.cases: list[Case] = []
        self.failed: list[str] = []
        self.done: set[str] = set()
        self.total = 0
        self.started = time.monotonic()
        self._shown = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist the number of tests is known here."""
        self.total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Each xdist worker collects all tests and runs its part of them."""
        self.total = len(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the row that a test left, and how the test came out."""
        passed = report.passed
        if report.when == "call" or (report.when == "setup" and not passed):
            rows = [json.loads(str(value)) for name, value in report.user_properties if name == "campaign"]
            if not rows and not passed and (row := row_of(report.nodeid)) is not None:
                rows = [row.to_json()]  # it did not get as far as an outcome
            self.cases += [Case(row, passed, report.nodeid) for row in rows]
        if not passed and not report.skipped:
            self.failed.append(report.nodeid)
            self._line(f"FAILED {report.nodeid}")
        if report.when == "teardown":
            self.done.add(report.nodeid)
            self._progress()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot for what passes: it would break the line of the progress."""
        return ("passed" if report.when == "call" else "", "", "") if report.passed else None

    def pytest_unconfigure(self) -> None:
        """The matrix, last of all, to the terminal and to build/campaign.txt and .json."""
        seconds = time.monotonic() - self.started
        text = render(self.cases)
        if self.whole:
            write(BUILD, self.cases, text, base_seed(), seconds)
        print(text)
        for node in dict.fromkeys(self.failed):
            print(f"repeat with: {repeat_command(node)}")
        print(f"campaign: {summary(self.cases)} in {seconds:.0f} s, seed {base_seed()}", flush=True)

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._shown < _PROGRESS_EVERY_S and len(self.done) < self.total:
            return
        self._shown, elapsed = now, now - self.started
        left = elapsed / len(self.done) * (self.total - len(self.done))
        wrong = f", {len(set(self.failed))} failed" if self.failed else ""
        self._line(f"campaign: {len(self.done)} of {self.total} cases{wrong}, {left:.0f} s left")

    def _line(self, text: str) -> None:
        end = "\n" if not sys.stderr.isatty() or text.startswith("FAILED") else ""
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


def row_of(node: str) -> Row | None:
    """A row without an outcome, from a test's id; None for a test that is no case of the matrix."""
    match = re.search(r"test_(\w+)\.py::\w+\[(.*)\]$", node)
    return Row(match[1], match[2], 0) if match and match[1] in AREAS else None


def repeat_command(node: str) -> str:
    """The command that runs one case again."""
    return shlex.join(["python", "-m", "tests.campaign", "--seed", str(base_seed()), node])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of the command line of the campaign."""
    parser.addoption("--each", type=int, default=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the draws that were not asked for, and then what only repeats a kind (soak); each fault that is left
    keeps its first draw."""
    each: int = config.option.each
    left = [item for item in items if _draw(item) % each or (each > 1 and item.get_closest_marker("soak"))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def _draw(item: pytest.Item) -> int:
    """Number of the draw of its fault; 0 for a test that is drawn once."""
    of_item = getattr(item, "callspec", None)
    return 0 if of_item is None else int(of_item.params.get("index", 0))


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector in the process that controls the workers, not in the workers."""
    if not hasattr(config, "workerinput"):
        whole = not config.option.keyword and config.option.each == 1 and config.args == [str(HERE)]
        config.pluginmanager.register(Campaign(whole), "muster-campaign")
