"""`muster fabric run` from the inventory to what it names, by the real playbook; it is killed in the middle of a round.

Only here: the playbook, its action and its module in real processes of Ansible, on connections of this machine, with
stand-ins for the node's own commands (tests/support/fabric_node.py) and for systemd's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.fabric import results
from gpu_burnin.fleet.fabric.model import Outcome
from tests.lab.paths import REPOSITORY
from tests.support import fabric_node
from tests.support.clocks import PATIENCE_S, wait_until

NODES = [f"gpu-{number}" for number in range(1, 5)]
PROGRAM = '#!/bin/sh\nexec {python} -m tests.support.fabric_node "$(dirname "$0")" "$@"\n'
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
pid=$(cat "$(dirname "$0")/$2.pid" 2>/dev/null) || exit 3
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
            known += f"192.0.2.{number} {fabric_node.make(self.nodes / name)}\n"
            self._script(self.nodes / name / "gpu-burnin", PROGRAM.format(python=sys.executable))
            hosts[name] = {
                "ansible_host": f"192.0.2.{number}",
                "fleet_place": {"leaf": "leaf-1"},
                "fleet_fabric_nics": [{"rail": 0, "address": f"198.51.100.{number}"}],
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

    def becomes(self, name: str, state: str) -> None:
        (self.nodes / name / fabric_node.STATE).write_text(state)

    def joins(self, name: str) -> int:
        log = self.nodes / name / fabric_node.LOG
        return len(log.read_text().splitlines()) if log.exists() else 0

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

    def run(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, json.loads(out) if out else {}, err


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


def test_a_killed_round_is_made_anew_and_ctrl_c_ends_after_the_round(site: Site) -> None:
    site.becomes("gpu-4", "wrong")
    site.becomes("gpu-1", "waits")
    first = site.start()
    wait_until(lambda: site.joins("gpu-1") == 1)
    first.kill()
    first.communicate()
    assert results.read(site.file).rounds == ()
    second = site.start()
    wait_until(lambda: site.joins("gpu-1") == 2)
    second.send_signal(signal.SIGINT)
    assert second.stderr is not None
    lines = []
    for line in second.stderr:
        lines.append(line)
        if "it stops after this round" in line:
            break
    (site.nodes / "gpu-1" / fabric_node.GO).touch()
    out, err = second.communicate(timeout=PATIENCE_S)
    said = "".join(lines) + err
    assert second.returncode == 3, said
    assert "that run is dead" in said and "4 nodes on 1 leaf: 2 rounds, " in said
    assert "round 1 of about 2: 2 tests of 4 nodes; about 30 s" in said and "gpu-4: wrong on all rails" in said
    assert json.loads(out)["why"] == "round 2 has not been run"
    [done] = results.read(site.file).rounds
    views = {one.view.member: one.view.outcome for result in done.results for one in result.views}
    with_bad = next(test for test in done.round.tests if "gpu-4" in test.members)
    assert views == {name: Outcome.WRONG if name in with_bad.members else Outcome.OK for name in NODES}
    assert [site.joins(name) for name in NODES] == [2] * 4, "what the kill has cut off was made anew, by all"
    # Nothing secret and nothing of the test is left on a node, and the round's folder is for its owner alone.
    assert [path for name in NODES for path in (site.nodes / name / f"test-{name}").iterdir()] == []
    assert (site.file.parent / "rounds/round-0001").stat().st_mode & 0o077 == 0
