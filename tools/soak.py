#!/usr/bin/env python3
"""`make soak`: the repeats that `make test` has no time for, in stages as there; hours on two cores, without budgets.

Beside the lab with its tests that are marked soak (an hour without alerts, outages and the rotation of all CAs under
writers) and twenty kills of playbooks: unit tests and tests of servers that are marked so (the whole replay of alerts),
every draw of the campaign, every molecule scenario from create to destroy, API servers of two minors, and the mutants.
What is drawn comes from the seed of the day, which is printed; SEED=n repeats another day. The costs are in
build/soak.json; a run that was interrupted goes on with the stages that had not ended, while commit and seed are the
same. What failed is named last, with its reason.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from tools.molecule import all_scenarios
from tools.prove import BUILD, REPOSITORY, Stage, integration_tests, junit, prove, pytest
from tools.results import read_molecule, read_plain

KILLS = 20
KILLED = ("replacement-killed", "site-killed", "rotation-killed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=seed_of(datetime.now(UTC)), help="default: that of the day")
    asked = parser.parse_args(arguments)
    BUILD.mkdir(exist_ok=True)
    print(f"soak: seed {asked.seed}; again: make soak SEED={asked.seed}", flush=True)
    return prove(lanes(asked.seed), BUILD / "soak.json", of=run_of(asked.seed))


def run_of(seed: int) -> dict[str, str]:
    """What makes a run the same one; nothing where files differ from the commit's: no later run is that one."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {} if changed else {"commit": _git("rev-parse", "HEAD"), "seed": str(seed)}


def seed_of(day: datetime) -> int:
    """The day as a number: 20261126."""
    return int(f"{day:%Y%m%d}")


def lanes(seed: int) -> list[list[Stage]]:
    """The lab with all that happens to it, and beside it everything else."""
    on_hosts, on_loopback = integration_tests()
    on_demand = sorted((REPOSITORY / "tests/integration/on_demand").glob("test_*.py"))
    bench = [sys.executable, "-m", "tests.bench.control_plane", *KILLED, f"--kills={KILLS}", f"--seed={seed}"]
    # The benchmark leaves its fleet running, for who wants to look at it.
    kills = f"{shlex.join(bench)}; ended=$?; {sys.executable} -m tests.lab down; exit $ended"
    older = f"{sys.executable} -m tests.lab older && " + " ".join(pytest("minor", "", [REPOSITORY / "tests/minor"]))
    return [
        [
            Stage("lab", pytest("soak-lab", "soak", [*on_hosts, *on_demand]), junit("soak-lab")),
            Stage("kills", ["sh", "-c", kills], read_plain),
        ],
        [
            Stage("unit", pytest("soak-unit", "soak", [REPOSITORY / "tests/unit"]), junit("soak-unit")),
            Stage("campaign", [sys.executable, "-m", "tests.campaign", f"--seed={seed}"], junit("campaign")),
            Stage("molecule", [sys.executable, "-m", "tools.molecule", *all_scenarios()], read_molecule),
            Stage("servers", pytest("soak-servers", "soak", on_loopback), junit("soak-servers")),
            Stage("minor", ["sh", "-c", older], junit("minor")),
            Stage("mutants", [sys.executable, "-m", "tools.mutants"], read_plain),
        ],
    ]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
