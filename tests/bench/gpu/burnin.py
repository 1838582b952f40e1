"""A whole burn-in of this machine, in a folder and with a host key of its own, for tests and measurements."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Ran:
    """A run that is over: exit code, wall time, its report (None where there is none) and its standard error."""

    exit_code: int
    seconds: float
    report: dict[str, Any] | None
    errors: str

    @property
    def reasons(self) -> list[str]:
        """Codes and checks of the reasons, each once."""
        found = [] if self.report is None else self.report["reasons"]
        return sorted({f"{reason['code']} ({reason['check']})" for reason in found})


def missing() -> str | None:
    """Why no burn-in can be run on this machine, or None: it signs its evidence with the host's key."""
    return None if shutil.which("ssh-keygen") else "ssh-keygen is missing: install openssh-client"


def burn_in(*arguments: str) -> Ran:
    """`gpu-burnin run --backend cuda` with more arguments; nothing of it is left on the machine."""
    with tempfile.TemporaryDirectory() as folder:
        key, config = Path(folder) / "host_key", Path(folder) / "config.yaml"
        config.write_text(json.dumps({"host_key": str(key), "state_dir": str(Path(folder) / "state")}))
        if (why := missing()) is not None:
            return Ran(-1, 0.0, None, why)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        command = [sys.executable, "-m", "gpu_burnin", "run", "--backend", "cuda", "--config", str(config), *arguments]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        found = list(Path(folder).rglob("report.json"))
        report = json.loads(found[0].read_text()) if found else None
    return Ran(done.returncode, seconds, report, done.stderr)
