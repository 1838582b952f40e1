"""Tests between the lab's nodes by `muster fabric run`: its controller is killed in the middle, and a node hangs.

Only here: the collectives go from host to host, the units are systemd's, and a real admitter keeps work away.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.fabric import results
from gpu_burnin.fleet.fabric.keep import WHY
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY

from .fleet import Fleet, wait_until

pytestmark = pytest.mark.soak
NODES, SICK = ("gpu-1", "gpu-2"), "gpu-3"
UNIT = "gpu-burnin-fabric.service"
_MOST_S = 900.0


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """The lab's nodes on one leaf, beside its inventory."""
    racks = {"gpu-1": "r1", "gpu-2": "r2", SICK: "r2"}
    hosts = {name: {"fleet_place": {"rack": rack, "leaf": "leaf-1"}} for name, rack in racks.items()}
    path = tmp_path / "leaf.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    return path


def start(leaf: Path, file: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run of the three GPU nodes, of which one is sick."""
    words = [str(Path(sys.executable).with_name("muster")), "fabric", "run", "-i", str(LAB_INVENTORY), "-i", str(leaf)]
    return subprocess.Popen(
        [*words, "-l", ",".join((*NODES, SICK)), "--through", "nodes", "--output", str(file), "--json", *arguments],
        cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def is_joined(fleet: Fleet, node: str) -> bool:
    return fleet.ssh(node, f"systemctl is-active {UNIT}").out.strip() == "active"


def entry(fleet: Fleet, node: str) -> dict[str, Any]:
    return dict(fleet.get("nodeadmissions", node))


def test_a_killed_run_goes_on_and_the_nodes_work_again(fleet: Fleet, leaf: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    first = start(leaf, file, "--seconds", "30")
    wait_until("both have joined", lambda: all(is_joined(fleet, node) for node in NODES), timeout_s=_MOST_S)
    for node in NODES:
        hold = entry(fleet, node)["spec"]["hold"]
        assert hold["why"].startswith(WHY) and hold["until"], "it ends by itself"
        assert entry(fleet, node)["status"]["state"] == "held"
    first.kill()
    first.communicate()
    second = start(leaf, file, "--seconds", "30")
    out, err = second.communicate(timeout=_MOST_S)
    report = json.loads(out)
    # The sick node is left out by name, so something is open; nothing is named.
    assert second.returncode == 3 and report["claims"] == [], err
    assert list(report["untested"]) == [SICK] and "its own burn-in comes first" in report["untested"][SICK]
    made = results.read(file)
    assert len(made.rounds) == 2 and not made.refused
    views = [one.view for done in made.rounds for result in done.results for one in result.views]
    assert len(views) == 4 and {view.outcome for view in views} == {"ok"}
    wait_until(
        "both are given back", lambda: all(entry(fleet, node)["status"]["state"] == "ready" for node in NODES),
        timeout_s=120,
    )  # fmt: skip
    assert all("hold" not in entry(fleet, node)["spec"] for node in NODES)


def test_a_node_that_stops_in_its_test_is_silent_and_the_round_ends(fleet: Fleet, leaf: Path, tmp_path: Path) -> None:
    """Its test is stopped as by a machine that hangs; the other one says so, and is not blamed by itself."""
    file = tmp_path / "run.json"
    run = start(leaf, file, "--seconds", "20")
    wait_until("both have joined", lambda: all(is_joined(fleet, node) for node in NODES), timeout_s=_MOST_S)
    fleet.must("gpu-2", f"systemctl kill --signal=SIGSTOP {UNIT}")
    wait_until("the round is over", lambda: len(results.read(file).rounds) >= 1, timeout_s=_MOST_S)
    [result] = results.read(file).rounds[0].results
    assert [one.view.member for one in result.views] == ["gpu-1"]
    assert result.views[0].view.outcome in ("stalled", "unreachable")
    # It ends after the round that it has begun, and gives the nodes back.
    run.send_signal(signal.SIGINT)
    fleet.ssh("gpu-2", f"systemctl kill --signal=SIGKILL {UNIT}")
    out, err = run.communicate(timeout=_MOST_S)
    assert "gpu-1: gpu-2 is stalled" in err
    # Of two nodes alone nobody can tell which one it was.
    [claim] = json.loads(out)["claims"]
    assert (run.returncode, claim["sure"], claim["found"], claim["nodes"]) == (1, False, "silent", list(NODES))
    assert all("hold" not in entry(fleet, node)["spec"] for node in NODES)
