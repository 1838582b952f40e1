"""A whole burn-in of this machine, in a folder and with a host key of its own, for tests and measurements."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.checks import CHECKS, SELFTESTED, USUAL_CHECKS
from gpu_burnin.system.children import die_with_parent

ROOT = Path(__file__).resolve().parents[3]
QUICK_LIMIT_S = 60.0
_ON_A_GPU = [name for name in USUAL_CHECKS if CHECKS[name].scope.per_gpu]
# Files of a run that are kept, and what they are called beside those of other runs. Journals go into one.
_KEPT = {"report.json": "{}.json", "report.html": "{}.html"}
_JOURNAL, JOURNALS = "journal.jsonl", "journal.jsonl"
# More is not taken back from where the burn-in ran.
MOST_BYTES = 15 << 20


@dataclass(frozen=True)
class Ran:
    """A run that is over: exit code, wall time, its report (None where there is none) and its standard error.

    `left_out` are files that were too large to be kept.
    """

    exit_code: int
    seconds: float
    report: dict[str, Any] | None
    errors: str
    left_out: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Codes and checks of the reasons, each once."""
        found = [] if self.report is None else self.report["reasons"]
        return sorted({f"{reason['code']} ({reason['check']})" for reason in found})


def burn_in(*arguments: str, keep: Path | None = None, name: str = "run", device: str = "cuda") -> Ran:
    """`gpu-burnin run` with more arguments. Nothing of it is left on the machine but what goes to `keep`."""
    with tempfile.TemporaryDirectory() as folder:
        key, config = Path(folder) / "host_key", Path(folder) / "config.yaml"
        config.write_text(json.dumps({"host_key": str(key), "state_dir": str(Path(folder) / "state")}))
        if shutil.which("ssh-keygen"):  # without it a run by hand is not signed, and says so
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        command = [sys.executable, "-m", "gpu_burnin", "run", "--backend", device, "--config", str(config), *arguments]
        started = time.monotonic()
        # It must not outlive this process, which may be killed: it would keep the GPU busy.
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_end_with_parent
        )
        _, errors = process.communicate()
        seconds = time.monotonic() - started
        found = list(Path(folder).rglob("report.json"))
        report = json.loads(found[0].read_text()) if found else None
        left_out = _keep(Path(folder) / "state", keep, name) if keep else ()
    return Ran(process.returncode, seconds, report, errors, left_out)


def _end_with_parent() -> None:
    die_with_parent(number=signal.SIGTERM)


def _keep(state: Path, keep: Path, name: str) -> tuple[str, ...]:
    """Copy a run's files; the names of those that are too large."""
    left_out = []
    for run in sorted((state / "runs").glob("*")):
        for origin, target in _KEPT.items():
            if not (run / origin).exists():
                continue
            if (run / origin).stat().st_size > MOST_BYTES:
                left_out.append(origin)
            else:
                shutil.copyfile(run / origin, keep / target.format(name))
        if (run / _JOURNAL).exists():
            events = (run / _JOURNAL).read_bytes()
            journals = keep / JOURNALS
            if len(events) + (journals.stat().st_size if journals.exists() else 0) > MOST_BYTES:
                left_out.append(_JOURNAL)
            else:
                with journals.open("ab") as file:
                    file.write(events)
    return tuple(left_out)


def shortfalls(ran: Ran) -> list[str]:
    """What a quick burn-in of healthy GPUs did not do: pass each check of a GPU, see each planted fault, be in time.

    What is wrong with the machine itself (no kernel log, a setting) may keep the run from a PASS, and only that.
    """
    if ran.report is None:
        return [f"exit status {ran.exit_code} and no report: {ran.errors[-2000:]}"]
    report = ran.report
    gpus = {gpu["uuid"] for gpu in report["gpus"]}
    verdicts = {(check["name"], check["gpu"]): check["verdict"] for check in report["checks"] if check["gpu"]}
    wanted = {(name, gpu) for name in _ON_A_GPU for gpu in gpus}
    tests = report["selftest"]
    found = [f"{name} of {gpu} was {verdicts.get((name, gpu), 'not run')}" for name, gpu in sorted(wanted)
             if verdicts.get((name, gpu)) != "PASS"]  # fmt: skip
    found += [
        f"{one['code']} ({one['check']}): {one['message']}" for one in report["reasons"] if one["check"] in _ON_A_GPU
    ]
    found += [f"the fault {one['fault']} of {one['check']} was not detected" for one in tests if not one["detected"]]
    found += [f"{name} did not test its detector" for name in sorted(SELFTESTED - {one["check"] for one in tests})]
    if not gpus or report["simulated"] is not False:
        found.append("no real GPU was tested")
    if not (ran.exit_code == 0) == (report["verdict"] == "PASS") == (report["reasons"] == []):
        found.append(
            f"exit status {ran.exit_code}, verdict {report['verdict']} and {len(report['reasons'])} reasons disagree"
        )
    if ran.seconds >= QUICK_LIMIT_S:
        found.append(f"it took {ran.seconds:.1f} s of {QUICK_LIMIT_S:.0f}")
    return found
