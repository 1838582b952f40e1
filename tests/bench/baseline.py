"""What `muster baseline` takes for 7,500 nodes of 8 GPUs and half a year: `python -m tests.bench.baseline`.

Rates are drawn from a seed. The command is a process of its own, as a person starts it. It is measured with 26 weeks of
rates, and on a controller where the reports of all nodes are new: one real-sized report under the name of each host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.fleet.baseline.rates import FILE, KEPT_WEEKS
from gpu_burnin.report import model
from gpu_burnin.system.clock import rfc3339
from tests.support.rate_fleets import Fleet, name, state_of
from tests.support.sample_reports import doubtful_8

NODES = 7500


def new_reports(folder: Path, nodes: int) -> int:
    """A state in which every report is new; the bytes of one."""
    changes = {"verdict": "PASS", "interrupted": False, "simulated": False, "finished_at": rfc3339(datetime.now(UTC))}
    data = (json.dumps({**model.document(doubtful_8()[0]), **changes}, indent=1) + "\n").encode()
    (folder / "report.json").write_bytes(data)
    for number in range(nodes):
        (folder / "reports" / name(number)).mkdir(parents=True)
        os.link(folder / "report.json", folder / "reports" / name(number) / "report.json")
    return len(data)


def measure(what: str, state: Path, code: int) -> None:
    """Run the command and print what it took. Raises RuntimeError for another exit code."""
    program = "from gpu_burnin.__main__ import muster; muster()"
    with (state / "said").open("wb") as said:
        started = time.monotonic()
        command = subprocess.Popen(
            [sys.executable, "-c", program, "baseline", "--state", str(state)], stdout=said, stderr=said
        )
        _, status, used = os.wait4(command.pid, 0)
        command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode != code:
        raise RuntimeError(f"it ended with {command.returncode}, not {code}: {(state / 'said').read_text()[-500:]}")
    wall_s, cpu_s, peak_mib = time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{wall_s:8.2f} s  {cpu_s:8.2f} s of a processor  {peak_mib:6.0f} MiB  {what}", flush=True)


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "new"
        place.mkdir()
        size = new_reports(place, asked.nodes)
        measure(f"muster baseline, {asked.nodes:,} new reports of {size / 1000:.0f} kB", place, EXIT_INCONCLUSIVE)
        state = state_of(Path(folder) / "known", Fleet(asked.nodes), KEPT_WEEKS)
        mib = (state / FILE).stat().st_size / 2**20
        measure(f"muster baseline, {KEPT_WEEKS} weeks of {asked.nodes:,} nodes ({mib:.0f} MiB)", state, EXIT_PASS)


if __name__ == "__main__":
    main()
