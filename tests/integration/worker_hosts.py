"""A worker of a roll on a machine of its own: two hosts of a lab of its own, and this machine as the controller.

`worker-1` has this checkout and this Python at the same paths, read-only, and a key of its own. `thin-1` has systemd
and sshd alone, and is four nodes, each with an address of its own. Their burn-in is a small playbook, which notes on
the node who logged in, and waits there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.system import known_hosts as kh
from tests.lab import hosts
from tests.lab.model import Host, Lab
from tests.lab.paths import REPOSITORY, state_dir

CONTROLLER, WORKER = "198.18.78.1", "198.18.78.11"
NODES = {f"gpu-{number}": f"198.18.78.{20 + number}" for number in range(1, 5)}
_SUBNET = "198.18.78.0/24"
_WORKER, _THIN = "worker-1", "thin-1"
_LOG, _GO = "/root/log", "/root/go"
_CALL = (
    "from gpu_burnin.cli.program import call; import sys; from gpu_burnin.cli.muster.main import cli; "
    "sys.exit(call(cli))"
)
# Of the roll on the worker, whatever its parents are.
_RUNNING = "grep -lsz ^MUSTER_ROLL_STEP= /proc/[0-9]*/environ | cat"


def folders() -> tuple[Path, ...]:
    """What a worker shares with its controller: the checkout, and the Python with all that is installed in it."""
    found = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
    # The hosts have the distribution's own Python.
    return tuple(
        path
        for path in dict.fromkeys(found)
        if path != Path("/usr") and not any(path != other and path.is_relative_to(other) for other in found)
    )


class WorkerHosts:
    """The two hosts."""

    def __init__(self, playbook: Path) -> None:
        made = (
            Host(_WORKER, WORKER, False, None, None, None, (*folders(), playbook)),
            Host(_THIN, next(iter(NODES.values())), False, None, None, None),
        )
        self.lab = Lab("worker", state_dir("worker"), (_SUBNET,), "", made, {})

    def up(self) -> None:
        """Start them: the worker with a key that the nodes take from its address alone. Raises LabError."""
        hosts.up(self.lab)
        self.on_worker("ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")
        # Ansible's own programs find the checkout's package, whichever one this Python has.
        self.on_worker(
            f"echo 'SetEnv PYTHONPATH={REPOSITORY}' > /etc/ssh/sshd_config.d/worker.conf; systemctl restart ssh"
        )
        # The fleet's key opens nodes, and no worker.
        login = self.lab.state / "ssh/worker"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", login], check=True)
        self.on_worker(f"echo '{Path(f'{login}.pub').read_text().strip()}' > /root/.ssh/authorized_keys")
        own = self.on_worker("cat /root/.ssh/id_ed25519.pub").strip()
        fleet = (self.lab.state / "ssh/id_ed25519.pub").read_text().strip()
        lines = [f'from="{CONTROLLER}" {fleet}', f'from="{WORKER}" {own}']
        self.on_nodes("; ".join(f"echo '{line}' >> /root/keys" for line in lines))
        self.on_nodes("mv /root/keys /root/.ssh/authorized_keys")
        for address in [*NODES.values()][1:]:
            self.on_nodes(f"ip address add {address}/24 dev eth0")

    def down(self) -> None:
        """Remove them."""
        hosts.down(self.lab)

    def on_worker(self, script: str) -> str:
        """Standard output of a shell script on the worker."""
        return self._on(_WORKER, script)

    def on_nodes(self, script: str) -> str:
        """Standard output of a shell script on the host that is all nodes."""
        return self._on(_THIN, script)

    def cut_worker(self) -> None:
        """Nothing comes to the worker or from it."""
        hosts.cut(self.lab, _WORKER)

    def join_worker(self) -> None:
        """It answers again."""
        hosts.join(self.lab, _WORKER)

    def power_off_worker(self) -> None:
        """It is off."""
        hosts.power_off(self.lab, _WORKER)

    def power_on_worker(self) -> None:
        """It has booted."""
        hosts.power_on(self.lab, _WORKER)

    def running(self) -> list[str]:
        """The processes of a roll on the worker."""
        return self.on_worker(_RUNNING).split()

    def left(self) -> str:
        """What a roll has left on the worker's disk."""
        return self.on_worker("ls -d /root/.cache/muster/roll/* /tmp/muster-* 2>/dev/null | cat")

    def key(self, name: str) -> kh.HostKey:
        """A host's own key, as its console shows it."""
        kind, content = self._on(name, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
        return kh.HostKey(kind, content)

    def _on(self, name: str, script: str) -> str:
        words = ["podman", "exec", f"muster-{self.lab.name}-{name}", "sh", "-ec", script]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {script}: {done.stderr}"
        return done.stdout


class Site:
    """A controller of these hosts, with an inventory, a playbook and a state directory of its own."""

    def __init__(self, made: WorkerHosts, folder: Path, playbook: Path) -> None:
        self.hosts, self.folder, self.state = made, folder, folder / "state"
        self.state.mkdir()
        self.worker_key = made.lab.state / "ssh/worker"
        self.fleet_key = made.lab.state / "ssh/id_ed25519"
        pinned = [(WORKER, 22, made.key(_WORKER)), *((address, 22, made.key(_THIN)) for address in NODES.values())]
        kh.record(kh.load(self.state / "known_hosts"), pinned)
        shared = {
            "fleet_state_dir": str(self.state),
            "fleet_known_hosts": "{{ fleet_state_dir }}/known_hosts",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.fleet_key),
            "ansible_ssh_common_args": "-o UserKnownHostsFile={{ fleet_known_hosts }} -o StrictHostKeyChecking=yes",
        }
        nodes = {"hosts": {name: {"ansible_host": address} for name, address in NODES.items()}}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": shared, "children": {"gpu_nodes": nodes}}}))
        self.playbook = playbook / "burnin.yml"
        self.playbook.write_text(yaml.safe_dump(_plays(), sort_keys=False))
        made.on_nodes(f"rm -f {_LOG} {_GO}")

    def go(self) -> None:
        """The nodes' burn-ins end."""
        self.hosts.on_nodes(f"touch {_GO}")

    def start(self, *, worker: bool = True, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`muster roll` with two shards of two nodes, one of them on the worker."""
        command = [sys.executable, "-c", _CALL, "roll", str(self.playbook), "-i", str(self.folder / "hosts.yml")]
        command += ["--json", "--workers", "1", "--canary", "4", "--shard", "2"]
        if worker:
            command += ["--worker", f"root@{WORKER}=1", "--worker-key", str(self.worker_key)]
        command += ["--", "-e", "gpu_burnin_power_waves=never"]
        return subprocess.Popen(
            command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        )  # fmt: skip

    def notes(self, word: str) -> dict[str, list[str]]:
        """From where who logged in to the nodes that wrote such a note, each time."""
        found: dict[str, list[str]] = {}
        for line in self.hosts.on_nodes(f"touch {_LOG}; cat {_LOG}").splitlines():
            kind, name, address = line.split()[:3]
            if kind == word:
                found.setdefault(name, []).append(address)
        return found

    def logins(self, word: str) -> int:
        """How many notes of a kind there are."""
        return sum(map(len, self.notes(word).values()))

    def agents(self) -> set[str]:
        """The agents that the plays had: where they ran, and which, "" for none."""
        return {line.split(maxsplit=3)[3] for line in self.hosts.on_nodes(f"cat {_LOG}").splitlines()}

    def wait_for_begin(self) -> list[str]:
        """Until all burn-ins have begun; the nodes of the shard on the worker."""
        self.wait(lambda: len(self.notes("begin")) == len(NODES))
        return sorted(name for name, one in self.notes("begin").items() if one == [WORKER])

    def wait_for_loss(self) -> float:
        """Seconds until this controller takes the worker's shard for lost."""
        return self.wait(lambda: any((self.state / "roll").rglob("lost")))

    def wait_for_ending(self) -> None:
        """Until the shard waits for its worker to end what it left there."""
        self.wait(lambda: any("to end what" in path.read_text() for path in (self.state / "roll").rglob("play.txt")))

    def wait(self, condition: Callable[[], bool], most_s: float = 600.0) -> float:
        """Seconds until a condition holds. It looks twice a second: each look starts a process in a host."""
        begun_s = time.monotonic()
        while not condition():
            assert time.monotonic() - begun_s < most_s, f"not within {most_s:g} s"
            time.sleep(0.5)
        return time.monotonic() - begun_s


def _plays() -> list[dict[str, Any]]:
    def note(word: str) -> dict[str, object]:
        where = "{{ lookup('pipe', 'hostname') }} [{{ lookup('env', 'SSH_AUTH_SOCK') }}]"
        words = f'echo {word} {{{{ inventory_hostname }}}} "${{SSH_CONNECTION%% *}}" "{where}" >> {_LOG}'
        return {"ansible.builtin.shell": words, "changed_when": False}

    wait = f"while ! [ -e {_GO} ]; do sleep 0.5; done"
    report = "{{ gpu_burnin_reports_dir | default(fleet_state_dir ~ '/reports') }}/{{ inventory_hostname }}"
    here = {"delegate_to": "localhost", "vars": {"ansible_connection": "local"}}
    tasks = [
        note("begin"),
        {"ansible.builtin.shell": wait, "changed_when": False},
        {"ansible.builtin.file": {"path": report, "state": "directory"}, **here},
        {"ansible.builtin.copy": {"dest": f"{report}/report.html", "content": "{{ inventory_hostname }}"}, **here},
        note("end"),
    ]
    return [{"name": "Work", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}]


def outcomes(out: str) -> dict[str, str]:
    """What became of each node, by what a roll printed."""
    return {host: one["outcome"] for host, one in json.loads(out)["hosts"].items()}
