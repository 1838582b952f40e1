"""Two teams and their jobs, from `muster run` to containers on the lab's nodes: a gang waits for a node that is mended,
gives its nodes back to their owner and goes on where it was, and goes on elsewhere when a node is lost.

Only here: Kueue, JobSet, admitter, agent and kubelet together under one job, by a researcher's rights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import hosts

from .fleet import XID_79, Fleet, wait_until
from .lab_jobs import STORE, ended, jobset, launch, where, why
from .lab_nodes import held, state

# A step a second; each tenth, and the one at which it is asked to leave, is saved.
TRAIN = """
import os, sys, time, urllib.request
from gpu_burnin.job import asked_to_leave
rank, steps, url = int(os.environ["RANK"]), int(sys.argv[1]), f"http://store:8080/{sys.argv[2]}"
def save(step):
    urllib.request.urlopen(urllib.request.Request(url, data=str(step).encode(), method="PUT"), timeout=10)
step = int(urllib.request.urlopen(url, timeout=10).read())
print(f"rank {rank} of {os.environ['WORLD_SIZE']} begins at step {step}", flush=True)
while step < steps:
    time.sleep(1)
    step += 1
    leave = asked_to_leave()
    if rank == 0 and (leave or step % 10 == 0):
        save(step)
    if leave:
        print(f"rank {rank} leaves at step {step}: {leave.why}", flush=True)
        sys.exit(42)
print(f"rank {rank} ends at step {step}", flush=True)
"""


def begins(fleet: Fleet, user: str, name: str, rank: int = 0) -> list[int]:
    """The steps at which a rank says that it has begun, of the lives whose logs are still there."""
    said = fleet.muster("logs", name, "--team", "vision", "--tail", "100", user=user).out
    return [int(line.split()[-1]) for line in said.splitlines() if f"rank {rank} of " in line and "begins" in line]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def teams(fleet: Fleet) -> Iterator[Fleet]:
    """The teams' store; their jobs are gone at the end, and gpu-3 is as sick as it was."""
    made = fleet.kubectl("apply", "-n", "vision", "-f", "-", stdin=STORE, identity="user-alice")
    assert made.rc == 0, made.err
    wait_until("the store", lambda: pod_runs(fleet, "store"), timeout_s=60)
    sick = next(str(host.gpu_scenario) for host in fleet.lab.hosts if host.name == "gpu-3")
    try:
        yield fleet
    finally:
        for team in ("vision", "audio"):
            fleet.kubectl("delete", "jobsets,pods,services", "--all", "-n", team, "--wait=true", "--timeout=60s")
        hosts.install_scenario(fleet.lab, "gpu-3", sick)
        hosts.reboot(fleet.lab, "gpu-3")
        wait_until("gpu-3 to be held again", lambda: held(fleet, "gpu-3"), timeout_s=240)


def pod_runs(fleet: Fleet, name: str) -> bool:
    return bool(fleet.get("pod", "-n", "vision", name)["status"]["phase"] == "Running")


def test_a_gang_of_three_waits_for_the_held_node_and_runs_when_it_is_mended(teams: Fleet, script: Path) -> None:
    launch(teams, "user-alice", script, "three", 3, 45, "three")
    said = str(
        wait_until(
            "the reason",
            lambda: "only 2 of 3" in (told := why(teams, "user-alice", "vision/three")) and told,
            timeout_s=60,
        )
    )
    assert "vision/three: waits" in said and where(teams, "vision", "three") == set()

    hosts.install_scenario(teams.lab, "gpu-3", "healthy-2gpu")
    hosts.reboot(teams.lab, "gpu-3")
    mended = time.monotonic()
    wait_until("gpu-3", lambda: state(teams, "gpu-3") == "ready", timeout_s=240)
    admitted = time.monotonic()
    every = {"gpu-1", "gpu-2", "gpu-3"}
    wait_until("three nodes", lambda: where(teams, "vision", "three") == every, timeout_s=60)
    print(f"gpu-3 rebooted to ready {admitted - mended:.1f} s, to three pods {time.monotonic() - admitted:.1f} s more")
    shown = json.loads(teams.muster("teams", "--json", user="user-alice").out)
    vision = next(one for one in shown["teams"] if one["name"] == "vision")
    assert [(one["used"], one["borrowed"]) for one in vision["shares"]] == [(6, 2)], vision


def test_the_owner_takes_its_nodes_back_and_the_borrower_goes_on_where_it_was(teams: Fleet, script: Path) -> None:
    wait_until("the first steps", lambda: begins(teams, "user-alice", "three") == [0], timeout_s=60)
    short = script.with_name("short.py")
    short.write_text("import time; time.sleep(3)")
    asked = time.monotonic()
    launch(teams, "user-bob", short, "own", 1)
    wait_until("audio's job", lambda: where(teams, "audio", "own"), timeout_s=120)
    print(f"audio's own nodes, borrowed by vision, are back after {time.monotonic() - asked:.1f} s")
    assert "takes back its team's own quota" in why(teams, "user-alice", "vision/three")
    wait_until("audio's end", lambda: ended(teams, "audio", "own"), timeout_s=60)
    wait_until("the gang's end", lambda: ended(teams, "vision", "three"), timeout_s=180)
    assert [step > 0 for step in begins(teams, "user-alice", "three")] == [True], "from its checkpoint"
    assert jobset(teams, "vision", "three")["status"].get("restartsCountTowardsMax", 0) == 0


def test_a_node_is_lost_and_the_gang_goes_on_elsewhere_from_its_checkpoint(teams: Fleet, script: Path) -> None:
    launch(teams, "user-alice", script, "two", 2, 45, "two")
    first = wait_until("two nodes", lambda: len(found := where(teams, "vision", "two")) == 2 and found, timeout_s=60)
    assert isinstance(first, set)
    lost = sorted(first)[-1]
    wait_until("a checkpoint", lambda: saved(teams, "two") >= 10, timeout_s=60)
    broken = time.monotonic()
    teams.must(lost, XID_79)
    others = {"gpu-1", "gpu-2", "gpu-3"} - {lost}
    wait_until("the other two nodes", lambda: where(teams, "vision", "two") == others, timeout_s=120)
    print(f"XID 79 on {lost} to the whole gang on others {time.monotonic() - broken:.1f} s")
    told = why(teams, "user-alice", "vision/two")
    assert "First cause" in told and lost in told and "XID" in told, told
    wait_until("the gang's end", lambda: ended(teams, "vision", "two"), timeout_s=180)
    assert [step >= 10 for step in begins(teams, "user-alice", "two")] == [True], "from its checkpoint"


def saved(fleet: Fleet, name: str) -> int:
    """The step that the store has of a job."""
    read = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/{name}').read().decode())"
    done = fleet.kubectl("exec", "-n", "vision", "store", "--", "python3", "-c", read, identity="user-alice")
    assert done.rc == 0, done.err
    return int(done.out)
