#!/usr/bin/env python3
"""Run the molecule scenario of each role named, as many beside each other as there are cores; ROLE/NAME: that scenario.

`make test` runs the scenarios of OWN_HOSTS. Of every other role it runs the verify, against the lab, where site.yml has
brought that role (tests/integration/test_1_roles.py).

Each scenario has hosts and a network of its own, made for it and removed after it. What took longest the last time goes
first, so that no core ends with a long one alone. One line a role; the whole output is in build/molecule/ROLE.log. Ends
with one line of counts.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.system.files import write_atomic
from tests.lab.cpu_group import CpuGroup, Used, hosts_group

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / "build/molecule"
# A scenario has up to five hosts; more at once wait for the disk.
MAX_LANES = 4
LOG_LINES = 40
# Roles that `make test` shows on hosts made for them, and why not in the lab, which other tests go on with.
OWN_HOSTS: Mapping[str, str] = {
    "api_loadbalancer": "two balancers with one address, and one on a node; API servers hang and are killed",
    "driver_upgrade": "drivers that do not load (with kubelets that work: test_8_driver_upgrade.py)",
    "etcd": "members speak IPv6, and one loses its data",
    "etcd_backup": "a second place for snapshots, and a restore, which takes back what the fleet has written since",
    "local_ssd": "disks are refused, and one with data on it is wiped",
    "node_dns": "it is off in the lab; one host asks itself",
    "node_traffic": "its chains come and go, and all tables are compared; the lab's inventory has no classes",
    "nvidia_driver": "drivers that do not load, repositories that nobody signed, and reboots",
    "pki": "an API server's certificate for another address, and a CA's key under a password",
    "preflight": "hosts that no fleet may have: a stranger on a port, somebody's data on the disk",
    "repair": "a BMC, and GPUs that stay broken",
    "scaler": "it is off in the lab, until test_8_scaler.py of make soak asks for it",
}
# Colours, and the frame that molecule draws around Ansible's output.
DECORATION = re.compile(r"^(?:\x1b\[[0-9;]*m|[ │┌└─])+|\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Run:
    """How a scenario went. `used`: processor time of Ansible and of all that it waited for, and of the hosts."""

    passed: bool
    seconds: float
    used: Used


def main(roles: list[str]) -> int:
    """0 when every role passed."""
    os.environ["MUSTER_REPOSITORY"] = str(REPOSITORY)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    LOGS.mkdir(parents=True, exist_ok=True)
    _remove_left_overs(roles)
    known = last_seconds()
    failed = []
    with ThreadPoolExecutor(min(MAX_LANES, os.cpu_count() or 1)) as lanes:
        ordered = longest_first(roles, known, {role: _size_bytes(role) for role in roles})
        running = {lanes.submit(_run, role): role for role in ordered}
        for done in as_completed(running):
            role, run = running[done], done.result()
            took = f"{run.seconds:.0f} s ({run.used.here_s:.0f} CPU s here, {run.used.hosts_s:.0f} on hosts)"
            if run.passed:
                known[role] = round(run.seconds, 1)
                print(f"molecule: {role} passed in {took}", flush=True)
                continue
            failed.append(role)
            why = "\n".join(failure(_log(role).read_text(errors="replace")))
            print(f"molecule: {role} FAILED after {took}; from {_log(role)}:\n{why}", flush=True)
    _kept().parent.mkdir(parents=True, exist_ok=True)
    write_atomic(_kept(), json.dumps(known, indent=1, sort_keys=True).encode(), 0o644)
    print(f"molecule: {len(roles) - len(failed)} passed, {len(failed)} failed{': ' * bool(failed)}{' '.join(failed)}")
    return 1 if failed else 0


def failure(log: str) -> list[str]:
    """The lines of a log that say what failed: from Ansible's last `fatal` on, else the last ones; undecorated.

    Those before it may be refusals that a test was made for.
    """
    lines = [DECORATION.sub("", line).rstrip() for line in log.splitlines()]
    fatal = [number for number, line in enumerate(lines) if line.startswith("fatal: ")]
    return lines[fatal[-1] if fatal else -LOG_LINES :][:LOG_LINES]


def longest_first(roles: list[str], known: Mapping[str, float], sizes_bytes: Mapping[str, int]) -> list[str]:
    """The roles by their seconds of the last time; those never measured come first, by the size of what they do."""
    return sorted(roles, key=lambda role: (-known.get(role, math.inf), -sizes_bytes[role]))


def last_seconds() -> dict[str, float]:
    """How long each role's scenario took when it last passed on this machine; nothing when that cannot be read."""
    try:
        return {str(role): float(seconds) for role, seconds in json.loads(_kept().read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _kept() -> Path:
    return cache_dir() / "durations" / "molecule.json"


def _size_bytes(role: str) -> int:
    """Of all files of its scenario."""
    return sum(path.stat().st_size for path in scenario(role).rglob("*") if path.is_file())


def group_name(role: str, above: str) -> str:
    """The control group of a role's scenario: within that of a stage of `make test`, whose hosts these are too; else by
    itself, since nobody would remove one above it.
    """
    return f"{above}/{role}" if above else f"muster-molecule-{os.getpid()}-{role}"


def _run(role: str) -> Run:
    started = time.monotonic()
    state = _log(role).with_suffix(".state")
    shutil.rmtree(state, ignore_errors=True)  # of an earlier run, where there was one
    with _log(role).open("wb") as log, CpuGroup(group_name(_log(role).stem, hosts_group().strip("/"))) as group:
        process = subprocess.Popen(
            ["molecule", "test", f"--scenario-name={scenario(role).name}"],
            cwd=scenario(role).parent.parent,
            env={**os.environ, **group.environment(), "MOLECULE_EPHEMERAL_DIRECTORY": str(state)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = Used(used.ru_utime + used.ru_stime, group.used().hosts_s)
    return Run(process.returncode == 0, time.monotonic() - started, took)


def all_roles() -> list[str]:
    """Every role with a scenario."""
    return sorted(path.parents[2].name for path in REPOSITORY.glob("roles/*/molecule/default/molecule.yml"))


def all_scenarios() -> list[str]:
    """Every scenario: ROLE, or ROLE/NAME where it is not the role's default."""
    folders = {path.parent for path in REPOSITORY.glob("roles/*/molecule/*/converge.yml")}
    names = ((path.parents[1].name, path.name) for path in folders)
    return sorted(role if name == "default" else f"{role}/{name}" for role, name in names)


def roles_in_lab() -> list[str]:
    """The roles whose verify runs against the lab."""
    return [role for role in all_roles() if role not in OWN_HOSTS]


def scenario(role: str) -> Path:
    """The folder of a role's scenario: `default`, or the one named after a slash."""
    name, _, other = role.partition("/")
    return REPOSITORY / "roles" / name / "molecule" / (other or "default")


def _log(role: str) -> Path:
    return LOGS / f"{role.replace('/', '-')}.log"


def _remove_left_overs(roles: list[str]) -> None:
    """Remove what a killed run of these roles has left. Hosts of other roles may belong to a run beside this one."""
    listing = ["podman", "ps", "--all", "--filter", "label=muster.lab", "--format", '{{index .Labels "muster.lab"}}']
    labs = set(subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split())
    for role in roles:
        if f"molecule-{role.replace('_', '-').replace('/', '-')}" in labs:
            inventories = [REPOSITORY / "tests/molecule/inventory.yml", scenario(role) / "inventory.yml"]
            command = [sys.executable, "-m", "tests.lab", *(f"--inventory={path}" for path in inventories), "down"]
            subprocess.run(command, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
