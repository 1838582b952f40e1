"""`muster fabric run` from the inventory to its report, by the real playbook; it is killed in the middle of a round.

Only here: the playbook, its action and its module in real processes of Ansible, on connections of this machine; and the
nodes' own commands, which meet by signed offers and send their bytes over loopback. Only systemd has stand-ins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_burnin.fabric.model import Outcome
from gpu_burnin.fleet.fabric import results
from tests.lab.paths import REPOSITORY
from tests.support.clocks import PATIENCE_S, wait_until

NODES = [f"gpu-{number}" for number in range(1, 5)]
PROGRAM = '#!/bin/sh\nexec {python} -P -m gpu_burnin "$@" --config "$(dirname "$0")/config.yaml"\n'
SYSTEMD_RUN = """#!/bin/sh
for word; do
  case $word in --unit=*) unit=${word#--unit=};; esac
  shift
  [ "$word" = -- ] && break
done
setsid "$@" >/dev/null 2>&1 </dev/null &
echo $! >"$(dirname "$0")/$unit.pid"
"""
SYSTEMCTL = """#!/bin/sh
pid=$(cat "$(dirname "$0")/$2.pid" 2>/dev/null) || { [ "$1" != is-active ] || echo inactive; exit 3; }
case $1 in
  is-active) kill -0 "$pid" 2>/dev/null && echo active || echo inactive;;
  stop) kill -KILL -- "-$pid" 2>/dev/null; while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done;;
esac
"""


class Site:
    """An inventory of four nodes on one leaf, each with a folder of its own on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes, self.bin = folder, folder / "nodes", folder / "bin"
        self.bin.mkdir()
        for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
            self._script(self.bin / name, text)
        hosts, known = {}, ""
        for number, name in enumerate(NODES, 1):
            known += f"192.0.2.{number} {self._node(self.nodes / name)}\n"
            self._script(self.nodes / name / "gpu-burnin", PROGRAM.format(python=sys.executable))
            hosts[name] = {
                "ansible_host": f"192.0.2.{number}",
                "fleet_place": {"leaf": "leaf-1"},
                "fleet_fabric_nics": [{"rail": 0, "address": f"127.0.1.{number}"}],
                "fabric_program": str(self.nodes / name / "gpu-burnin"),
                "fabric_node_dir": str(self.nodes / name / f"test-{name}"),
            }
        shared = {
            "fleet_state_dir": str(folder / "state"),
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
        }
        listed = {"all": {"vars": shared, "children": {"gpu_nodes": {"hosts": hosts}}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(listed))
        (folder / "state").mkdir()
        (folder / "state/known_hosts").write_text(known)
        self.file = folder / "state/fabric/run.json"

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    @staticmethod
    def _node(folder: Path) -> str:
        """A node's folder, with its configuration and host key; the public half."""
        (folder / "state").mkdir(mode=0o700, parents=True)
        key = folder / "host_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        config = {"node_name": folder.name, "host_key": str(key), "state_dir": str(folder / "state")}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        return " ".join(key.with_suffix(".pub").read_text().split()[:2])

    def of_node(self, name: str) -> Path:
        """The folder of its test."""
        return self.nodes / name / f"test-{name}"

    def under_way(self) -> bool:
        return all((self.of_node(name) / "started").exists() for name in NODES)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
        }
        environment.pop("PYTEST_CURRENT_TEST", None)
        command = [sys.executable, "-c", "from gpu_burnin.cli.program import call; import sys; "
                   "from gpu_burnin.cli.muster.main import cli; sys.exit(call(cli))"]  # fmt: skip
        words = ["fabric", "run", "-i", str(self.folder / "hosts.yml"), "--without-cluster", "--through", "nodes"]
        return subprocess.Popen(
            [*command, *words, "--json", *arguments],
            cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            mine = str(tmp_path).encode() in path.read_bytes()
        except OSError:
            continue
        if mine and int(path.parent.name) != os.getpid():
            os.kill(int(path.parent.name), signal.SIGKILL)


def offer_of(site: Site, name: str) -> str:
    """What this node has now; "" between two tests."""
    try:
        return (site.of_node(name) / "offer").read_text()
    except FileNotFoundError:
        return ""


def test_a_killed_round_is_made_anew_and_ctrl_c_ends_after_the_round(site: Site) -> None:
    first = site.start("--seconds", "60")
    wait_until(site.under_way)
    first.kill()
    first.communicate()
    assert results.read(site.file).rounds == () and site.under_way(), "nobody has ended it"
    before = offer_of(site, "gpu-1")
    second = site.start("--again", "--seconds", "3")
    wait_until(lambda: site.under_way() and offer_of(site, "gpu-1") not in ("", before))
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 3, err
    assert "that run is dead" in err and "4 nodes on 1 leaf: 2 rounds, " in err
    assert "round 1 of about 2: 2 tests of 4 nodes; about 23 s" in err and "it stops after this round" in err
    assert json.loads(out)["why"] == "round 2 has not been run"
    [done] = results.read(site.file).rounds
    views = [one.view for result in done.results for one in result.views]
    assert {view.member: view.outcome for view in views} == dict.fromkeys(NODES, Outcome.OK)
    assert all(view.bytes_per_s for view in views) and not any(result.refused for result in done.results)
    # Nothing secret and nothing of the test is left on a node, and the round's folder is for its owner alone.
    assert [path for name in NODES for path in site.of_node(name).iterdir()] == []
    assert (site.file.parent / "rounds/round-0001").stat().st_mode & 0o077 == 0
