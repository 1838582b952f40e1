"""A host that hangs is left behind with its name within a bounded time, and the others go on.

Two kinds: a machine that answers nothing any more (SSH's own questions find it), and one whose kernel answers while a
task there never ends (the plays' `timeout`).

Only here: real SSH to a line that goes dead, and Ansible's own end of a task.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.fleet.plan.work import extended_over_s
from tests.lab.paths import REPOSITORY
from tests.support.clocks import PATIENCE_S
from tests.support.site_plays import site_plays
from tests.support.ssh_server import StartServer

Play = Callable[..., subprocess.CompletedProcess[str]]
# A node is given up after so long without a word, whatever a task waits for.
MOST_SILENT_S = 120
# Longer than any task of a node takes: a reboot of nvidia_driver (1,200 s) with the driver's build before it.
MOST_TASK_S = 3600
NODES = {"all", "gpu_nodes", "system_nodes"}


class Line:
    """A line to a server that can be cut as a machine that hangs cuts it: nothing comes through, nothing is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.dead = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            while True:
                for one in select.select([near, far], [], [])[0]:
                    data = one.recv(65536)
                    if self.dead.is_set():
                        # Until the other side gives up.
                        while near.recv(65536):
                            pass
                    if self.dead.is_set() or not data:
                        return
                    (far if one is near else near).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Where ssh's masters meet: a socket's path is short."""
    folder = Path(tempfile.mkdtemp(prefix="cp", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def ssh_args() -> str:
    configuration = configparser.ConfigParser()
    configuration.read(REPOSITORY / "ansible.cfg")
    return configuration["ssh_connection"]["ssh_args"]


def option(name: str) -> int:
    (value,) = re.findall(rf"-o {name}=(\d+)s?\b", ssh_args())
    return int(value)


def test_the_collections_page_has_the_same_settings() -> None:
    page = (REPOSITORY / "collections/ansible_collections/muster/fleet/README.md").read_text()
    assert f"[ssh_connection]\npipelining = True\nssh_args = {ssh_args()}\n" in page


def test_silence_is_bounded_and_connections_outlast_a_sweep() -> None:
    assert 0 < option("ServerAliveInterval") * option("ServerAliveCountMax") <= MOST_SILENT_S
    # A sweep of one task over 7,500 hosts as asked: 0.12 CPU s each on two cores (tests/bench/ansible_cost.py).
    assert option("ControlPersist") >= 2 * 7500 * 0.12 / 2


@pytest.mark.slow
def test_a_machine_that_hangs_in_a_task_is_unreachable_and_the_others_go_on(
    ansible_playbook: Play,
    start_server: StartServer,
    identity: Path,
    tmp_path: Path,
    sockets: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = re.sub(r"Interval=\d+", "Interval=4", ssh_args()).replace(f"={option('ServerAliveCountMax')}", "=2")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", quick)
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH_DIR", str(sockets))
    ended = threading.Event()

    def hang(command: str) -> tuple[int, bytes, bytes]:
        if "second" in command:
            line.dead.set()
            ended.wait(PATIENCE_S)
        return 0, b"", b""

    line = Line(start_server(execute=hang).port)
    ports = {"hangs": line.port, "well": start_server(execute=lambda command: (0, b"done", b"")).port}
    common = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    variables = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_ssh_common_args": common}
    variables |= {"ansible_ssh_private_key_file": str(identity), "ansible_user": "root", "ansible_ssh_use_tty": False}
    hosts = {name: {**variables, "ansible_port": port} for name, port in ports.items()}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    tasks = [{"ansible.builtin.raw": word} for word in ("first", "second", "third")]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = ansible_playbook("play.yml", inventory="hosts.json")
    ended.set()
    line.close()
    assert done.returncode == 4, done.stdout + done.stderr
    assert re.search(r"hangs +: ok=1 .*unreachable=1", done.stdout), done.stdout
    assert re.search(r"well +: ok=3 ", done.stdout), done.stdout


@pytest.mark.slow
def test_a_task_that_never_ends_fails_its_host_and_the_others_go_on(ansible_playbook: Play, tmp_path: Path) -> None:
    role = tmp_path / "roles/waits/tasks/main.yml"
    role.parent.mkdir(parents=True)
    role.write_text(
        json.dumps([{"ansible.builtin.command": f"sleep {PATIENCE_S}", "when": "inventory_hostname == 'hangs'"}])
    )
    tasks = [{"ansible.builtin.import_role": {"name": "waits"}}, {"ansible.builtin.debug": {"msg": "goes on"}}]
    # As site.yml has it: at the play, and the tasks in roles.
    (tmp_path / "play.yml").write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "timeout": 1, "tasks": tasks}])
    )
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"hangs": None, "well": None}}}))
    done = ansible_playbook("play.yml", inventory="hosts.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Timed out after 1 second" in done.stdout + done.stderr
    assert re.search(r"hangs +: ok=0 .*failed=1", done.stdout) and re.search(r"well +: ok=1 ", done.stdout)


def test_each_play_over_nodes_bounds_its_tasks() -> None:
    plays = {
        play["name"]: play.get("timeout")
        for play in site_plays()
        if NODES & set(re.findall(r"\w+", str(play["hosts"])))
    }
    assert len(plays) > 8
    assert {name: timeout for name, timeout in plays.items() if timeout != MOST_TASK_S} == {}


def test_tasks_that_wait_for_a_burn_in_have_their_own_bound() -> None:
    """gpu_burnin_timeout_s, which may be more."""
    tasks = yaml.safe_load((REPOSITORY / "roles/gpu_burnin/tasks/result.yml").read_text())
    waiting = [task for task in tasks if any(key.startswith("muster.fleet.") for key in task)]
    assert len(waiting) == 3
    assert [task["timeout"] for task in waiting] == [0] * 3


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("given_s", [1800, 7200, "86400"])
def test_a_run_that_somebody_else_began_is_waited_for_whatever_its_level(joined: bool, given_s: Any) -> None:
    """And the one that is needed after it."""
    role = REPOSITORY / "roles/gpu_burnin"
    block = next(task for task in yaml.safe_load((role / "tasks/main.yml").read_text()) if "block" in task)
    assert block["module_defaults"]["muster.fleet.burnin"]["timeout_s"] == "{{ __gpu_burnin_wait_s }}"
    timeout_s = yaml.safe_load((role / "defaults/main.yml").read_text())["gpu_burnin_timeout_s"]
    values = {"gpu_burnin_timeout_s": timeout_s, "gpu_burnin_extended_s": given_s}
    wait_s = jinja2.Template(yaml.safe_load((role / "vars/main.yml").read_text())["__gpu_burnin_wait_s"])
    assert int(wait_s.render(values)) == timeout_s
    waits_s = int(wait_s.render(values, __gpu_burnin_result={"joined": joined}))
    before_s = extended_over_s(max(float(given_s), LEVELS["extended"].total_s)) if joined else 0.0
    assert waits_s > before_s + deadlines(LEVELS["standard"].total_s).run_s
