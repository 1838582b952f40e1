#!/usr/bin/env python3
"""Run the molecule scenario of each role named, as many beside each other as there are cores.

Each scenario has hosts and a network of its own, made for it and removed after it. One line a role; the whole output is
in build/molecule/ROLE.log. Ends with one line of counts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / "build/molecule"
# A scenario has up to five hosts; more at once wait for the disk.
MAX_LANES = 4
LOG_TAIL_LINES = 40


def main(roles: list[str]) -> int:
    """0 when every role passed."""
    os.environ["MUSTER_REPOSITORY"] = str(REPOSITORY)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    LOGS.mkdir(parents=True, exist_ok=True)
    _remove_left_overs()
    failed = []
    with ThreadPoolExecutor(min(MAX_LANES, os.cpu_count() or 1)) as lanes:
        running = {lanes.submit(_run, role): role for role in roles}
        for done in as_completed(running):
            role = running[done]
            passed, seconds = done.result()
            if passed:
                print(f"molecule: {role} passed in {seconds:.0f} s", flush=True)
                continue
            failed.append(role)
            tail = "\n".join(_log(role).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
            print(f"molecule: {role} FAILED after {seconds:.0f} s; the end of {_log(role)}:\n{tail}", flush=True)
    print(f"molecule: {len(roles) - len(failed)} passed, {len(failed)} failed{': ' * bool(failed)}{' '.join(failed)}")
    return 1 if failed else 0


def _run(role: str) -> tuple[bool, float]:
    started = time.monotonic()
    state = LOGS / f"{role}.state"
    shutil.rmtree(state, ignore_errors=True)  # of an earlier run, where there was one
    with _log(role).open("wb") as log:
        done = subprocess.run(
            ["molecule", "test"],
            cwd=REPOSITORY / "roles" / role,
            env={**os.environ, "MOLECULE_EPHEMERAL_DIRECTORY": str(state)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode == 0, time.monotonic() - started


def _log(role: str) -> Path:
    return LOGS / f"{role}.log"


def _remove_left_overs() -> None:
    """Remove what a killed run has left, of whatever role: it is neither used nor in the way."""
    listing = ["podman", "ps", "--all", "--filter", "label=muster.lab", "--format", '{{index .Labels "muster.lab"}}']
    labs = set(subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split())
    for scenario in REPOSITORY.glob("roles/*/molecule/default"):
        if f"molecule-{scenario.parents[1].name.replace('_', '-')}" in labs:
            inventories = [REPOSITORY / "tests/molecule/inventory.yml", scenario / "inventory.yml"]
            command = [sys.executable, "-m", "tests.lab", *(f"--inventory={path}" for path in inventories), "down"]
            subprocess.run(command, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
