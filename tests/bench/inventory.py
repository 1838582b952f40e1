"""What the controller does in `site.yml --tags preflight`, by the size of the fleet: `python -m tests.bench.inventory`.

And what the summary at the end of `site.yml` costs it.

The real plays run on generated inventories, whose hosts have addresses of the loopback network where nothing listens: a
connection is refused by this machine's kernel, and nothing leaves it. Processor time is what counts; that of the clock
depends on what else runs here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from tests.lab.paths import REPOSITORY

SIZES = (100, 1000, 7500)
# Hosts that are no GPU nodes: two etcds of three, the load balancer, and the API servers.
_NODES_PER_API_SERVER = 1500
_PLAY = {"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": ["muster.fleet.fleet"]}
_READ = {"ansible.builtin.meta": "noop"}
_CHECK = {"muster.fleet.inventory_check": {"playbook": str(REPOSITORY / "site.yml")}}
_EVERY = "{{ groups['all'] }}"
_SUMMARY = {"muster.fleet.fleet_summary": {"hosts": _EVERY, "well": _EVERY, "state_dir": "{{ fleet_state_dir }}"}}


@dataclass(frozen=True)
class Cost:
    """What one play took: seconds of the clock and of the processors, and the largest process' memory."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One part of the work at one size of the fleet; the processor time is without that of reading the inventory."""

    part: str
    hosts: int
    cost: Cost

    @property
    def ms_a_host(self) -> float:
        """Processor time for each host, in milliseconds."""
        return self.cost.cpu_s / self.hosts * 1000


def fleet(folder: Path, hosts: int, *, by_formula: bool) -> Path:
    """An inventory of so many hosts made from the example; addresses and ranges are listed, or a range and formulas."""
    shutil.copytree(REPOSITORY / "inventory/example", folder)
    control = {
        "etcd": _control("etcd", 3, 1),
        "etcd_events": _control("etcd-events", 3, 2),
        "kube_apiserver": _control("api", max(2, -(-hosts // _NODES_PER_API_SERVER)), 3),
        "api_loadbalancer": _control("lb", 1, 4),
    }
    for name in ("etcd", "etcd_events"):
        for host, variables in control[name].items():
            variables["local_ssd_device"] = f"/dev/disk/by-id/nvme-{host}"
    count = hosts - sum(map(len, control.values()))
    if by_formula:
        number = "(inventory_hostname[4:] | int)"
        nodes: dict[str, object] = {
            "hosts": {f"gpu-[0001:{count:04d}]": None},
            "vars": {
                "ansible_host": f"127.{{{{ {number} // 256 }}}}.{{{{ {number} % 256 }}}}.10",
                "pod_network_range": f"10.{{{{ {number} // 256 }}}}.{{{{ {number} % 256 }}}}.0/24",
            },
        }
    else:
        places = ((number, f"{number // 256}.{number % 256}") for number in range(1, count + 1))
        nodes = {
            "hosts": {
                f"gpu-{number:04d}": {"ansible_host": f"127.{place}.10", "pod_network_range": f"10.{place}.0/24"}
                for number, place in places
            }
        }
    groups = {**{name: {"hosts": members} for name, members in control.items()}, "gpu_nodes": nodes}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    shared = folder / "group_vars/all.yml"
    settings = {
        "fleet_name": "bench",
        "fleet_planned_nodes": hosts,
        "fleet_api_address": "127.255.4.1",
        "fleet_pod_cidr": "10.0.0.0/8",
        "fleet_service_cidr": "192.168.0.0/16",
        "fleet_state_dir": str(folder.parent / f"{folder.name}-state"),
        "kube_binaries_url": "http://127.0.0.1:1/none",
        "time_sync_servers": ["127.255.5.1"],
    }
    # What the example leaves for the user to fill in.
    sums = folder / "SHA256SUMS.txt"
    sums.write_text(sums.read_text().replace("0" * 64, "ab" * 32))
    shared.write_text(yaml.safe_dump({**yaml.safe_load(shared.read_text()), **settings}, sort_keys=False))
    return folder


def _control(name: str, count: int, network: int) -> dict[str, dict[str, str]]:
    return {f"{name}-{n}": {"ansible_host": f"127.255.{network}.{n}"} for n in range(1, count + 1)}


def play(inventory: Path, tasks: Sequence[object], expected: str) -> Cost:
    """Run these tasks of the controller on an inventory; SystemExit when they do not say what is expected."""
    book = inventory.parent / f"{inventory.name}-play.yml"
    book.write_text(yaml.safe_dump([{**_PLAY, "tasks": list(tasks)}], width=1000))
    output = book.with_suffix(".out")
    # Addresses end here, and a port where nothing listens.
    command = ["ansible-playbook", "-v", "-i", str(inventory), "-e", "ansible_port=1", str(book)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    with output.open("wb") as said:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(command[0])), *command[1:]],
            cwd=REPOSITORY, env=environment, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, _, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
    if expected not in output.read_text():
        raise SystemExit(f"the play did not say {expected!r}:\n{output.read_text()[-3000:]}")
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def rows(root: Path, hosts: int, *, by_formula: bool = False) -> Iterator[Row]:
    """The parts of the work on a fleet of so many hosts, in the order of the table; each as it is asked for."""
    inventory = fleet(root / f"fleet-{hosts}-{by_formula}", hosts, by_formula=by_formula)
    form = "formulas" if by_formula else "listed"
    site = yaml.safe_load((REPOSITORY / "site.yml").read_text())
    contact = next(task for entry in site for task in entry.get("tasks", ()) if "muster.fleet.ssh_probe" in task)
    read = play(inventory, [_READ], "PLAY RECAP")
    yield Row(f"read the inventory ({form})", hosts, read)
    for part, task, expected in (
        (f"check it ({form})", _CHECK, f"{hosts:,} hosts and "),
        (f"the summary, no results ({form})", _SUMMARY, "Next:"),
        (f"first contact, none up ({form})", contact, f"{hosts:,} of {hosts:,} hosts cannot be used over SSH"),
    ):
        cost = play(inventory, [task], expected)
        yield Row(part, hosts, replace(cost, cpu_s=cost.cpu_s - read.cpu_s))


def table(found: Sequence[Row]) -> str:
    """The figures as text; the ratio is of a host's cost to that in the fleet of the size before."""
    lines = [f"{'':38} {'hosts':>6} {'play s':>8} {'CPU s':>7} {'CPU ms a host':>14} {'ratio':>6} {'peak MiB':>9}"]
    before: dict[str, float] = {}
    for row in found:
        ratio = f"{row.ms_a_host / before[row.part]:.2f}" if before.get(row.part) else "-"
        before[row.part] = row.ms_a_host
        lines.append(
            f"{row.part:38} {row.hosts:6,} {row.cost.wall_s:8.1f} {row.cost.cpu_s:7.1f} {row.ms_a_host:14.2f} "
            f"{ratio:>6} {row.cost.peak_bytes / 2**20:9.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    print(f"the controller's part of preflight, no host up ({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})")
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for hosts in SIZES:
            for by_formula in (False, True):
                found += rows(Path(folder), hosts, by_formula=by_formula)
    print(table(found))


if __name__ == "__main__":
    main()
