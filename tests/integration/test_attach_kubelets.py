"""Muster's pods in a cluster that others built: real kubelets and containerd, the image of `make dist`, three hosts.

Only here: that the image and the pods that attach writes run at all, as what they should be; that a driver's mount
which comes late reaches the agent; what a boot, a webhook without pods and a Node that joins are with a real kubelet.
GPUs are simulated, and a policy of the cluster's own gives the agents what stands in for them.
MUSTER_IMAGE, an image archive of `make dist`, saves the build.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError
from gpu_burnin.api.attached import ADMITTER_ACCOUNT, AGENT_ACCOUNT, PROBE_ACCOUNT, WEBHOOK
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.fleet.cluster import retests
from tests.integration.attach_cluster import ADMISSIONS, NAMES, TAINT
from tests.integration.attach_kubelets import Attached, reference, timed
from tests.integration.gate import NODES
from tests.integration.kube import NO_BINARIES, binaries, until
from tests.lab.foreign import CONTROL_PLANE, HEALTHY, KERNEL_LOG, SICK, ForeignCluster, tool_image
from tools.dist.__main__ import CHECKOUT, build

pytestmark = pytest.mark.soak
APPROVE = ("attach", "approve", "--level", "quick", "--allow-simulated")
# What pods may use (docs/verified-scale.md), and how long they may take to end.
AGENT_MIB, SERVICE_MIB = 60, 100
END_S = 30
_FATAL = "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_LISTENS = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{WEBHOOK}"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image without CUDA's libraries."""
    if given := os.environ.get("MUSTER_IMAGE"):
        return Path(given)
    folder = tmp_path_factory.mktemp("release") / "dist"
    source = build(CHECKOUT, "HEAD", folder, ["none"], None)
    return folder / f"muster-{source.version}-image.tar"


@pytest.fixture
def cluster(archive: Path, tmp_path: Path) -> Iterator[Attached]:
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("podman", "mmdebstrap")):
        pytest.skip("hosts with systemd need root, podman and mmdebstrap")
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    hosts = ForeignCluster()
    hosts.down()
    try:
        hosts.up([tool_image(), archive])
        made = Attached(hosts, reference(archive))
        until("three nodes", lambda: made.settled(), 120)
        made.stand_in_for_gpus(tmp_path / "manifests")
        yield made
    finally:
        hosts.down()


def test_all_of_it(cluster: Attached) -> None:
    """The way of a cluster: observed, enforced, at work, left."""
    before = cluster.objects()
    observe(cluster)
    as_written(cluster)
    enforce(cluster)
    webhook_without_pods(cluster)
    reboot(cluster)
    at_random(cluster)
    drain(cluster)
    memory(cluster)
    fatal(cluster)
    leave(cluster, before)


def observe(cluster: Attached) -> None:
    """The sick node is named by its first test; the healthy one has no driver yet when its agent comes."""
    cluster.hosts.load_driver(SICK)
    began_s = time.monotonic()
    cluster.muster(*cluster.words)
    for app, count in ((AGENT_ACCOUNT, 2), (ADMITTER_ACCOUNT, 2), (PROBE_ACCOUNT, 1)):
        timed(f"from attach to {count} pods of {app} that are ready", lambda: cluster.ready(app, count), 240, began_s)  # noqa: B023
    until("both say who they are", lambda: len(cluster.claims()) == 2, 120)
    for name, mark in cluster.claims().items():
        assert mark in cluster.agent_log(name)
        cluster.muster(*APPROVE, f"{name}={mark}")
    timed("from attach to the first verdict", lambda: cluster.state(SICK)[1] == "XID_FATAL", 240, began_s)
    # By the kernel log of its boot.
    assert "XID 79 on 0000:43:00.0" in cluster.muster("why", SICK)
    assert cluster.taints(SICK) == []
    # A driver's container mounts its root on the host after the agent's pod has started.
    assert f"{HEALTHY}: no library of the driver is yet below /driver" in cluster.agent_log(HEALTHY)
    assert cluster.state(HEALTHY)[0] != "ready"
    cluster.hosts.load_driver(HEALTHY)
    timed("from a late driver's mount to PASS", lambda: cluster.admitted(HEALTHY), 180)
    assert cluster.node(HEALTHY)["metadata"]["labels"]["muster.node-restriction.kubernetes.io/ready"] == "true"  # type: ignore[index]


def as_written(cluster: Attached) -> None:
    """Containers are what their manifests ask for: users, root file systems, the host's processes and devices."""
    processes = {
        name: cluster.hosts.on(name, "ps -eo uid=,args= | grep -v grep | grep -E 'muster (admitter|gate-probe)' || :")
        for name in (CONTROL_PLANE, HEALTHY, SICK)
    }
    users = [line.split()[0] for text in processes.values() for line in text.splitlines()]
    assert users == ["65532"] * 3, processes
    look = (
        "import os; print(os.getuid(), os.path.basename(os.readlink('/proc/1/exe')), os.path.exists('/dev/nvidia0')); "
        "open('/etc/x', 'w')"
    )
    python = ("/usr/lib/gpu-burnin/bin/python", "-c", look)
    words = ("exec", "--namespace", SYSTEM_NAMESPACE, cluster.agent(HEALTHY), "--")
    done = cluster.hosts.try_kubectl(*words, *python)
    # Its first process is the host's.
    assert done.stdout == "0 systemd True\n" and "Read-only file system" in done.stderr, done
    # The report of the page, from the pod.
    report = cluster.hosts.kubectl(*words, "gpu-burnin", "report")
    assert "PASS" in report, report


def enforce(cluster: Attached) -> None:
    """What is in doubt is kept from work, and the webhook comes."""
    began_s = time.monotonic()
    cluster.muster(*cluster.words, "--enforce")
    timed("from --enforce to two webhooks that are ready", lambda: cluster.ready(WEBHOOK, 2), 240, began_s)
    timed("from --enforce to the sick node's taint", lambda: TAINT in cluster.taints(SICK), 240, began_s)
    until("the new agents", lambda: cluster.ready(AGENT_ACCOUNT, 2), 240)
    until("the healthy node stays", lambda: cluster.admitted(HEALTHY), 240)


def webhook_without_pods(cluster: Attached) -> None:
    """While none of the webhook's pods is there, kubelet cannot register a GPU Node; the first one lets it, tainted."""
    cluster.api.merge(_LISTENS, {"spec": {"replicas": 0}})
    until("the webhook's end", lambda: cluster.pods(WEBHOOK, ending=True) == [], 120)
    cluster.api.delete(f"{NODES}/{HEALTHY}")
    cluster.hosts.on(HEALTHY, "systemctl restart kubelet")
    # It does not say whose refusal that was.
    refused = "journalctl -u kubelet --since=-20s -o cat | grep -q 'Unable to register node with API server'"
    timed("from its kubelet's start to the gate's refusal", lambda: cluster.hosts.succeeds(HEALTHY, refused), 120)
    assert cluster.node(HEALTHY) is None
    began_s = time.monotonic()
    cluster.api.merge(_LISTENS, {"spec": {"replicas": 2}})
    timed("from the webhook's return to the Node", lambda: cluster.node(HEALTHY) is not None, 240, began_s)
    assert TAINT in cluster.taints(HEALTHY)
    # It is another Node than the one that was approved.
    until("a Node made anew is named", lambda: cluster.state(HEALTHY)[1] == "EVIDENCE_NODE", 240)
    cluster.muster(*APPROVE, HEALTHY, code=1)
    cluster.muster(*APPROVE, HEALTHY, "--again")
    timed("from approval to PASS", lambda: cluster.admitted(HEALTHY), 240)


def reboot(cluster: Attached) -> None:
    """A boot is closed before kubelet reports it, and tested; its driver comes late once more."""
    before = cluster.boot(HEALTHY)
    began_s = time.monotonic()
    cluster.hosts.reboot(HEALTHY)
    timed("from a boot to its taint", lambda: TAINT in cluster.taints(HEALTHY), 240, began_s)
    timed("from a boot to kubelet's report of it", lambda: cluster.boot(HEALTHY) != before, 240, began_s)
    assert TAINT in cluster.taints(HEALTHY)
    cluster.hosts.load_driver(HEALTHY)
    timed("from a boot to PASS", lambda: cluster.admitted(HEALTHY), 180, began_s)


def at_random(cluster: Attached) -> None:
    """Chance asks for a test of the healthy node."""
    admissions, _ = retests.read(cluster.api, NAMES)
    now = datetime.now(UTC)

    def draws(seed: int) -> bool:
        return [one.name for one in retests.draw(admissions, 0.01, random.Random(seed), now)] == [HEALTHY]

    seed = str(next(filter(draws, range(10_000))))
    asked = cluster.muster("retest", "--random", "1%", "--reason", "by chance", "--seed", seed, "--json")
    assert json.loads(asked)["asked"] == [HEALTHY]
    timed("from the question to the test's end", lambda: _tested(cluster) and cluster.admitted(HEALTHY), 240)


def drain(cluster: Attached) -> None:
    """A person takes the node out: work is asked to leave, and what holds is left until it does not."""
    leave_file = "test -f /run/muster/leave.json"
    cluster.have_gpus(HEALTHY)
    cluster.work("holds", HEALTHY, **{NAMES.hold_until: "checkpoint"})
    cluster.work("goes", HEALTHY)
    for work in ("holds", "goes"):
        until(f"{work} runs", lambda: cluster.phase(work) == "Running", 60)  # noqa: B023
    cluster.muster("node", "quarantine", HEALTHY, "--reason", "a new fan", "--wait", "0s")
    timed("from quarantine to the leave file", lambda: cluster.hosts.succeeds(HEALTHY, leave_file), 120)
    until("who does not hold is evicted", lambda: cluster.phase("goes") == "", 120)
    assert cluster.phase("holds") == "Running"
    cluster.api.merge("/api/v1/namespaces/default/pods/holds", {"metadata": {"annotations": {NAMES.hold_until: None}}})
    until("who held is evicted", lambda: cluster.phase("holds") == "", 120)
    # Nobody is let onto it meanwhile.
    cluster.work("late", HEALTHY)
    until("the scheduler has no place for it", lambda: cluster.unschedulable("late"), 60)
    assert cluster.phase("late") == "Pending"
    cluster.muster("node", "release", HEALTHY, "--reason", "done", "--wait", "0s")
    until("it is let in", lambda: cluster.admitted(HEALTHY), 240)
    until("work runs again", lambda: cluster.phase("late") == "Running", 120)
    cluster.api.delete("/api/v1/namespaces/default/pods/late?gracePeriodSeconds=0")


def memory(cluster: Attached) -> None:
    """Working sets, after all that."""
    used = cluster.memory_mib()
    print("MiB of the working set, the most of each kind:", used)
    for app, most in used.items():
        assert most <= (AGENT_MIB if app == AGENT_ACCOUNT else SERVICE_MIB), used


def fatal(cluster: Attached) -> None:
    """A fatal XID in the host's kernel log: out at once."""
    cluster.hosts.on(HEALTHY, f'echo "3,2,{time.monotonic_ns() // 1000},-;{_FATAL}" >> {KERNEL_LOG}')
    timed(
        "from a fatal XID to the taint",
        lambda: cluster.state(HEALTHY)[1] == "XID_FATAL" and TAINT in cluster.taints(HEALTHY),
        60,
    )


def leave(cluster: Attached, before: dict[str, Any]) -> None:
    """Nothing of Muster is left in the cluster, nor runs on a host."""
    began_s = time.monotonic()
    cluster.muster("detach", "--cluster", "test")
    namespace = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
    timed("from detach to its namespace's end", lambda: cluster.api.find(namespace) is None, 240, began_s)
    # No pod of Muster's waits to be killed, which is 30 s later.
    assert time.monotonic() - began_s < END_S
    for host in (CONTROL_PLANE, HEALTHY, SICK):
        running = "ps -eo args= | grep -v grep | grep -E '(gpu-burnin|muster) (watch|admitter|gate-probe|webhook)'"
        until("the end of processes", lambda: not cluster.hosts.succeeds(host, running), 60)  # noqa: B023
        mounts = "grep -E ' /(run/muster|var/lib/gpu-burnin)' /proc/self/mounts"
        assert not cluster.hosts.succeeds(host, mounts)
    until("the end of its kinds", lambda: NAMES.domain not in str(_groups(cluster)), 30)
    after = cluster.objects()
    assert {
        name: (before.get(name), after.get(name)) for name in before | after if before.get(name) != after.get(name)
    } == {}


def _groups(cluster: Attached) -> list[str]:
    return [str(one["name"]) for one in cluster.api.get("/apis")["groups"]]


def _tested(cluster: Attached) -> bool:
    """Whether what was asked for last was done."""
    try:
        found = cluster.api.get(f"{ADMISSIONS}/{HEALTHY}")
    except ApiError:
        return False
    asked = found["spec"].get("retest") or {}
    return bool(asked) and found["status"].get("retested") == asked["since"]
