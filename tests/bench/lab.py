"""`make bench`: how long a cold lab takes to its summary (caches warm), and a second run that changes nothing.

Prints seconds and the ratio of the two in one run; the goals on 2 cores are 360 s and 90 s.
"""

from __future__ import annotations

import os
import sys
import time

from tests.lab import hosts
from tests.lab.binaries import ensure_binaries
from tests.lab.fleet import LAB_INVENTORY, run_playbook
from tests.lab.model import read_lab
from tests.lab.paths import REPOSITORY

COLD_GOAL_S = 360
RERUN_GOAL_S = 90


def main() -> int:
    """Start a cold lab, run site.yml twice, print; the lab stays up. 1 when a run fails or the second is not quiet."""
    ensure_binaries()
    lab = read_lab([LAB_INVENTORY])
    hosts.down(lab)
    started = time.monotonic()
    hosts.up(lab)
    first = run_playbook(REPOSITORY / "site.yml", name="bench-cold")
    cold_s = time.monotonic() - started
    if first.rc != 0:
        print("\n".join(first.failures), file=sys.stderr)
        return 1
    second = run_playbook(REPOSITORY / "site.yml", name="bench-rerun")
    if second.rc != 0 or second.changed:
        print("\n".join(second.failures) or f"the second run changed {second.changed}", file=sys.stderr)
        return 1
    load = os.getloadavg()[0]
    print(f"cold lab to the summary: {cold_s:.0f} s (goal {COLD_GOAL_S} s)")
    print(f"second run, 0 changed:   {second.seconds:.0f} s (goal {RERUN_GOAL_S} s)")
    print(f"ratio second to cold:    {second.seconds / cold_s:.2f}    ({os.cpu_count()} cores, load {load:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
