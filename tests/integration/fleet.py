"""How the tests reach the running lab: SSH to its hosts, kubectl as one of its identities against one API server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpu_burnin.fleet.mirror.cache import cache_dir
from tests.lab.fleet import LAB_INVENTORY, PlaybookResult, run_playbook
from tests.lab.model import Lab, read_lab
from tests.lab.paths import REPOSITORY

API_SERVERS = ("api-1", "api-2")
# What a GPU node's kernel says of its first GPU.
XID_79 = "lab-nvidia log 'NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.'"
T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """A finished command."""

    rc: int
    out: str
    err: str


class Fleet:
    """The running lab."""

    def __init__(self) -> None:
        self.lab: Lab = read_lab([LAB_INVENTORY])
        self.state = self.lab.state / "fleet"
        self.addresses = {host.name: host.address for host in self.lab.hosts}

    def ssh(self, host: str, command: str, *, stdin: str | None = None) -> Done:
        """Run a shell command on a lab host as root."""
        options = (
            "UserKnownHostsFile=" + str(self.state / "known_hosts"),
            "StrictHostKeyChecking=yes",
            "LogLevel=ERROR",
        )
        words = ["ssh", "-i", str(self.lab.state / "ssh/id_ed25519")]
        for option in options:
            words += ["-o", option]
        return run([*words, f"root@{self.addresses[host]}", command], stdin=stdin)

    def must(self, host: str, command: str) -> str:
        """Run a command that has to succeed on a host; return its output."""
        done = self.ssh(host, command)
        assert done.rc == 0, f"{host}: {command}: exit code {done.rc}: {done.err or done.out}"
        return done.out

    def kubectl(
        self, *arguments: str, identity: str = "admin", server: str | None = None, stdin: str | None = None
    ) -> Done:
        """Run kubectl as `identity` (a kubeconfig of the controller), through the balancer or one API server."""
        words = [
            str(cache_dir() / "bin/current/kubectl"),
            "--kubeconfig",
            str(self.state / f"kubeconfig/{identity}.kubeconfig"),
        ]
        if server:
            words += ["--server", f"https://{self.addresses[server]}:6443"]
        return run([*words, *arguments], stdin=stdin)

    def muster(self, *words: str, user: str = "admin") -> Done:
        """Run the fleet's command with a user's kubeconfig; what follows `--` is the job's."""
        own = words.index("--") if "--" in words else len(words)
        kubeconfig = str(self.state / f"kubeconfig/{user}.kubeconfig")
        program = str(Path(sys.executable).with_name("muster"))
        return run([program, *words[:own], "--kubeconfig", kubeconfig, *words[own:]])

    def kubelet_kubectl(self, node: str, *arguments: str, server: str, stdin: str | None = None) -> Done:
        """Run kubectl with the credential of a node's own kubelet."""
        credential = self.lab.state / f"kubelet-{node}.pem"
        credential.touch(mode=0o600)
        credential.write_text(self.must(node, "cat /var/lib/kubelet/pki/kubelet-client-current.pem"))
        return run([
            str(cache_dir() / "bin/current/kubectl"), "--server", f"https://{self.addresses[server]}:6443",
            "--certificate-authority", str(self.state / "pki/kubernetes/ca.crt"),
            "--client-certificate", str(credential), "--client-key", str(credential), *arguments,
        ], stdin=stdin)  # fmt: skip

    def get(self, *arguments: str) -> Any:
        """An object or list as JSON, read by the everyday admin."""
        done = self.kubectl("get", *arguments, "-o", "json")
        assert done.rc == 0, done.err
        return json.loads(done.out)

    def node_taints(self, node: str) -> set[str]:
        """The fleet's own taints of a node as key:effect; Kubernetes' (not-ready, say) come and go by themselves."""
        taints = self.get("node", node)["spec"].get("taints", [])
        return {f"{taint['key']}:{taint['effect']}" for taint in taints if taint["key"].startswith("muster.dev/")}

    def condition(self, node: str, kind: str) -> str | None:
        """The status of a condition of a node, None when it has none of this type."""
        conditions = self.get("node", node)["status"].get("conditions", [])
        return next((str(c["status"]) for c in conditions if c["type"] == kind), None)

    def playbook(self, name: str, *arguments: str, log: str, **variables: Any) -> PlaybookResult:
        """Run a playbook of the repository on the lab's inventory."""
        return run_playbook(REPOSITORY / name, name=log, arguments=arguments, variables=variables)


def run(words: list[str], *, stdin: str | None = None, cwd: Path | None = None) -> Done:
    """Run a command to its end."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, cwd=cwd, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def wait_until(what: str, probe: Callable[[], T | bool | None], *, timeout_s: float) -> T | bool:
    """Poll until `probe` gives something true; fails naming what was waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = probe()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)
