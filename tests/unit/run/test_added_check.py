"""Adding a check touches its folder and one row: done here with a copy of the package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gpu_burnin
from tests.support.clocks import PATIENCE_S
from tests.support.node_runs import Node

ECHO = Path(__file__).resolve().parents[2] / "support/echo"


@pytest.fixture
def echoing(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose package has the check `echo`: its folder, and its name in the table of checks."""
    package = tmp_path / "with_echo" / "gpu_burnin"
    shutil.copytree(Path(gpu_burnin.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ECHO, package / "checks/echo", ignore=shutil.ignore_patterns("__pycache__"))
    table = package / "checks/__init__.py"
    before, last, after = table.read_text().partition('        "dcgm",\n')
    assert last, "the last row of CHECKS"
    table.write_text(f'{before}{last}        "echo",\n{after}')
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    node.configure(checks=["echo"], shapes={})
    return node


def started(node: Node, *arguments: str) -> str:
    process = node.start(*arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err, err
    return out


@pytest.mark.slow
def test_a_new_check_needs_its_folder_and_one_row(echoing: Node) -> None:
    assert "4,096 words, there and back" in started(echoing, "plan")

    told = started(echoing, "run")
    latest = echoing.store.latest
    assert "VERDICT  PASS" in told
    assert "injected faults detected (words, detector logic only)" in told
    assert "4,096 words echoed" in (latest / "report.html").read_text()
    assert 'check="echo"' in (latest / "metrics.prom").read_text()
    assert '<testsuite name="echo" tests="2" failures="0"' in (latest / "junit.xml").read_text()

    told = started(echoing, "run", "--inject", "echo:flipped:gpu=1")
    assert "VERDICT  FAIL" in told
    assert "GPU 1: other words" in told
