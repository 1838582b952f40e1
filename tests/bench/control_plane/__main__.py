"""What outages and operations cost those who write: `python -m tests.bench.control_plane [NAME ...|all]`.

Needs root and the lab's binaries. It uses the lab that runs, or starts one, and leaves it running; the table goes to
standard output and, as data, to build/control-plane.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror.programs import ETCD_VERSION, KUBERNETES_VERSION
from gpu_burnin.system.files import write_atomic
from tests.integration.fleet import Fleet
from tests.lab import hosts
from tests.lab.binaries import ensure_binaries
from tests.lab.error import LabError
from tests.lab.fleet import run_playbook
from tests.lab.paths import REPOSITORY

from . import kills, minor, operations, outages, upgrades
from .clients import CLIENTS, Clients, under_clients
from .health import faults, wait_for_health
from .table import Cost, Goal, Row, Table, chosen

GAP = Goal(gap_s=3.0)
PROBE = Goal(probe_gap_s=3.0)
RETRIED = Goal(most_failed=1)
OUTPUT = REPOSITORY / "build/control-plane.json"


@dataclass(frozen=True)
class Scenario:
    """One row: what is said of it, what was asked for, and what does it to a fleet."""

    what: str
    goal: Goal
    show: Callable[[Fleet], tuple[Cost, str]]
    slow: bool = False


def scenarios(times: int, seed: int) -> dict[str, Scenario]:
    """All by name, the slow ones last."""

    def quick(what: str, goal: Goal, act: Callable[[Clients], str]) -> Scenario:
        return Scenario(what, goal, partial(under_clients, act=act))

    def slow(what: str, goal: Goal, act: Callable[[Clients], str]) -> Scenario:
        return replace(quick(what, goal, act), slow=True)

    def kill(what: str, words: kills.Words, name: str, of: int) -> Scenario:
        drawn = random.Random(f"{seed} {name}")
        act = partial(kills.killed, words_of=words, name=name, times=len(range(of, times, 3)), drawn=drawn)
        return slow(f"`ansible-playbook` killed, {what}", Goal(), act)

    return {
        "member-stopped": quick("a member of etcd stopped", GAP, outages.member_stopped),
        "leader-killed": quick("the leader of etcd killed -9", GAP, outages.leader_killed),
        "member-rebooted": quick("a member's host restarted", GAP, outages.member_rebooted),
        "events-stopped": quick("the events etcd stopped for a minute", GAP, outages.events_stopped),
        "server-stopped": quick("an API server stopped", RETRIED, outages.server_stopped),
        "server-paused": quick("an API server paused", RETRIED, outages.server_paused),
        "server-killed": quick("an API server killed -9", RETRIED, outages.server_killed),
        "server-rebooted": quick("an API server's host restarted", RETRIED, outages.server_rebooted),
        "balancer-restarted": quick("the one balancer restarted", Goal(), outages.balancer_restarted),
        "balancer-killed": quick("the one balancer killed -9", Goal(), outages.balancer_killed),
        "member-replaced": quick("a member killed -9, wiped, replaced", GAP, operations.member_replaced),
        "leaves-rotated": slow("all leaf certificates rotated", PROBE, operations.leaves_rotated),
        "upgraded": slow("upgrade and back", PROBE, upgrades.upgraded),
        "server-fails": slow("an upgrade whose API server fails", PROBE, upgrades.server_fails),
        "minor": Scenario("upgrade over a minor", PROBE, minor.over_a_minor, slow=True),
        "restored": Scenario("main etcd restored", Goal(), _restored, slow=True),
        "replacement-killed": kill("replacement of a member", kills.replacement, "replacement", 0),
        "site-killed": kill("`site.yml`", kills.site, "site", 1),
        "rotation-killed": kill("rotation of leaves", operations.rotation, "rotation", 2),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was chosen, print the table; 1 when a write was lost or a scenario failed, 2 without a lab."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.control_plane", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="scenarios; none: the quick ones; all: the slow ones too"
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="how many times ansible-playbook is killed, of three kinds in turns"
    )
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**31), help="of the points at which it is killed"
    )
    asked = parser.parse_args(arguments)
    every = scenarios(asked.kills, asked.seed)
    try:
        names = chosen(asked.names, {name: one.slow for name, one in every.items()})
    except ValueError as error:
        parser.error(str(error))
    try:
        fleet = _running_lab()
    except GpuBurninError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    table = Table(_about(asked.seed))
    started_s = time.monotonic()
    for number, name in enumerate(names, 1):
        print(
            f"{number} of {len(names)}: {name}, after {(time.monotonic() - started_s) / 60:.0f} min",
            file=sys.stderr,
            flush=True,
        )
        table.rows.append(_row(fleet, every[name]))
        row = table.rows[-1]
        told = [f"  {count} of them: {error}" for error, count in (row.cost.errors if row.cost else {}).items()]
        print("\n".join([row.line(), *told]), file=sys.stderr, flush=True)
        table.about["load at the end"] = f"{os.getloadavg()[0]:.1f}"
        _keep(table, OUTPUT)
    print(table.text())
    return table.exit_code()


def _restored(fleet: Fleet) -> tuple[Cost, str]:
    return operations.restored(Clients(fleet)), ""


def _row(fleet: Fleet, scenario: Scenario) -> Row:
    try:
        # What the one before it did may be seen late: a controller manager whose API server was away twice in a minute
        # looks at leases of before for up to a minute, and takes nodes for lost.
        wait_for_health(fleet)
        cost, seen = scenario.show(fleet)
    except (AssertionError, GpuBurninError, OSError) as error:
        return Row(scenario.what, scenario.goal, broke=" ".join(str(error).split()))
    return Row(scenario.what, scenario.goal, cost, seen)


def _running_lab() -> Fleet:
    """The lab that runs and is healthy; else it is started, and site.yml run."""
    hosts.require_root()
    ensure_binaries()
    fleet = Fleet()
    if set(hosts.status(fleet.lab).values()) == {"running"} and not faults(fleet):
        return fleet
    hosts.up(fleet.lab)
    result = run_playbook(REPOSITORY / "site.yml", name="site")
    wrong = result.failures or faults(fleet)
    if wrong:
        raise LabError(f"the lab is not healthy: {'; '.join(wrong)}; see {result.log}")
    return fleet


def _about(seed: int) -> dict[str, str]:
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "Kubernetes": KUBERNETES_VERSION, "etcd": ETCD_VERSION}
    about |= {"clients": str(CLIENTS), "cores": str(os.cpu_count()), "seed": str(seed)}
    return about | {"load at the beginning": f"{os.getloadavg()[0]:.1f}"}


def _keep(table: Table, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, (json.dumps(table.json(), indent=1) + "\n").encode(), 0o644)


if __name__ == "__main__":
    sys.exit(main())
