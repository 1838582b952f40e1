"""A whole burn-in of a real node: everything passes but the memory test, which the cuda backend does not have yet."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from gpu_burnin.errors import EXIT_INCONCLUSIVE

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 60.0  # of the level quick


def test_a_quick_run_lacks_the_memory_test_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu_burnin", "run", "--level", "quick", "--backend", "cuda"]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "state")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    assert done.returncode == EXIT_INCONCLUSIVE, done.stderr
    run_dir = next(line.removeprefix("report: ") for line in done.stderr.splitlines() if line.startswith("report: "))
    path = Path(run_dir) / "report.json"
    report = json.loads(path.read_text())
    assert report["verdict"] == "INCONCLUSIVE"
    assert report["simulated"] is False
    reasons = [(reason["code"], reason["check"]) for reason in report["reasons"]]
    assert {("COVERAGE_LOW", "hbm")} == set(reasons), json.dumps(report["reasons"], indent=1)
    assert seconds < _LIMIT_S
