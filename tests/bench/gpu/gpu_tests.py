"""One file of tests/gpu in this process: outcomes are told as they come, so that a crash loses one test's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError

FOLDER = Path(__file__).resolve().parents[2] / "gpu"
# A test that takes longer leaves in the log where it is.
_HANGS_S = 20
_MOST_SKIPS = 5


class Outcomes:
    """A plugin of pytest that counts outcomes."""

    def __init__(self, save: Callable[..., None]) -> None:
        self._save = save
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test is over."""
        name = report.nodeid.rpartition("/")[2]
        if report.failed:
            crash = str(getattr(report.longrepr, "reprcrash", None) or report.longrepr or "")
            # What is told is published: no folder of this machine in it.
            said = crash.replace(f"{FOLDER.parents[1]}/", "").strip().splitlines()
            self.failed.append(f"{name}: {said[0][:300] if said else report.when}")
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped[why.removeprefix("Skipped: ")] += 1
        elif report.when == "call":
            self.passed += 1
        else:
            return
        self._save(passed=self.passed, failed=self.failed, skipped=dict(self.skipped))


def run_file(save: Callable[..., None], name: str, folder: Path = FOLDER) -> None:
    """Run the file `name`.py. Raises GpuBurninError when a test failed or none was run, ImportError without pytest."""
    import pytest

    seen = Outcomes(save)
    file = folder / f"{name}.py"
    options = ["-q", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={_HANGS_S}", "-m", "gpu", str(file)]
    status = int(pytest.main(options, plugins=[seen]))
    if seen.failed:
        raise GpuBurninError(f"{len(seen.failed)} failed: {'; '.join(seen.failed[:3])}")
    if not seen.passed:
        raise GpuBurninError(f"no test was run: {', '.join(list(seen.skipped)[:_MOST_SKIPS]) or f'pytest {status}'}")
    if status != 0:
        raise GpuBurninError(f"pytest ended with status {status}; see the log")
