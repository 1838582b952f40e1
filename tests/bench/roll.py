"""What `muster roll` costs, and what it does when it is killed: `python -m tests.bench.roll`.

- scale: shards of 250 names on a connection that runs no module, out of inventories of 250 and of 7,500 hosts; and what
  the executor does for all of them. `--whole` rolls all 7,500.
- kills: 100 names by real SSH, which are the lab's hosts in turn, in 8 shards; the executor, its shards and their
  ansible-playbooks are killed at random. Each has to come to its end, and no finished shard runs again.
- stops: of the same hosts one in five fails, and how many are tried until the roll stops.
- time left: what is said after a fifth of the hosts, against what it takes.

Processor time is that of the processes and their children; the clock depends on what else runs here.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpu_burnin.fleet.waves import leftovers
from gpu_burnin.fleet.waves.book import result_in
from gpu_burnin.fleet.waves.model import Outcome, StepResult
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.model import read_lab
from tests.lab.paths import REPOSITORY

SIZES = (250, 7500)
SHARD = 250
HOSTS = 100
_TASKS = 3
_CALL = (
    "from gpu_burnin.cli.program import call; import sys; from gpu_burnin.cli.muster.main import cli; "
    "sys.exit(call(cli))"
)
# A connection that answers each module with a result, and starts nothing.
_CONNECTION = '''
from ansible.plugins.connection import ConnectionBase
DOCUMENTATION = """
name: nothing
short_description: Answers each command with the result of a module
"""
class Connection(ConnectionBase):
    transport, has_pipelining = "nothing", True
    def _connect(self): return self
    def exec_command(self, cmd, in_data=None, sudoable=True): return 0, b'{"changed": false, "ping": "pong"}', b""
    def put_file(self, in_path, out_path): pass
    def fetch_file(self, in_path, out_path): pass
    def close(self): pass
'''


@dataclass(frozen=True)
class Site:
    """A folder with an inventory of `gpu_nodes` and a playbook for them, which is called burnin.yml."""

    folder: Path

    @property
    def state(self) -> Path:
        """The fleet's state."""
        return self.folder / "state"

    def write(self, hosts: dict[str, dict[str, object]], tasks: Sequence[object], **shared: object) -> None:
        """Write both."""
        settings = {"fleet_state_dir": str(self.state), "ansible_python_interpreter": sys.executable, **shared}
        listed = {"all": {"vars": settings, "children": {"gpu_nodes": {"hosts": hosts}}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(listed))
        play = {"name": "Work", "hosts": "gpu_nodes", "gather_facts": False, "tasks": list(tasks)}
        (self.folder / "burnin.yml").write_text(yaml.safe_dump([play], sort_keys=False))
        (self.folder / "connection_plugins").mkdir(exist_ok=True)
        (self.folder / "connection_plugins/nothing.py").write_text(_CONNECTION)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`muster roll` on it."""
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
            "ANSIBLE_CONNECTION_PLUGINS": str(self.folder / "connection_plugins"),
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [sys.executable, "-c", _CALL, "roll", "burnin.yml", "-i", "hosts.yml", "--json", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def shards(self) -> list[StepResult]:
        """The shards that are done."""
        found = (result_in(path) for path in (self.state / "roll/steps").glob("shard-*"))
        return [result for result in found if result is not None]


def scale(folder: Path, hosts: int, *, whole: bool) -> str:
    """One shard of 250 out of so many hosts, or all of them; a row of the table."""
    site = Site(folder)
    names: dict[str, dict[str, object]] = {f"gpu-{number:04}": {"rack": number // 16} for number in range(1, hosts + 1)}
    site.write(names, [{"ansible.builtin.ping": None}] * _TASKS, ansible_connection="nothing")
    limit = [] if whole else ["--limit", f"gpu_nodes[0:{SHARD - 1}]"]
    # As one shard, so that what a process costs at its start is spread as in a large roll.
    process = site.start("--canary", str(SHARD), *([] if whole else ["--workers", "1"]), *limit)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(process.stderr.read() if process.stderr else "muster roll failed")
    shards = site.shards()
    count = hosts if whole else SHARD
    shards_s = sum(shard.cpu_s for shard in shards)
    cpu_ms = shards_s / count * 1000
    # Shards are its children too.
    own_s = used.ru_utime + used.ru_stime - shards_s
    peak = max(shard.peak_bytes for shard in shards) / 2**20
    return f"{hosts:7,} {len(shards):7} {cpu_ms:14.1f} {own_s:14.1f} {cpu_ms + own_s / hosts * 1000:14.1f} {peak:10.0f}"


def lab_hosts(count: int) -> dict[str, dict[str, object]]:
    """So many names for the hosts of the lab, which has to be up (`make lab`)."""
    addresses = [host.address for host in read_lab([LAB_INVENTORY]).hosts]
    return {f"gpu-{number:03}": {"ansible_host": addresses[number % len(addresses)]} for number in range(1, count + 1)}


def ssh_site(folder: Path, hosts: dict[str, dict[str, object]], *, failing: int = 0) -> Site:
    """A thin role over SSH: each name writes that it began and that it came to its end; one in `failing` fails."""
    site, log, lab = Site(folder), _log(folder), read_lab([LAB_INVENTORY]).state
    fails = f"(inventory_hostname[4:] | int) % {failing} == 0" if failing else "false"
    site.write(
        hosts,
        [
            {"ansible.builtin.command": f"sh -c 'echo begin {{{{ inventory_hostname }}}} >> {log}; sleep 0.2'"},
            {"ansible.builtin.fail": {"msg": "broken"}, "when": fails},
            {"ansible.builtin.ping": None},
            {"ansible.builtin.command": f"sh -c 'echo end {{{{ inventory_hostname }}}} >> {log}'"},
        ],
        ansible_python_interpreter="/usr/bin/python3",
        ansible_user="root",
        ansible_ssh_private_key_file=str(lab / "ssh/id_ed25519"),
        ansible_ssh_common_args=f"-o UserKnownHostsFile={lab / 'fleet/known_hosts'}",
    )
    return site


def _log(folder: Path) -> str:
    return f"/run/{folder.parent.name}-{folder.name}.log"


def read_logs(site: Site) -> list[str]:
    """What all names have written, which is removed."""
    lab, lines = read_lab([LAB_INVENTORY]), list[str]()
    known = f"UserKnownHostsFile={lab.state / 'fleet/known_hosts'}"
    for host in lab.hosts:
        command = ["ssh", "-i", str(lab.state / "ssh/id_ed25519"), "-o", known, f"root@{host.address}"]
        command.append(f"cat {_log(site.folder)}; rm -f {_log(site.folder)}")
        lines += subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines


# Of two cores: more at a time only wait for each other.
_SHARDS = ("--canary", str(HOSTS), "--shard", "13", "--workers", "3")


def kills(folder: Path, hosts: dict[str, dict[str, object]], count: int, seed: int) -> str:
    """Rolls with so many kills in all, each after a random time; what came of them."""
    site, dice = ssh_site(folder, hosts), random.Random(seed)
    killed, skipped, twice, rolls, shards = Counter[str](), 0, 0, 0, 0
    while killed.total() < count:
        done = _killed_roll(site, dice, killed, count)
        ends = Counter(line.partition(" ")[2] for line in read_logs(site) if line.startswith("end "))
        skipped += sum(not ends[host] or host not in done for host in hosts)
        twice += sum(times > 1 for times in ends.values())
        rolls, shards = rolls + 1, shards + len(set(done.values()))
    return (
        f"{killed.total()} kills ({', '.join(f'{name} {n}' for name, n in sorted(killed.items()))}) in {rolls} rolls: "
        f"{shards} shards done, none twice; {skipped} of {rolls * len(hosts)} hosts skipped; {twice} came to their end "
        "again, with a shard that was killed before its own"
    )


def _killed_roll(
    site: Site, dice: random.Random, killed: Counter[str], count: int
) -> dict[str, tuple[str, str, float]]:
    """A roll to its end, with the kills that are left of `count`: in which shard each host was done.

    A shard is named by its roll and the time of its result: where one was lost twice, its hosts have failed, and the
    same call is another roll over these. SystemExit where a host that was done ran again.
    """
    done: dict[str, tuple[str, str, float]] = {}
    # Of the one before nothing is left that could be taken for one of this.
    shutil.rmtree(site.state / "roll", ignore_errors=True)
    while True:
        process = site.start(*_SHARDS)
        kind = dice.choice(("executor", "worker", "ansible-playbook")) if killed.total() < count else ""
        if kind:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=dice.uniform(3, 12))
            if process.poll() is None and _kill(site, process, kind, dice):
                killed[kind] += 1
                print(f"  {killed.total()} of {count} kills: {kind}", file=sys.stderr, flush=True)
        _, err = process.communicate()
        paths = list((site.state / "roll/steps").glob("shard-*/result.json"))
        roll = json.loads((site.state / "roll/roll.json").read_text())["id"] if paths else ""
        for path in paths:
            result, shard = result_in(path.parent), (roll, path.parent.name, path.stat().st_mtime)
            for host, one in result.hosts.items() if result else ():
                if one.outcome is Outcome.DONE and done.setdefault(host, shard) != shard:
                    raise SystemExit(f"{host} was done in {done[host]}, and again in {shard}")
        if process.returncode == 0:
            return done
        if process.returncode not in (1, 3, -signal.SIGKILL):
            raise SystemExit(f"muster roll ended with {process.returncode}: {err}")


def _kill(site: Site, executor: subprocess.Popen[str], kind: str, dice: random.Random) -> bool:
    """Kill one of this kind; False where there is none now."""
    if kind == "executor":
        executor.kill()
        return True
    word = "fleet.waves.worker" if kind == "worker" else "ansible-playbook"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace")
            if word in words and str(site.folder) in words and "muster.main" not in words:
                found.append(int(path.parent.name))
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(dice.choice(found), signal.SIGKILL)
        return True
    return False


def stops(folder: Path, hosts: dict[str, dict[str, object]]) -> str:
    """How many hosts are tried until the limit stops a roll of which one in five fails."""
    site = ssh_site(folder, hosts, failing=5)
    process = site.start("--shard", "13", "--most-failed", "3")
    out, _ = process.communicate()
    report = json.loads(out)
    tried = report["nodes"] - report["untried"]
    waves = json.loads((site.state / "roll/roll.json").read_text())["waves"]
    sizes = list(itertools.accumulate(sum(map(len, wave)) for wave in waves))
    reached = next(size for size in sizes if size >= 3 * 5)
    return f"stops: {report['outcomes']['failed']} failed of {tried} tried; the wave of the limit ends at {reached}"


def time_left(folder: Path, hosts: dict[str, dict[str, object]]) -> str:
    """What is said after a fifth of the hosts, and what it took."""
    site = ssh_site(folder, hosts)
    process = site.start("--shard", "13", "--workers", "4")
    assert process.stderr is not None
    said: tuple[float, float] | None = None
    for line in process.stderr:
        tried = re.search(r"([\d,]+) of [\d,]+ nodes tried", line)
        left = re.search(r"about (\d+) (s|min) left", line)
        if said is None and tried and left and int(tried[1]) * 5 >= len(hosts):
            said = time.monotonic(), int(left[1]) * (60 if left[2] == "min" else 1)
    process.wait()
    if said is None:
        return "time left: nothing was said after a fifth"
    took_s = time.monotonic() - said[0]
    return f"time left after a fifth: {said[1]:.0f} s said, {took_s:.0f} s taken, {said[1] / took_s - 1:+.0%}"


def main() -> None:
    """Print all of it, or the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["scale", "kills", "stops", "left"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as root:
        if "scale" in given.parts:
            print(f"{'hosts':>7} {'shards':>7} {'CPU ms a host':>14} {'executor CPU s':>14} {'all a host ms':>14} "
                  f"{'shard MiB':>10}")  # fmt: skip
            for hosts in SIZES:
                folder = Path(root) / f"scale-{hosts}"
                folder.mkdir()
                print(scale(folder, hosts, whole=given.whole), flush=True)
        wanted: dict[str, Callable[[Path, dict[str, dict[str, object]]], str]] = {
            "kills": lambda f, h: kills(f, h, given.kills, given.seed),
            "stops": stops,
            "left": time_left,
        }
        for name, part in wanted.items():
            if name in given.parts:
                folder = Path(root) / name
                folder.mkdir()
                print(part(folder, lab_hosts(HOSTS)), flush=True)
                read_logs(Site(folder))
                leftovers.end("ANSIBLE_CONNECTION_PLUGINS", str(folder / "connection_plugins"))


if __name__ == "__main__":
    main()
