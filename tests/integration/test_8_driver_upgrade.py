"""Another driver on nodes that work: one at a time, after their jobs, and down again. A sick node is left, and told.

Only here: another driver on hosts with kubelets, beside a job that ends first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import LAB_INVENTORY, PlaybookResult
from tests.lab.paths import REPOSITORY

from .fleet import Fleet, wait_until

OLD, NEW = "580.65.06", "580.105.08"
PLAYBOOK = "playbooks/driver_upgrade.yml"
WORKERS = ("gpu-1", "gpu-2")
READY = "muster.node-restriction.kubernetes.io/ready"
HOLD = "muster.dev/hold-until"
JOB = f"""
apiVersion: v1
kind: Pod
metadata: {{name: train, annotations: {{{HOLD}: checkpoint}}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  nodeSelector: {{{READY}: "true", kubernetes.io/hostname: gpu-1}}
  containers:
    - name: train
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [pause]
      resources: {{limits: {{nvidia.com/gpu: "1"}}}}
"""


@dataclass
class Watched:
    """What was seen while the playbook ran: the nodes that were out of work for it, at each look."""

    out: list[frozenset[str]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def look(self, fleet: Fleet) -> None:
        while not self.stop.wait(1.0):
            items = fleet.get("nodeadmissions")["items"]
            self.out.append(frozenset(item["metadata"]["name"] for item in items if "quarantine" in item["spec"]))


def upgrade(fleet: Fleet, version: str, *arguments: str, log: str) -> PlaybookResult:
    return fleet.playbook(PLAYBOOK, *arguments, log=log, fleet_nvidia_driver_version=version)


def loaded(fleet: Fleet, node: str) -> str:
    """The version of the driver for whom it matters: the library's answer, and the GPUs' processes."""
    told = fleet.must(node, "nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    (version,) = set(told.split())
    return version


def works(fleet: Fleet, node: str) -> bool:
    """Whether the node takes work and nobody asks anything of it."""
    found, record = fleet.get("node", node), fleet.get("nodeadmission", node)
    offered = found["status"]["allocatable"].get("nvidia.com/gpu")
    asked = {"repair", "quarantine", "hold"} & set(record["spec"])
    labelled = found["metadata"]["labels"].get(READY) == "true"
    return labelled and not fleet.node_taints(node) and not asked and offered == "2"


def plugin(fleet: Fleet, node: str) -> str:
    """When the device plugin's container on the node was started."""
    pods = fleet.get("pods", "--namespace=muster-system", "--field-selector", f"spec.nodeName={node}")["items"]
    (found,) = [pod for pod in pods if "device-plugin" in pod["metadata"]["name"]]
    return str(found["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


def lines(result: PlaybookResult, start: str) -> list[str]:
    """The lines that the playbook told of a host."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.log.read_text())
    return [line.strip() for line in plain.splitlines() if line.strip().startswith(start)]


@contextmanager
def job(fleet: Fleet) -> Iterator[None]:
    made = fleet.kubectl("create", "-f", "-", stdin=JOB)
    assert made.rc == 0, made.err
    try:
        wait_until("the job to run", lambda: phase(fleet) == "Running", timeout_s=60)
        yield
    finally:
        fleet.kubectl("delete", "pod", "train", "--now", "--ignore-not-found")


def phase(fleet: Fleet) -> str:
    done = fleet.kubectl("get", "pod", "train", "-o", "jsonpath={.status.phase}")
    return done.out if done.rc == 0 else "gone"


@contextmanager
def running(fleet: Fleet, log: str) -> Iterator[tuple[Future[PlaybookResult], Watched]]:
    watched = Watched()
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(watched.look, fleet)
        try:
            yield pool.submit(upgrade, fleet, NEW, "-l", "gpu_nodes", log=log), watched
        finally:
            watched.stop.set()
            looking.result()


@pytest.fixture(scope="module", autouse=True)
def at_work(fleet: Fleet) -> None:
    """Both healthy nodes work, with the driver of the inventory."""
    wait_until("both to take work", lambda: all(works(fleet, node) for node in WORKERS), timeout_s=240)
    assert [loaded(fleet, node) for node in WORKERS] == [OLD, OLD]


def test_check_mode_says_who_changes_when_and_what_works_on_it(fleet: Fleet) -> None:
    with job(fleet):
        result = upgrade(fleet, NEW, "-l gpu_nodes --check", log="driver-check")
        assert result.rc == 0, result.failures
        wanted = f"driver {OLD} -> {NEW}: asks for driver {NEW}, {OLD} is loaded, and kubelet runs"
        assert lines(result, "gpu-2  batch 1")[0].startswith(f"gpu-2  batch 1  {wanted}")
        assert lines(result, "gpu-1  batch 2")[0].startswith(f"gpu-1  batch 2  {wanted}")
        assert lines(result, "gpu-1  batch 2")[0].endswith("work on it: default/train")
        assert lines(result, "gpu-3  left as it is: it is ")
        assert phase(fleet) == "Running"
    assert all(works(fleet, node) for node in WORKERS)


def test_a_host_that_is_given_back_is_as_it_was_while_its_job_goes_on(fleet: Fleet) -> None:
    """No test, no taint, its label: the next pod of the queue may come, though the node is busy."""
    before = status(fleet, "gpu-1")["highestSequence"]
    with job(fleet):
        result = upgrade(fleet, NEW, "-l gpu-1", "-e driver_upgrade_drain_timeout_s=10", log="driver-back")
        assert result.rc == 0, result.failures
        why = f"driver {OLD} -> {NEW}: after 10 s work is still on it: default/train"
        assert lines(result, f"gpu-1  NOT DONE  {why}")
        wait_until("the host as it was", lambda: works(fleet, "gpu-1"), timeout_s=60)
        found = status(fleet, "gpu-1")
        assert (found["state"], found["code"], found["highestSequence"]) == ("ready", "PASS", before), found["message"]
        assert phase(fleet) == "Running" and loaded(fleet, "gpu-1") == OLD


def test_a_version_that_nobody_has_is_refused_before_work_is_asked_to_leave(fleet: Fleet) -> None:
    evidence = status(fleet, "gpu-2")["transitions"]
    result = upgrade(fleet, "580.99.01", "-l gpu-2", log="driver-nobody")
    assert result.rc == 2 and "no package source of the host has" in " ".join(result.failures), result.failures
    assert status(fleet, "gpu-2")["transitions"] == evidence and works(fleet, "gpu-2")


def test_one_at_a_time_and_the_job_ends_first(fleet: Fleet) -> None:
    started = {node: plugin(fleet, node) for node in WORKERS}
    with job(fleet), running(fleet, "driver-up") as (playbook, watched):
        wait_until(
            "the host of the job to be asked for",
            lambda: playbook.done() or "quarantine" in fleet.get("nodeadmission", "gpu-1")["spec"],
            timeout_s=600,
        )
        assert not playbook.done(), playbook.result().failures
        # The canary was the node without work: it works again, with the other driver.
        assert works(fleet, "gpu-2") and loaded(fleet, "gpu-2") == NEW
        told = wait_until(
            "the job to be told", lambda: fleet.ssh("gpu-1", "cat /run/muster/leave.json").out, timeout_s=60
        )
        assert f"driver upgrade to {NEW}" in str(told)
        seen = len(watched.out)
        wait_until("some looks at a job that is left alone", lambda: len(watched.out) > seen + 5, timeout_s=60)
        assert phase(fleet) == "Running" and loaded(fleet, "gpu-1") == OLD
        assert fleet.must("gpu-1", "systemctl is-active kubelet") == "active\n"
        # It has saved its checkpoint.
        assert fleet.kubectl("annotate", "pod", "train", f"{HOLD}-").rc == 0
        result = playbook.result(timeout=600)
    assert result.rc == 0, result.failures
    for node in WORKERS:
        assert lines(result, f"{node}  done  driver {OLD} -> {NEW}") and loaded(fleet, node) == NEW
        assert works(fleet, node)
        assert plugin(fleet, node) > started[node], "the device plugin has the driver of before"
        report = json.loads(fleet.must(node, "cat /var/lib/gpu-burnin/latest/report.json"))
        assert (report["verdict"], report["software"]["driver"]) == ("PASS", NEW)
    assert {"gpu-1"} in watched.out and {"gpu-2"} in watched.out
    assert max(map(len, watched.out)) == 1, "two nodes were out of work at once"
    assert lines(result, "gpu-3  left as it is: it is ")


def test_a_second_run_touches_nobody(fleet: Fleet) -> None:
    evidence = {node: status(fleet, node)["highestSequence"] for node in WORKERS}
    result = upgrade(fleet, NEW, "-l gpu_nodes", log="driver-again")
    assert result.rc == 0 and not set(WORKERS) & set(result.changed), result.failures
    for node in WORKERS:
        assert lines(result, f"{node}  left as it is: driver {NEW} is loaded")
    assert {node: status(fleet, node)["highestSequence"] for node in WORKERS} == evidence
    assert all(works(fleet, node) for node in WORKERS)


@pytest.fixture
def raised(fleet: Fleet) -> None:
    """Both nodes have the newer driver; the tests above leave them so, a run of this one alone does not."""
    if any(loaded(fleet, node) != NEW for node in WORKERS):
        result = upgrade(fleet, NEW, f"-l {','.join(WORKERS)}", log="driver-raised")
        assert result.rc == 0, result.failures


@pytest.mark.soak
@pytest.mark.usefixtures("raised")
def test_killed_when_the_node_is_at_rest_the_next_run_goes_on_and_down_it_goes(fleet: Fleet) -> None:
    """Both are brought back to the inventory's driver; a person's hold on one of them stays theirs.

    test_driver_upgrade_asks.py has what a killed run leaves, on a real API server; test_upgrade_course.py, the hold.
    """
    killed_at(fleet, "Install the driver that was asked for", OLD, "gpu-1")
    assert fleet.ssh("gpu-1", "systemctl is-enabled kubelet").out == "disabled\n"
    refused = upgrade(fleet, OLD, "-l gpu-2", log="driver-refused")
    assert refused.rc == 2 and "gpu-1: a run that was lost" in " ".join(refused.failures)
    held = fleet.kubectl("patch", "nodeadmission", "gpu-2", "--type=merge", "-p", hold(fleet, "gpu-1"))
    assert held.rc == 0, held.err
    try:
        result = upgrade(fleet, OLD, "-l gpu-1,gpu-2", log="driver-down")
        assert result.rc == 0, result.failures
        assert lines(result, f"gpu-1  done  driver {NEW} -> {OLD}") and loaded(fleet, "gpu-1") == OLD
        assert works(fleet, "gpu-1")
        kept = lines(result, f"gpu-2  done  driver {NEW} -> {OLD}: it stays out of work: hold by ")
        assert kept and loaded(fleet, "gpu-2") == OLD
        assert set(fleet.get("nodeadmission", "gpu-2")["spec"]) & {"repair", "quarantine", "hold"} == {"hold"}
    finally:
        fleet.kubectl(
            "patch", "nodeadmission", "gpu-2", "--type=json", "-p", '[{"op": "remove", "path": "/spec/hold"}]'
        )
    wait_until("gpu-2 to take work", lambda: works(fleet, "gpu-2"), timeout_s=120)


def status(fleet: Fleet, node: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.get("nodeadmission", node)["status"]
    return found


def hold(fleet: Fleet, asked: str) -> str:
    """A hold of the user who has asked for another node."""
    who = fleet.get("nodeadmission", asked)["spec"]["repair"]["who"]
    return f'{{"spec": {{"hold": {{"who": "{who}", "why": "loud fan", "since": "2026-11-22T16:00:00Z"}}}}}}'


def killed_at(fleet: Fleet, task: str, version: str, node: str) -> None:
    """Run the playbook for a node, and kill Ansible, all of it, when the node is at rest and this task begins."""
    words = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(LAB_INVENTORY),
        str(REPOSITORY / PLAYBOOK),
    ]
    words += ["-l", node, "-e", f"fleet_nvidia_driver_version={version}"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")}
    log = fleet.lab.state / "logs/driver-killed.log"
    at_rest = False
    with (
        log.open("w") as kept,
        subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process,
    ):
        for line in process.stdout or ():
            kept.write(line)
            at_rest = at_rest or "Quiesce the host" in line
            if at_rest and task in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert at_rest, f"the run ended before it could be killed: see {log}"
