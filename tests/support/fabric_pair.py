"""Two nodes on this machine that meet for a test: keys, configurations and states of their own, one kernel."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_burnin.api.rendezvous import FabricTest, Member, Nic, keys_text
from gpu_burnin.checks.fabric.meeting import Meeting
from gpu_burnin.checks.fabric.result import Finding, PeerFinding, RailFinding
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system import host
from tests.support.admission_helpers import new_host_key
from tests.support.command_line import called
from tests.support.rendezvous_hosts import TEST

RIGHT = Finding("ok", 1e9, (RailFinding(0, "ok", 5e8),), (PeerFinding(0, "gpu-1", "ok", bytes_per_s=1e9),))
Answer = subprocess.CompletedProcess[str]


@dataclass
class Pair:
    """Two nodes on this machine, each with its key, configuration and state, and the controller's files."""

    folder: Path
    keys: dict[str, str] = field(default_factory=dict)
    found: Finding | GpuBurninError = RIGHT
    meetings: list[Meeting] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("gpu-1", "gpu-2"):
            self.keys[name] = " ".join(new_host_key(self.folder / f"{name}.key").split()[:2])
            lines = {"node_name": name, "host_key": self.folder / f"{name}.key", "state_dir": self.folder / name}
            (self.folder / f"{name}.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        self.write("KEYS", keys_text(self.keys).encode())
        self.write("TEST", self.test.canonical())

    @property
    def test(self) -> FabricTest:
        """Over the loopback, one rail."""
        nics = {"gpu-1": (Nic(0, "127.0.0.1"),), "gpu-2": (Nic(0, "127.0.0.2"),)}
        return replace(TEST, rails=(0,), members=tuple(Member(name, host.boot_id(), nics[name]) for name in self.keys))

    def write(self, name: str, content: bytes) -> Path:
        """A file as the controller puts it there."""
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    def run(self, meeting: Meeting) -> Finding:
        """In the place of the collectives."""
        self.meetings.append(meeting)
        if isinstance(self.found, GpuBurninError):
            raise self.found
        return self.found

    def offer(self, name: str = "gpu-1", test: str = "TEST", output: str = "OFFER", *more: str) -> Answer:
        """`gpu-burnin fabric offer` on a node."""
        files = ("--test", self.folder / test, "--output", self.folder / output)
        return called(cli, "fabric", "offer", *files, "--config", self.folder / f"{name}.yaml", *more)

    def join(self, name: str, offer: str = "OFFER", *more: str) -> Answer:
        files = (
            "--offer",
            self.folder / offer,
            "--keys",
            self.folder / "KEYS",
            "--output",
            self.folder / f"{name}.view",
        )
        return called(cli, "fabric", "join", *files, "--config", self.folder / f"{name}.yaml", *more)
