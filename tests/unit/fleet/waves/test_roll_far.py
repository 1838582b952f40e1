"""A roll with shards on another machine, which is this one by SSH, and what is sent there.

Only here: ssh(1) against a server that runs what it is sent, ansible-runner at both ends, and kills of each side. The
server is paramiko's, so that no sshd is needed.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import gpu_burnin
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import Turn, Turns
from gpu_burnin.fleet.waves import places, sent
from gpu_burnin.system import known_hosts as kh
from tests.lab.paths import REPOSITORY
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.ssh_server import Shell, SshServer, new_key

NODES = [f"gpu-{number}" for number in range(1, 5)]
SWINGING = {f"gpu-{number}": "ab"[number % 2] for number in range(1, 9)}
NO_WAVES = ("--", "-e", "gpu_burnin_power_waves=never")
SECRET = "correct-horse-battery"
_CALL = (
    "from gpu_burnin.cli.program import call; import sys; from gpu_burnin.cli.muster.main import cli; "
    "sys.exit(call(cli))"
)
_VAULT = "$ANSIBLE_VAULT;1.1;AES256\n6162"


class Site:
    """A controller with four nodes and burnin.yml, and a worker at 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.state = folder / "checkout", folder / "log", folder / "state"
        self.home = folder / "home"
        for made in (self.folder, self.state, self.home):
            made.mkdir()
        hosts: dict[str, dict[str, dict[str, str]]] = {"hosts": {name: {} for name in NODES}}
        shared = {
            "fleet_state_dir": str(self.state),
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_ssh_private_key_file": str(folder / "fleet-key"),
            "ansible_become_password": SECRET,
            "repair_bmc_password": SECRET,
            "fleet_ca": "-----BEGIN PRIVATE KEY-----",
        }
        inventory = {"all": {"vars": shared, "children": {"gpu_nodes": hosts}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))

        def raw(words: str) -> dict[str, object]:
            # By the shell alone: a module would be a Python more for each host.
            return {"ansible.builtin.raw": words, "changed_when": False}

        def note(word: str) -> dict[str, object]:
            words = f"echo {word} {{{{ inventory_hostname }}}} {{{{ fleet_state_dir }}}} >> {self.log}"
            return raw(words)

        report = "{{ gpu_burnin_reports_dir | default(fleet_state_dir ~ '/reports') }}/{{ inventory_hostname }}"
        go = f"while ! [ -e {folder}/go ]; do sleep 0.1; done"
        tasks = [
            note("begin"),
            raw(go),
            raw(f"mkdir -p {report} && printf %s {{{{ inventory_hostname }}}} >{report}/report.html"),
            note("end"),
        ]
        plays = [{"name": "Work", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}]
        (self.folder / "burnin.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
        self.go = folder / "go"
        self.environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
            "PYTHONPATH": str(REPOSITORY),
        }
        self.key = folder / "worker-key"
        self.shell = Shell({**self.environment, "HOME": str(self.home)})
        self.server = SshServer(new_key(), new_key(self.key), shell=self.shell)
        threading.Thread(target=self.server.serve, daemon=True).start()
        self.pin(kh.HostKey(self.server.host_key.get_name(), self.server.host_key.get_base64()))

    def swing(self, limits: dict[str, int]) -> None:
        """Eight nodes at two feeds with a burn-in each that asks for its power waves, of half a second at least."""
        program = self.folder / "gpu-burnin"
        waits = f"while ! [ -e {self.go} ]; do sleep 0.1; done; sleep 0.5"
        program.write_text(
            f"""#!/bin/sh
case "$1" in
status) echo '{{"power_grant": {{"state": "waiting"}}, "unit": {{"running": true}}}}';;
power-grant) echo "up $4" >> {self.log}; {waits}; echo "down $4" >> {self.log}; echo '{{"state": "over"}}';;
esac
"""
        )
        program.chmod(0o755)
        inventory = yaml.safe_load((self.folder / "hosts.yml").read_text())
        inventory["all"]["vars"] |= {"fleet_feed_limits": limits, "gpu_burnin_wave_max_nodes": 2}
        inventory["all"]["children"]["gpu_nodes"]["hosts"] = {
            name: {"fleet_place": {"feed": feed}} for name, feed in SWINGING.items()
        }
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
        grant = {
            "muster.fleet.power_grant": {
                "directory": "{{ fleet_state_dir }}/feeds",
                "feed": "{{ fleet_place.feed }}",
                "feed_limits": "{{ fleet_feed_limits }}",
                "other_feeds": "{{ gpu_burnin_wave_max_nodes }}",
                "waves_s": 24.0,
                "program": str(program),
                "config": "/{{ inventory_hostname }}",
            }
        }
        plays = yaml.safe_load((self.folder / "burnin.yml").read_text())
        first, *_, last = plays[0]["tasks"]
        plays[0]["tasks"] = [first, grant, last]
        (self.folder / "burnin.yml").write_text(yaml.safe_dump(plays, sort_keys=False))

    def together(self) -> dict[str, list[int]]:
        """How many nodes swing at each feed after each that began or ended."""
        found: dict[str, list[int]] = {"a": [], "b": []}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            word, _, name = line.partition(" /")
            if word in ("up", "down"):
                counts = found[SWINGING[name]]
                counts.append((counts[-1] if counts else 0) + (1 if word == "up" else -1))
        return found

    def turns(self) -> list[Turn]:
        return Turns(self.state / "feeds", Limits(1)).counted()

    def pin(self, key: kh.HostKey) -> None:
        path = self.state / "known_hosts"
        path.unlink(missing_ok=True)
        kh.record(kh.load(path), [("127.0.0.1", self.server.port, key)])

    def start(self, *arguments: str, playbook: str = "burnin.yml") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _CALL, "roll", playbook, "-i", "hosts.yml", "--json", "--workers", "1"]
        command += ["--canary", "4", "--shard", "2", "--worker", f"127.0.0.1:{self.server.port}=1"]
        command += ["--worker-key", str(self.key), *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def notes(self, word: str) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{word} ")]

    def far(self, word: str) -> list[str]:
        """The hosts of which a note was written on the worker."""
        return sorted(host for host, state in self.notes(word) if state != str(self.state))

    def processes(self) -> list[int]:
        """Those that run on the worker."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if f"MUSTER_ROLL_STEP={self.home}".encode() in words:
                found.append(int(path.parent.name))
        return sorted(found)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.go.touch()
    made.server.close()
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def outcomes(out: str) -> dict[str, str]:
    return {host: one["outcome"] for host, one in json.loads(out)["hosts"].items()}


def unpacked(stream: bytes) -> bytes:
    """What was transmitted: its lines, and the names and the content of all files of its archive."""
    lines, head, packed = stream.partition(b'{"zipfile": ')
    content, found, _ = packed.partition(b"\n")[2].partition(b'{"eof"')
    assert head and found
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(content))) as archive:
        files = [name.encode() + b"\n" + archive.read(name) for name in archive.namelist()]
    return b"\n".join([lines, *files])


def test_a_shard_runs_on_a_worker_which_gets_no_secret_and_keeps_nothing(site: Site) -> None:
    site.go.touch()
    out, err = (process := site.start(*NO_WAVES)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert outcomes(out) == dict.fromkeys(NODES, "done") and "1 more at a time" in err
    assert len(site.far("end")) == 2 and len(site.notes("end")) == 4
    # What it brought back is where that of a shard of this machine is.
    assert [(site.state / f"reports/{name}/report.html").read_text() for name in NODES] == NODES
    with sqlite3.connect(site.state / "history.sqlite3") as history:
        assert {name for (name,) in history.execute("SELECT name FROM hosts")} == set(NODES)
    assert not list((site.home / ".cache/muster/roll").iterdir()) and not site.processes()
    assert not list((site.state / "roll/remote").iterdir())
    transmitted = unpacked(bytes(site.shell.received))
    assert b"gpu_nodes" in transmitted and b"known_hosts" in transmitted, "this reads what is sent"
    for secret in (SECRET.encode(), b"PRIVATE KEY", b"ANSIBLE_VAULT", b"fleet-key", b"worker-key"):
        assert secret not in transmitted
    assert b"vault" not in transmitted.lower()


@pytest.mark.soak
def test_what_a_killed_worker_began_is_ended_before_it_runs_elsewhere(site: Site) -> None:
    process = site.start(*NO_WAVES)
    wait_until(lambda: len(site.notes("begin")) == 4)
    before, hosts = site.processes(), site.far("begin")
    os.kill(before[0], signal.SIGKILL)
    # The other shard has the only place of this machine.
    site.go.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    assert "no further one begins there" in err and not set(before) & set(site.processes())
    assert sorted(host for host, _ in site.notes("begin")) == sorted([*NODES, *hosts])


@pytest.mark.soak
def test_after_a_kill_of_the_controller_the_next_call_finds_the_shard_on_the_worker(site: Site) -> None:
    first = site.start(*NO_WAVES)
    wait_until(lambda: len(site.notes("begin")) == 4)
    first.kill()
    first.communicate()
    second = site.start(*NO_WAVES)
    site.go.touch()
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    assert len(site.notes("begin")) == 4 and len(site.far("end")) == 2, "nothing was done twice"


def test_a_lost_connection_ends_the_shard_there(site: Site) -> None:
    process = site.start(*NO_WAVES)
    wait_until(lambda: len(site.notes("begin")) == 4)
    before = site.processes()
    site.server.drop()
    wait_until(lambda: not set(before) & set(site.processes()))
    site.go.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    assert not site.far("end"), "it did not come to its end there"


def test_a_worker_that_does_not_end_what_it_began_keeps_the_next_roll_from_beginning(site: Site) -> None:
    note = site.state / "roll/remote/shard-0001-0.json"
    note.parent.mkdir(parents=True)
    place = {"login": "127.0.0.1", "port": 1, "key": "", "known_hosts": str(site.state / "known_hosts")}
    content = {"step": "shard-0001", "run": "shard-0001-0", "project": str(site.folder), "place": place}
    note.write_text(json.dumps({**content, "schema": "muster-driver-upgrade/v1"}))
    _, err = (process := site.start(*NO_WAVES)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and f"remove {note} when it is off for good" in " ".join(err.split())
    assert "shard-0001 may still run on 127.0.0.1:1" in " ".join(err.split()) and not site.notes("begin")


def test_over_a_worker_and_this_machine_no_more_nodes_swing_than_a_feed_bears(site: Site) -> None:
    most = {"a": 3, "b": 2}
    site.swing(most)
    process = site.start("--shard", "4", "--canary", "8")
    # One of the shards may wait for the other's turns; both would swing by now if they could.
    wait_until(lambda: len(site.notes("begin")) >= 4)
    time.sleep(6)
    site.go.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and outcomes(out) == dict.fromkeys(SWINGING, "done"), err
    assert len(site.far("end")) == 4
    by_machine = json.loads(out)["workers"]
    worker = f"127.0.0.1:{site.server.port}"
    assert by_machine == {"localhost": {"shards": 1, "nodes": 4}, worker: {"shards": 1, "nodes": 4}}
    for feed, found in site.together().items():
        assert max(found) <= most[feed], f"{feed}: {found}"
    assert len(site.together()["a"]) == len(site.together()["b"]) == 8, "all have swung"
    assert not site.turns(), "each was given back"


@pytest.mark.soak
def test_turns_of_a_killed_worker_count_until_it_has_ended_all_and_waves_are_over(site: Site, tmp_path: Path) -> None:
    site.swing({"a": 9, "b": 9})
    process = site.start("--shard", "4", "--canary", "8")
    wait_until(lambda: sum(map(len, site.together().values())) == 8)
    hosts, environment = site.far("begin"), dict(site.shell.environment)
    assert len(hosts) == 4
    # The worker cannot end anything.
    (tmp_path / "none/gpu_burnin").mkdir(parents=True)
    (tmp_path / "none/gpu_burnin/__init__.py").write_text("raise SystemExit(1)")
    site.shell.environment["PYTHONPATH"] = str(tmp_path / "none")
    os.kill(site.processes()[0], signal.SIGKILL)
    site.go.touch()
    plays = site.state / "roll"
    wait_until(lambda: any("to end what" in path.read_text() for path in plays.rglob("play.txt")))
    of_shard = [turn for turn in site.turns() if turn.note]
    assert len(of_shard) == 4 and not any(turn.released for turn in of_shard)
    site.shell.environment.update(environment)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and outcomes(out) == dict.fromkeys(SWINGING, "done"), err
    assert [turn.released for turn in site.turns()] == [True] * 4


def test_a_wrong_host_key_and_another_version_begin_nothing(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(Path(gpu_burnin.__file__).parent, other / "gpu_burnin", ignore=shutil.ignore_patterns("*.pyc"))
    (other / "gpu_burnin/later.py").touch()
    site.shell.environment["PYTHONPATH"] = str(other)
    _, err = (process := site.start(*NO_WAVES)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and "has another version" in err
    pinned = new_key()
    site.pin(kh.HostKey(pinned.get_name(), pinned.get_base64()))
    _, err = (process := site.start(*NO_WAVES)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and "cannot be used" in err and "Host key verification failed" in err
    assert not (site.state / "roll/roll.json").exists() and not site.notes("begin")


@pytest.mark.parametrize(
    ("playbook", "arguments", "says"),
    [
        ("site.yml", (), "its plays use the certificates, locks or records"),
        ("playbooks/repair.yml", (), "repair.yml cannot run on workers"),
        ("burnin.yml", ("-e", "@secrets.yml"), "-e @secrets.yml cannot go to workers"),
        ("burnin.yml", ("-e", "gpu_burnin_a=1 fleet_state_dir=/"), "cannot go to workers"),
        ("burnin.yml", ("--vault-password-file", "f"), "--vault-password-file f cannot go"),
    ],
)
def test_what_needs_this_controller_is_refused(playbook: str, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(GpuBurninError, match=says.replace("(", r"\(")):
        sent.refuse(playbook, arguments)
    sent.refuse("playbooks/burnin.yml", ("--forks", "50", "-e", "gpu_burnin_power_waves=never"))


def test_variables_of_the_shard_alone_are_sent_and_none_that_is_encrypted() -> None:
    given = {
        "all": {"children": ["gpu_nodes"], "vars": {"fleet_domain": "d", "password": "p"}},
        "gpu_nodes": {"hosts": ["gpu-1", "gpu-2"]},
        "_meta": {"hostvars": {name: {"ansible_host": name, "key": "k"} for name in ("gpu-1", "gpu-2")}},
    }
    found = json.loads(sent.inventory(json.dumps(given).encode(), ["gpu-1"]))
    assert found["_meta"]["hostvars"] == {"gpu-1": {"ansible_host": "gpu-1"}}
    assert found["all"]["vars"] == {"fleet_domain": "d"} and found["gpu_nodes"]["hosts"] == ["gpu-1", "gpu-2"]
    with pytest.raises(GpuBurninError, match="ansible_host of gpu-1 is encrypted"):
        # As it was decrypted with all of its file.
        sent.inventory(json.dumps(given).encode(), ["gpu-1"], ("ansible_host", "key"))
    given["all"]["vars"] = {"gpu_burnin_api_url": {"__ansible_vault": _VAULT}}  # type: ignore[index]
    with pytest.raises(GpuBurninError, match="gpu_burnin_api_url of the group all is encrypted"):
        sent.inventory(json.dumps(given).encode(), ["gpu-1"])


@pytest.mark.parametrize("text", ["", "-oProxyCommand=x", "a b", "h:0", "h:99999", "h=0", "h;id", "u@h:22=x"])
def test_what_is_no_worker_is_refused(text: str) -> None:
    with pytest.raises(GpuBurninError, match="is no worker"):
        places.parse(text, "", Path("known_hosts"))


def test_a_worker_that_is_given_twice_bears_no_more_for_it() -> None:
    with pytest.raises(GpuBurninError, match=r"the worker roll@10\.0\.0\.9 is given twice"):
        places.each(["roll@10.0.0.9=8", "10.0.0.9", "roll@10.0.0.9:22"], "", Path("k"))
    assert len(places.each(["roll@10.0.0.9=8", "10.0.0.9", "roll@10.0.0.9:2222"], "", Path("k"))) == 3


def test_a_worker_is_named_with_login_port_and_shards() -> None:
    place, most = places.parse("roll@10.0.0.9:2222=8", "", Path("k"))
    assert (place.login, place.port, most, place.name) == ("roll@10.0.0.9", 2222, 8, "roll@10.0.0.9:2222")
    words = places.command(place, "/a b", "end", "x")
    assert "ForwardAgent=no" in words and "StrictHostKeyChecking=yes" in words and "cd '/a b' && exec" in words[-1]
    machine = places.Machine("c", 1, 1 << 20, 1024, "/root")
    with pytest.raises(GpuBurninError, match=r"the worker roll@10\.0\.0\.9:2222: this machine can run no shard"):
        places.bear(machine, 250, most, place)
