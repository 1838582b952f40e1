"""The agents of an attached cluster at work, as the pods of its DaemonSet would be (attach_pod.py)."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.api.attached import PROBE_ACCOUNT, Mode
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.api.record import Ask
from gpu_burnin.fleet.cluster import asks, retests
from gpu_burnin.node.api import NodeApi
from gpu_burnin.node.signing import own_public_key
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config, PublishConfig
from gpu_burnin.system.clock import rfc3339
from tests.integration.attach_cluster import (
    ADMISSIONS,
    LABELS,
    NAMES,
    SETTINGS,
    TAINT,
    Cluster,
    Machine,
    annotations_of,
    denied,
    rss_mib,
)
from tests.integration.attach_pod import AgentPod, alive, descendants
from tests.integration.gate import NODES
from tests.integration.kube import MERGE_PATCH, until
from tests.support.admission_helpers import new_host_key

FIRST, SICK, BY_SSH = "gpu-first", "gpu-sick", "gpu-ssh"
# A burn-in of so much lasts longer than it takes to end it, also on a machine without other work; one of so little is
# over in seconds.
_LONG_BYTES, _SHORT_BYTES = 512 << 20, 1 << 20
_APPLICATION = "NVRM: Xid (PCI:0000:43:00): 31, pid=7, name=python, MMU Fault"
_FATAL = "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@contextmanager
def agents() -> Iterator[dict[str, AgentPod]]:
    """Pods by the names of their nodes; all that run end with the block."""
    pods: dict[str, AgentPod] = {}
    try:
        yield pods
    finally:
        for one in pods.values():
            one.kill()


def first_of_all(cluster: Cluster, pods: dict[str, AgentPod], since_s: float) -> None:
    """The first node of an attached cluster, from its enrolment to its verdict: `since_s` is when attach began."""
    machine = cluster.machine(FIRST)
    machine.register()
    pod = pods[FIRST] = AgentPod(cluster, machine)
    pod.start()
    until("the agent says who it is", lambda: "says who it is" in pod.words())
    approve = ["attach", "approve", "--level", "quick", "--allow-simulated"]
    refused = cluster.muster(*approve, f"{FIRST}=SHA256:other")
    assert refused.returncode == 1 and pod.fingerprint() in refused.stderr
    done = cluster.muster(*approve, f"{FIRST}={pod.fingerprint()}")
    assert done.returncode == 0, done.stderr
    until("the first verdict", lambda: machine.state() == ("ready", "PASS"))
    # The driver's library was found by the first process of the pod.
    assert "NVML" not in pod.words()
    print(f"from muster attach to the first verdict: {time.monotonic() - since_s:.1f} s")
    identity = cluster.api().get(f"{ADMISSIONS}/{FIRST}")["spec"]["identity"]
    assert (identity["trust"], identity["machineID"]) == ("compared", machine.machine_id)
    assert identity["nodeUID"] == machine.node()["metadata"]["uid"]
    # The key is the agent's, on its host, and what signed the evidence.
    assert own_public_key(pod.state / "identity/ed25519") == identity["hostKey"]
    assert "its fingerprint was compared" in cluster.muster("attach", "nodes").stdout


def at_work(cluster: Cluster, pods: dict[str, AgentPod]) -> None:
    """What a fleet's agents do, in pods; the cluster enforces, and its admitter runs."""
    sick_one(cluster, pods)
    stolen_token(cluster, pods[SICK], pods[FIRST])
    hidden(pods[SICK].machine)
    at_random(cluster, pods[FIRST])
    ended_in_a_burn_in(cluster, pods[FIRST])
    without_an_api_server(cluster, pods[FIRST])
    drained(cluster, pods[FIRST])
    by_ssh_host_key(cluster, pods)
    lost_its_key(cluster, pods[SICK])
    rebooted(pods[FIRST])
    fatal(pods[FIRST])
    running = pods[FIRST].running
    assert running is not None
    print("agent MiB", rss_mib(running))


def sick_one(cluster: Cluster, pods: dict[str, AgentPod]) -> None:
    """One of its GPUs has uncorrectable errors; its machine id is all that is known of it beforehand."""
    machine = cluster.machine(SICK)
    assert machine.try_to_register(spec={"taints": [TAINT]}).status == 201
    pod = pods[SICK] = AgentPod(cluster, machine, "sick-ecc-xid79")
    pod.start()
    until("the sick node's agent says who it is", lambda: "says who it is" in pod.words())
    expected = cluster.directory / "expected"
    approve = ["attach", "approve", "--level", "quick", "--allow-simulated", "--expect", str(expected)]
    expected.write_text(f"{SICK} machine-id {'0' * 32}\n")
    refused = cluster.muster(*approve)
    assert refused.returncode == 1 and f"its machine id is {machine.machine_id}" in refused.stderr
    expected.write_text(f"{SICK} machine-id {machine.machine_id}\n")
    done = cluster.muster(*approve, SICK)
    assert done.returncode == 0, done.stderr
    assert cluster.api().get(f"{ADMISSIONS}/{SICK}")["spec"]["identity"]["trust"] == "first-use"
    until("the sick node is named", lambda: machine.state()[1] == "ECC_UNCORRECTED")
    assert TAINT in machine.taints()
    assert "GPU 1" in cluster.muster("why", SICK).stdout


def stolen_token(cluster: Cluster, thief: AgentPod, other: AgentPod) -> None:
    """The token of one node's pod, from its volume, in the agent's own client with another node's name."""
    tokens = thief.volume("token")
    publish = PublishConfig(f"https://127.0.0.1:{cluster.server.port}", tokens / "ca.crt", token=tokens / "token")
    own, name = Config(node_name=thief.machine.name, publish=publish), other.machine.name
    api = NodeApi(replace(own, node_name=name))
    assert denied(lambda: api.annotate({NAMES.agent: "{}"}))
    assert denied(lambda: api.annotate({NAMES.evidence: None}))
    assert denied(lambda: api.renew(Heartbeat("b", "2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z")))
    assert denied(lambda: api.enrol({"spec": {"claim": "x"}}, again=True))
    # Of its own it can, so that it is the name that was refused.
    NodeApi(own).get()
    assert other.machine.state() == ("ready", "PASS")


def hidden(machine: Machine) -> None:
    """Its kubelet takes away the label by which it is a GPU Node: the taint that is there stays all the same."""
    path, admin = f"{NODES}/{machine.name}", machine.cluster.server.client("their-admin", ["system:masters"])
    label: dict[str, Any] = {"metadata": {"labels": {"example.com/gpu": None}}}
    lifted: dict[str, Any] = {"spec": {"taints": None}}
    assert machine.kubelet().request("PATCH", path, label, MERGE_PATCH).status == 200
    for who in (machine.kubelet(), admin):
        assert who.request("PATCH", path, lifted, MERGE_PATCH).status == 403
    label["metadata"] = {"labels": LABELS}
    assert machine.kubelet().request("PATCH", path, label, MERGE_PATCH).status == 200


def at_random(cluster: Cluster, pod: AgentPod) -> None:
    name, before = pod.machine.name, Store(pod.state).counter()
    admissions, _ = retests.read(cluster.api(), NAMES)
    now = datetime.now(UTC)
    seed = next(
        seed
        for seed in range(10_000)
        if [one.name for one in retests.draw(admissions, 0.01, random.Random(seed), now)] == [name]
    )
    done = cluster.muster("retest", "--random", "1%", "--reason", "by chance", "--seed", str(seed), "--json")
    assert json.loads(done.stdout)["asked"] == [name], done.stderr
    until("it is tested", lambda: Store(pod.state).counter() > before and tested(cluster, name))
    until("it is let in", lambda: pod.machine.state() == ("ready", "PASS") and pod.machine.taints() == [])


def ended_in_a_burn_in(cluster: Cluster, pod: AgentPod) -> None:
    """By SIGTERM, as when the DaemonSet is changed, and by SIGKILL, as when memory runs out: it is served once more."""
    name = pod.machine.name
    for end in (pod.terminate, pod.kill):
        pod.configure(hbm_bytes=_LONG_BYTES)
        after = Store(pod.state).counter()
        ask = Ask(asks.user(cluster.api()), end.__name__, rfc3339(datetime.now(UTC)))
        [asked] = asks.ask_all(cluster.api(), NAMES, [name], asks.Verb.RETEST, ask)
        assert not asked.failed
        until("its burn-in is at work", lambda: started(pod, after))  # noqa: B023
        assert pod.running is not None
        running = descendants(pod.running.pid)
        assert running
        end()
        if end == pod.terminate:
            told = pod.words()[-1500:]
            assert pod.running.returncode == 0, told
            last = Store(pod.state).runs()[-1]
            left = sorted(one.name for one in last.path.iterdir())
            assert pod.report()["interrupted"], (left, last.journal.read_text()[-1500:], told)
        pod.configure(hbm_bytes=_SHORT_BYTES)
        until("nothing of it runs on", lambda: not any(alive(one) for one in running))  # noqa: B023
        pod.start()
        until("it is tested after all", lambda: tested(cluster, name))
        until("it is let in", lambda: pod.machine.state() == ("ready", "PASS") and pod.machine.taints() == [])
    assert pod.words().count("is started once more") == 2
    codes = {one["code"] for one in cluster.api().get(f"{ADMISSIONS}/{name}")["status"]["transitions"]}
    assert "INTERRUPTED" not in codes, codes


def without_an_api_server(cluster: Cluster, pod: AgentPod) -> None:
    """It goes on watching, and says what it saw when there is one again."""
    server, before = cluster.server.apiserver, Store(pod.state).counter()
    server.kill()
    pod.kernel(f"3,1,{time.monotonic_ns() // 1000},-;{_APPLICATION}")
    until("it sees the XID", lambda: "XID 31" in pod.words())
    server.start()
    cluster.server.wait_ready()
    until("the node is suspect", lambda: Store(pod.state).counter() > before)
    assert "the cluster cannot be asked" in pod.words()
    until("it is let in", lambda: pod.machine.state() == ("ready", "PASS") and pod.machine.taints() == [])


def drained(cluster: Cluster, pod: AgentPod) -> None:
    """A person takes the node out: work is asked to leave, and what holds is left until it does not."""
    name, leave = pod.machine.name, pod.host / "run/muster/leave.json"
    pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    for work, notes in (("holds", {NAMES.hold_until: "checkpoint"}), ("goes", {})):
        spec = {"nodeName": name, "serviceAccountName": PROBE_ACCOUNT, "containers": [{"name": "a", "image": "x"}]}
        metadata = {"name": work, "annotations": notes}
        cluster.api().create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def leaves(work: str) -> bool:
        found = cluster.api().find(f"{pods}/{work}")
        return found is None or "deletionTimestamp" in found["metadata"]

    done = cluster.muster("node", "quarantine", name, "--reason", "a new fan", "--wait", "0s")
    assert done.returncode == 0, done.stderr
    until("its work is told", leave.exists)
    assert "a new fan" in leave.read_text()
    until("who does not hold is evicted", lambda: leaves("goes"))
    assert not leaves("holds")
    cluster.api().merge(f"{pods}/holds", {"metadata": {"annotations": {NAMES.hold_until: None}}})
    until("who held is evicted", lambda: leaves("holds"))
    assert cluster.muster("node", "release", name, "--reason", "done", "--wait", "0s").returncode == 0
    until("nobody is told to leave", lambda: not leave.exists())
    until("it is let in", lambda: pod.machine.state() == ("ready", "PASS") and pod.machine.taints() == [])


def by_ssh_host_key(cluster: Cluster, pods: dict[str, AgentPod]) -> None:
    """Its host's SSH key signs, which a person has in known_hosts."""
    nodes = ["--gpu-nodes", "example.com/gpu=yes", "--gpu-nodes", "gpu-by-name", "--level", "quick"]
    words = ["attach", "--image", SETTINGS.image, *nodes, "--cluster", "test", "--enforce", "--taint-by", "webhook"]
    done = cluster.muster(*words, "--ssh-host-keys")
    assert done.returncode == 0, done.stderr
    machine = cluster.machine(BY_SSH)
    assert machine.try_to_register(spec={"taints": [TAINT]}).status == 201
    pod = pods[BY_SSH] = AgentPod(cluster, machine)
    key = pod.host / "etc/ssh/ssh_host_ed25519_key"
    key.parent.mkdir()
    new_host_key(key)
    pod.start()
    until("the agent says who it is", lambda: "says who it is" in pod.words())
    known, other = cluster.directory / "known_hosts", cluster.directory / "other-key"
    new_host_key(other)
    approve = ["attach", "approve", "--level", "quick", "--allow-simulated", "--expect", str(known)]
    known.write_text(f"{BY_SSH} {own_public_key(other)}\n")
    refused = cluster.muster(*approve)
    assert refused.returncode == 1 and f"{BY_SSH}: its key is {pod.fingerprint()}" in refused.stderr
    known.write_text(f"{BY_SSH} {own_public_key(key)}\n")
    done = cluster.muster(*approve)
    assert done.returncode == 0, done.stderr
    identity = cluster.api().get(f"{ADMISSIONS}/{BY_SSH}")["spec"]["identity"]
    assert (identity["trust"], identity["hostKey"]) == ("compared", own_public_key(key))
    until("it is let in", lambda: machine.state() == ("ready", "PASS") and machine.taints() == [])
    assert not (pod.state / "identity").exists()
    cluster.attach(Mode.ENFORCING)


def lost_its_key(cluster: Cluster, pod: AgentPod) -> None:
    """A host whose state directory was lost has another key: nothing believes it until a person does."""
    name = pod.machine.name
    pod.terminate()
    (pod.state / "identity/ed25519").unlink()
    pod.start()
    until("its key is another", lambda: "another key was decided on" in pod.words())
    pod.terminate()
    assert cluster.muster("attach", "forget", name).returncode == 0
    pod.start()
    until("it says again who it is", lambda: pod.words().count("says who it is") == 2)
    refused = cluster.muster("attach", "approve", name, "--level", "quick", "--allow-simulated")
    assert refused.returncode == 1 and "approved with another key" in refused.stderr
    again = cluster.muster("attach", "approve", name, "--again", "--level", "quick", "--allow-simulated")
    assert again.returncode == 0, again.stderr
    assert TAINT in pod.machine.taints()


def rebooted(pod: AgentPod) -> None:
    """A new boot is closed before its kubelet may report it, and tested like the first."""
    machine = pod.machine
    pod.kill()
    machine.boot = str(uuid.uuid4())
    (pod.state / "kmsg").unlink()
    pod.kernel("6,0,0,-;Linux version")
    assert machine.report() == 403
    pod.start()
    until("the new boot is closed", lambda: TAINT in machine.taints())
    assert machine.report() == 200
    until("it is let in", lambda: machine.state() == ("ready", "PASS") and machine.taints() == [])
    assert pod.report()["host"]["boot_id"] == machine.boot


def fatal(pod: AgentPod) -> None:
    """A fatal XID in the kernel log: out at once, by the statement that the agent signs."""
    pod.kernel(f"3,2,{time.monotonic_ns() // 1000},-;{_FATAL}")
    until("the node is out", lambda: pod.machine.state()[1] == "XID_FATAL" and TAINT in pod.machine.taints())
    assert NAMES.evidence in annotations_of(pod.machine)


def tested(cluster: Cluster, name: str) -> bool:
    """Whether what a person asked for was done."""
    found = cluster.api().get(f"{ADMISSIONS}/{name}")
    asked = found["spec"].get("retest") or {}
    return bool(asked) and found["status"].get("retested") == asked["since"]


def started(pod: AgentPod, after: int) -> bool:
    """Whether a burn-in that is under way tests memory."""
    run = Store(pod.state).runs()[-1]
    return run.sequence > after and run.journal.exists() and '"check":"hbm"' in run.journal.read_text()
