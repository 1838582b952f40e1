"""Hosts of the lab as the nodes of a fabric of their own, on which `muster fabric run` is run with real faults.

Tests between nodes need neither GPUs nor a cluster: so the hosts of the control plane take part too. Each has its own
network, kernel of sockets, systemd, SSH and host key. They get the gpu-burnin that site.yml installed on gpu-1.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.fleet.fabric import results
from gpu_burnin.fleet.fabric.results import Run
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY

from .fleet import Fleet

# Hosts of one network, for the others a firewall is between. All but the one that tests pause and boot serve the lab.
HOSTS = ("etcd-1", "etcd-2", "etcd-3", "etcd-events-1", "api-1", "api-2", "lb-1", "mon-1")
FIRST_PORT, LAST_PORT = 20000, 29999
MOST_S = 900.0
_PROGRAM = "/usr/local/bin/gpu-burnin"
# What the tests of a site's own process are to do otherwise: a line of Python each. Members that are not there are
# waited for by all the others; a minute of it in each round says no more than this does.
_MEET_SOONER = "from gpu_burnin.fleet.fabric import execute; execute._MEET_S = 20.0"
_CALL = "from gpu_burnin.__main__ import muster; muster()"


@dataclass
class Site:
    """An inventory of these hosts by leaf. `variables` are of hosts; `patches` lines that the process runs first."""

    fleet: Fleet
    folder: Path
    leaves: Mapping[str, Sequence[str]]
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)
    patches: tuple[str, ...] = (_MEET_SOONER,)

    def __post_init__(self) -> None:
        self.file = self.folder / "run.json"
        # A kept lab has the journals of earlier ones.
        self.name = f"muster-{uuid.uuid4().hex[:12]}"
        for name in self.names:
            install(self.fleet, name)

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [name for names in self.leaves.values() for name in names]

    @property
    def unit(self) -> str:
        """The unit of a test on a host."""
        return f"{self.name}.service"

    def write(self) -> Path:
        """The inventory, beside the lab's: where its hosts stand, and a state directory of its own."""
        folder = self.folder / "site"
        (folder / "group_vars").mkdir(parents=True, exist_ok=True)
        shared = {
            "fleet_state_dir": str(self.folder / "state"),
            "fleet_known_hosts": str(self.fleet.state / "known_hosts"),
            "fabric_node_dir": f"/run/{self.name}",
        }
        (folder / "group_vars/all.yml").write_text(yaml.safe_dump(shared))
        hosts = {
            name: {"fleet_place": {"rack": "r1", "leaf": leaf}, **self.variables.get(name, {})}
            for leaf, names in self.leaves.items()
            for name in names
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"gpu_nodes": {"hosts": hosts}}}}))
        return folder

    def start(self, *arguments: str, patches: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Begin the run, or go on with it."""
        lines = "\n".join([*self.patches, *patches, _CALL])
        words = ["fabric", "run", "-i", str(LAB_INVENTORY), "-i", str(self.write()), "-l", ",".join(self.names)]
        return subprocess.Popen(
            [sys.executable, "-c", lines, *words, "--output", str(self.file), "--json", *arguments],
            cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self, *arguments: str) -> Report:
        """Begin it, or go on with it, to its end."""
        return ended(self.start(*arguments))

    def run_file(self) -> Run:
        """What is kept of it."""
        return results.read(self.file)

    def rounds(self) -> int:
        """How many rounds are kept."""
        return len(self.run_file().rounds) if self.file.exists() else 0

    def joined(self, name: str) -> bool:
        """Whether a host's test is under way."""
        return self.fleet.ssh(name, f"systemctl is-active {self.unit}").out.strip() == "active"

    def nothing_is_left(self) -> None:
        """Fails where a test is left on a host, or a file with a secret."""
        for name in self.names:
            found = self.fleet.must(name, f"systemctl is-active {self.unit} || true").split()
            assert found == ["inactive"], f"{name}: {found}"
            files = self.fleet.must(name, f"ls /run/{self.name} 2>/dev/null || true").split()
            assert files == [], f"{name}: {files}"


@dataclass(frozen=True)
class Report:
    """What a run ended with."""

    rc: int
    report: Mapping[str, Any]
    err: str

    @property
    def claims(self) -> list[tuple[str, bool, list[str]]]:
        """Of each claim the first cause, whether it is sure, and the nodes."""
        return [(name_of(one["causes"][0]), one["sure"], one["nodes"]) for one in self.report["claims"]]


def name_of(cause: Mapping[str, Any]) -> str:
    """A cause in words."""
    return f"{cause['part']} {cause['name']}"


def ended(process: subprocess.Popen[str]) -> Report:
    """A run that is waited for."""
    out, err = process.communicate(timeout=MOST_S)
    return Report(process.returncode, json.loads(out) if out.strip() else {}, err)


def install(fleet: Fleet, name: str) -> None:
    """Have gpu-burnin on a host that has none."""
    of = fleet.lab.state / "hosts"
    if fleet.ssh(name, f"test -x {_PROGRAM}").rc == 0:
        return
    source, target = of / "gpu-1/merged", of / name / "merged"
    subprocess.run(["cp", "-a", source / "opt/gpu-burnin", target / "opt/"], check=True)
    fleet.must(name, f"ln -sf /opt/gpu-burnin/current/bin/gpu-burnin {_PROGRAM}")


@contextlib.contextmanager
def on(fleet: Fleet, name: str, begin: str, end: str) -> Iterator[None]:
    """A fault of a host while this lasts, by a command on it; it is taken away by another one."""
    fleet.must(name, begin)
    try:
        yield
    finally:
        fleet.must(name, end)


def program(fleet: Fleet, name: str, path: str, lines: str) -> None:
    """A gpu-burnin on a host that is another one in these lines of Python: a fault of the host, which has no switch."""
    text = f"""#!/opt/gpu-burnin/current/bin/python
import sys
{lines}
from gpu_burnin.__main__ import main
sys.argv[0] = "gpu-burnin"
sys.exit(main())
"""
    fleet.must(name, f"cat > {path}.new <<'END'\n{text}END\nchmod 755 {path}.new && mv {path}.new {path}")
