"""What `site.yml` costs the controller for each GPU node of a converged fleet: `python -m tests.bench.ansible_cost`.

The nodes are those of the lab, reached by real SSH. 1, 10 and 100 names of the inventory point at them, each with a
connection of its own. Hosts of several names would get the settings of one after the other, so all runs are in check
mode: the same tasks, workers, connections and modules, which look and change nothing. Only the GPU nodes are in the run
(`--limit`): no control plane, and no plays of localhost (`make bench-inventory` has those that grow with the fleet).

Processor time is user and system time of ansible-playbook, its workers and SSH, without that of an empty play.

Ends with 1 when the node stack misses its goal at one of these sizes; the last line says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml

from tests.lab import hosts
from tests.lab.binaries import ensure_binaries
from tests.lab.fleet import LAB_INVENTORY, run_playbook
from tests.lab.model import read_groups, read_lab
from tests.lab.paths import REPOSITORY

SIZES = (1, 10, 100)
# The roles that bring the NVIDIA stack to a node; the last has one task for the whole fleet.
STACK = (
    "node_tuning", "nvidia_driver", "nvidia_fabricmanager", "nvidia_dcgm",
    "nvidia_container_toolkit", "nvidia_device_plugin",
)  # fmt: skip
GOAL_HOST_TASKS = 12
GOAL_CPU_S = 1.0
# What a host-task is made of, each with all that the one before has; so many in a play that one of them can be told.
_STEPS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("worker, templating, callbacks", {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }}"}}),
    ("a command over SSH", {"ansible.builtin.raw": "true"}),
    ("a small module", {"ansible.builtin.ping": None}),
)
_REPEATED = 10
_PR_SET_CHILD_SUBREAPER = 36
_ON_NODES = ("--check", "--limit", "gpu_nodes")
_CERTIFICATES = "Issue certificates on the controller"


@dataclass(frozen=True)
class Task:
    """One task of a run: on how many hosts a worker was started for it, seconds of all processors and of the clock."""

    play: str
    role: str
    name: str
    action: str
    hosts: int
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run of ansible-playbook; `ssh_cpu_s` is of the master connections, which outlive it, and is in `cpu_s`."""

    names: int
    cpu_s: float
    wall_s: float
    ssh_cpu_s: float
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Share:
    """What a part of site.yml costs for each node."""

    part: str
    host_tasks: float
    cpu_s: float
    wall_s: float


def shares(tasks: Iterable[Task], names: int) -> list[Share]:
    """The parts in the order in which they ran: a play and a role of it."""
    parts: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        parts[f"{task.play}: {task.role}" if task.role else task.play].append(task)
    return [_share(part, of_it, names) for part, of_it in parts.items()]


def stack(tasks: Iterable[Task], names: int) -> Share:
    """What the roles of the node stack cost for each node."""
    return _share("node stack", [task for task in tasks if task.role in STACK], names)


def _share(part: str, tasks: Sequence[Task], names: int) -> Share:
    return Share(
        part,
        sum(task.hosts for task in tasks) / names,
        sum(task.cpu_s for task in tasks) / names,
        sum(task.wall_s for task in tasks) / names,
    )


def names_inventory(folder: Path, names: int, state: Path) -> Path:
    """The lab's inventory with so many GPU nodes, whose addresses are the lab's in turn.

    `state`: the lab's files on the controller, of which the inventory has a copy: each name gets certificates there.
    """
    target = folder / f"names-{names}"
    shutil.copytree(LAB_INVENTORY, target)
    listed = yaml.safe_load((target / "hosts.yml").read_text())
    nodes = listed["all"]["children"]["gpu_nodes"]["hosts"]
    real = list(nodes.values())
    sockets = folder / f"ssh-{names}"
    sockets.mkdir()
    listed["all"]["children"]["gpu_nodes"]["hosts"] = {
        f"name-{n:03d}": {
            **real[n % len(real)],
            "pod_network_range": f"198.19.{n % 120}.{n // 120 * 128}/25",
            # One connection for each name, as it would be with a host for each.
            "ansible_control_path": f"{sockets}/{n}",
        }
        for n in range(names)
    }
    (target / "hosts.yml").write_text(yaml.safe_dump(listed, sort_keys=False))
    copy = shutil.copytree(state, folder / f"state-{names}")
    shared = target / "group_vars/all.yml"
    shared.write_text(yaml.safe_dump({**yaml.safe_load(shared.read_text()), "fleet_state_dir": str(copy)}))
    return target


def run(book: Path, inventory: Path, names: int, *options: str) -> Run:
    """Run a playbook with options of ansible-playbook. SystemExit when it fails."""
    said, counted = book.parent / f"{inventory.name}.out", book.parent / f"{inventory.name}.json"
    tool = Path(sys.executable).with_name("ansible-playbook")
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).with_name("callbacks")),
        "ANSIBLE_CALLBACKS_ENABLED": "muster.fleet.preload,muster.fleet.inventory_files,task_cost",
        "MUSTER_TASK_COST": str(counted),
    }
    command = [str(tool), *options, "--inventory", str(inventory), str(book)]
    others = _children()
    with said.open("wb") as output:
        started = perf_counter()
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = perf_counter() - started
    ssh_cpu_s = _end_orphans(others)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"ansible-playbook failed:\n{said.read_text()[-4000:]}")
    tasks = tuple(Task(**task) for task in json.loads(counted.read_text())["tasks"])
    return Run(names, used.ru_utime + used.ru_stime + ssh_cpu_s, wall_s, ssh_cpu_s, tasks)


def _adopt_orphans() -> None:
    """Processes whose parent ended become this one's (prctl(2)), so that the time of SSH's connections is counted."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _children() -> set[int]:
    """The processes whose parent is this one."""
    found: set[int] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        found.update(int(pid) for pid in children.read_text().split())
    return found


def _end_orphans(others: set[int]) -> float:
    """End what a playbook has left behind, SSH's connections, but not `others`; gives their processor time in s."""
    cpu_s = 0.0
    while orphans := _children() - others:
        for pid in orphans:
            os.kill(pid, signal.SIGTERM)
        for pid in orphans:
            _, _, used = os.wait4(pid, 0)
            cpu_s += used.ru_utime + used.ru_stime
    return cpu_s


def book(folder: Path, name: str, tasks: Sequence[Mapping[str, Any]]) -> Path:
    """A playbook of these tasks alone on the GPU nodes."""
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "play.yml"
    path.write_text(yaml.safe_dump([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": list(tasks)}]))
    return path


def steps(folder: Path, inventory: Path, empty: Run) -> list[tuple[str, float]]:
    """Of what a host-task is made, in seconds of processor time: each step without those before it."""
    found, before_s = [], 0.0
    for number, (step, task) in enumerate(_STEPS):
        # The first one opens the connection, in all of them, and is not counted.
        tasks = [{"ansible.builtin.raw": "true"}, *[dict(task)] * _REPEATED]
        counted = run(book(folder, f"step-{number}", tasks), inventory, empty.names, *_ON_NODES).tasks[1:]
        cost_s = sum(task.cpu_s for task in counted) / empty.names / _REPEATED
        found.append((step, cost_s - before_s))
        before_s = cost_s
    return found


def report(site: Run, empty: Run) -> str:
    """One table: the plays and roles of site.yml, for each of so many names."""
    lines = [f"\n{site.names} names{'':58} {'host-tasks':>10} {'CPU ms':>8} {'wall ms':>8}"]
    row = "  {:64} {:10.1f} {:8.0f} {:8.0f}"
    for share in shares(site.tasks, site.names):
        if share.host_tasks:
            lines.append(row.format(share.part[:64], share.host_tasks, share.cpu_s * 1000, share.wall_s * 1000))
    all_of_it = sum(task.hosts for task in site.tasks) / site.names
    cpu_s, wall_s = (site.cpu_s - empty.cpu_s) / site.names, (site.wall_s - empty.wall_s) / site.names
    lines.append(row.format("SSH connections, kept open", 0, site.ssh_cpu_s / site.names * 1000, 0))
    lines.append(row.format("site.yml for each node, net of an empty play", all_of_it, cpu_s * 1000, wall_s * 1000))
    found = stack(site.tasks, site.names)
    lines.append(row.format("the node stack of it", found.host_tasks, found.cpu_s * 1000, found.wall_s * 1000))
    lines.append(row.format("its goal", GOAL_HOST_TASKS, GOAL_CPU_S * 1000, float("nan")))
    lines.append(f"  an empty play: {empty.cpu_s:.1f} CPU s, {empty.wall_s:.1f} s for all names together")
    return "\n".join(lines)


def dearest(site: Run, count: int = 12) -> str:
    """The tasks that cost the most for each node."""
    lines = [f"\nthe dearest tasks at {site.names} names{'':39} {'CPU ms':>8}"]
    ordered = sorted(site.tasks, key=lambda task: -task.cpu_s)[:count]
    lines += [f"  {f'{task.role}: {task.name}'[:72]:72} {task.cpu_s / site.names * 1000:8.0f}" for task in ordered]
    return "\n".join(lines)


def missed(found: Mapping[int, Share]) -> list[str]:
    """By number of names what the node stack cost: where that is more than its goal."""
    return [
        f"{names} names {share.host_tasks:.1f} host-tasks, {share.cpu_s:.2f} CPU s"
        for names, share in found.items()
        if share.host_tasks > GOAL_HOST_TASKS or share.cpu_s > GOAL_CPU_S
    ]


def last_line(found: Mapping[int, Share]) -> str:
    """Whether the node stack keeps its goal, and where it does not."""
    goal = f"the goal of the node stack, {GOAL_HOST_TASKS} host-tasks and {GOAL_CPU_S} CPU s for each node"
    over = missed(found)
    return f"missed: {goal}: at {'; at '.join(over)}" if over else f"kept: {goal}"


def converge() -> Path:
    """Have the lab up and site.yml run on it; gives its state on the controller. SystemExit when that fails."""
    ensure_binaries()
    lab = read_lab([LAB_INVENTORY])
    hosts.up(lab)
    result = run_playbook(REPOSITORY / "site.yml", name="bench-ansible")
    if result.rc != 0:
        raise SystemExit("\n".join(result.failures))
    return lab.state / "fleet"


def main() -> int:
    """Have a converged lab, which stays up, and print the tables. 1 when the node stack misses its goal."""
    state = converge()
    _adopt_orphans()
    nodes = len(read_groups([LAB_INVENTORY])["gpu_nodes"])
    print(f"the controller's cost of site.yml, names point at {nodes} hosts ({os.cpu_count()} cores)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates, whole = site_books(folder)
        nothing = book(folder, "empty", [{"ansible.builtin.meta": "noop"}])
        found: dict[int, Share] = {}
        for names in SIZES:
            inventory = names_inventory(folder, names, state)
            run(certificates, inventory, names)
            empty = run(nothing, inventory, names, *_ON_NODES)
            site = run(whole, inventory, names, *_ON_NODES)
            found[names] = stack(site.tasks, names)
            load = os.getloadavg()[0]
            print(f"{report(site, empty)}\n  load {load:.1f}\n{dearest(site)}", flush=True)
            print(f"\nof what a host-task is made at {names} names{'':31} {'CPU ms':>8}")
            for step, cost_s in steps(folder, inventory, empty):
                print(f"  {step:72} {cost_s * 1000:8.1f}", flush=True)
    print(f"\n{last_line(found)}")
    return 1 if missed(found) else 0


def site_books(folder: Path) -> tuple[Path, Path]:
    """The play of site.yml that gives each name its certificates, and the whole of it.

    Preflight finds that the hosts have other names, and goes on.
    """
    plays = yaml.safe_load((REPOSITORY / "site.yml").read_text())
    for play in plays:
        if "preflight" in play.get("tags", ()):
            play |= {"ignore_errors": True, "any_errors_fatal": False}
    paths = folder / "certificates/play.yml", folder / "site/play.yml"
    for path, wanted in zip(paths, ([play for play in plays if play["name"] == _CERTIFICATES], plays), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(wanted, sort_keys=False))
    return paths


if __name__ == "__main__":
    sys.exit(main())
