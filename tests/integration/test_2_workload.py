"""Pods on admitted nodes: scheduling by label, names, Services, traffic between nodes; survival of lost parts.

Only here: real kubelets, containerd, kube-proxy and CoreDNS of several hosts run pods, and lose parts meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from .fleet import API_SERVERS, Fleet, wait_until

SERVER = """
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: ""
  nodeSelector: {muster.node-restriction.kubernetes.io/ready: "true", kubernetes.io/hostname: gpu-2}
  containers:
    - {name: server, image: "lab.muster.dev/tool:1", imagePullPolicy: Never, args: [serve, ":8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: greeter}
spec:
  selector: {app: server}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  restartPolicy: Never
  nodeSelector: {muster.node-restriction.kubernetes.io/ready: "true"}
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - labelSelector: {matchLabels: {app: server}}
          topologyKey: kubernetes.io/hostname
  containers:
    - name: client
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [get, "http://greeter.default.svc.cluster.local/"]
"""


LOOK = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  nodeSelector: {{muster.node-restriction.kubernetes.io/ready: "true"}}
  containers:
    - name: look
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [files, "/dev/nvidia[0-9]*"]
      resources: {{limits: {limits}}}
"""
JOB = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  nodeSelector: {{muster.node-restriction.kubernetes.io/ready: "true", kubernetes.io/hostname: gpu-1}}
  containers:
    - name: job
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [pause]
      resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}
"""
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
OFFERING = "offering 2 nvidia.com/gpu"


@pytest.fixture(scope="module")
def pods(fleet: Fleet) -> Iterator[None]:
    server, _, client = SERVER.partition("---\napiVersion: v1\nkind: Pod\nmetadata: {name: client}")
    made = fleet.kubectl("apply", "-f", "-", stdin=server)
    assert made.rc == 0, made.err
    wait_until("the server pod to be ready", lambda: _phase(fleet, "server") == "Running", timeout_s=60)
    made = fleet.kubectl("apply", "-f", "-", stdin="apiVersion: v1\nkind: Pod\nmetadata: {name: client}" + client)
    assert made.rc == 0, made.err
    yield
    fleet.kubectl("delete", "--now", "pod/server", "pod/client", "service/greeter")


def _phase(fleet: Fleet, pod: str) -> str:
    return str(fleet.get("pod", pod)["status"].get("phase"))


def _runs(fleet: Fleet, pod: str) -> bool:
    return _phase(fleet, pod) == "Running"


def test_a_pod_finds_a_service_by_name_and_reaches_it_on_another_node(fleet: Fleet, pods: None) -> None:
    phase = wait_until(
        "the client pod to end",
        lambda: _phase(fleet, "client") if _phase(fleet, "client") in ("Succeeded", "Failed") else None,
        timeout_s=60,
    )
    answer = fleet.kubectl("logs", "client")
    assert phase == "Succeeded", answer.out + answer.err
    assert answer.out == "hello from server\n"
    assert fleet.get("pod", "client")["spec"]["nodeName"] == "gpu-1"
    assert fleet.get("pod", "server")["spec"]["nodeName"] == "gpu-2"


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_a_pod_sees_exactly_the_gpus_that_it_asks_for(fleet: Fleet, gpus: int) -> None:
    name, limits = f"look-{gpus}", f'{{nvidia.com/gpu: "{gpus}"}}' if gpus else "{}"
    made = fleet.kubectl("create", "-f", "-", stdin=LOOK.format(name=name, limits=limits))
    assert made.rc == 0, made.err
    try:
        phase = wait_until(
            f"pod {name} to end",
            lambda: _phase(fleet, name) if _phase(fleet, name) in ("Succeeded", "Failed") else None,
            timeout_s=60,
        )
        seen = fleet.kubectl("logs", name)
        assert phase == "Succeeded", seen.out + seen.err
        assert len(seen.out.split()) == gpus, seen.out
    finally:
        fleet.kubectl("delete", "--now", "pod", name)


@pytest.fixture
def job(fleet: Fleet) -> Iterator[Callable[[str, int], None]]:
    """Creates a pod that asks gpu-1 for GPUs and goes on; all are gone at the end."""
    names: list[str] = []

    def create(name: str, gpus: int) -> None:
        made = fleet.kubectl("create", "-f", "-", stdin=JOB.format(name=name, gpus=gpus))
        assert made.rc == 0, made.err
        names.append(name)

    yield create
    fleet.kubectl("delete", "--now", "--ignore-not-found", "pod", *names)


def test_each_pod_gets_the_gpu_that_kubelet_gave_it_and_who_asks_for_more_than_there_is_waits(
    fleet: Fleet, job: Callable[[str, int], None]
) -> None:
    job("job-1", 1)
    job("job-2", 1)
    for name in ("job-1", "job-2"):
        wait_until(f"{name} to run", partial(_runs, fleet, name), timeout_s=60)
    index = fleet.must("gpu-1", "nvidia-smi --query-gpu=uuid,index --format=csv,noheader")
    node_of = {uuid: f"/dev/nvidia{number}" for uuid, number in (line.split(", ") for line in index.splitlines())}
    given = {name: _given(fleet, name) for name in ("job-1", "job-2")}
    assert sorted(uuid for uuids in given.values() for uuid in uuids) == sorted(node_of), (
        "each has one of the two, and no other"
    )
    for name, uuids in given.items():
        seen = fleet.kubectl("exec", name, "--", "/labtool", "files", "/dev/nvidia*")
        assert seen.rc == 0, seen.err
        files = {path for path in seen.out.split() if path != "/dev/nvidia-uvm-tools"}
        assert files == {"/dev/nvidiactl", "/dev/nvidia-uvm", *(node_of[uuid] for uuid in uuids)}

    job("one-more", 1)
    job("too-many", 3)
    for name in ("one-more", "too-many"):
        wait_until(f"the scheduler to find no node for {name}", partial(_unscheduled, fleet, name), timeout_s=30)
    assert fleet.kubectl("delete", "pod", "job-1", "--now").rc == 0
    wait_until("one-more to run on what was given back", lambda: _phase(fleet, "one-more") == "Running", timeout_s=60)
    assert _given(fleet, "one-more") == given["job-1"]
    assert _phase(fleet, "too-many") == "Pending"


def _given(fleet: Fleet, pod: str) -> list[str]:
    """UUIDs of the GPUs that kubelet has given to a pod of gpu-1."""
    uid = fleet.get("pod", pod)["metadata"]["uid"]
    entries = json.loads(fleet.must("gpu-1", f"cat {CHECKPOINT}"))["Data"]["PodDeviceEntries"]
    return [uuid for entry in entries if entry["PodUID"] == uid for ids in entry["DeviceIDs"].values() for uuid in ids]


def _unscheduled(fleet: Fleet, pod: str) -> bool:
    """Whether the scheduler has said that there are not enough GPUs for it."""
    conditions = {c["type"]: c for c in fleet.get("pod", pod)["status"].get("conditions", [])}
    return "Insufficient nvidia.com/gpu" in conditions.get("PodScheduled", {}).get("message", "")


def test_each_admitted_node_offers_as_many_gpus_as_the_inventory_expects(fleet: Fleet) -> None:
    for node in ("gpu-1", "gpu-2"):
        assert fleet.get("node", node)["status"]["allocatable"]["nvidia.com/gpu"] == "2"
        assert fleet.get("nodeadmission", node)["spec"]["hardware"]["offered"] is True
    assert "nvidia.com/gpu" not in fleet.get("node", "system-1")["status"]["allocatable"]


def test_the_device_plugin_notices_a_kubelet_whose_socket_is_the_file_of_before_made_anew(fleet: Fleet) -> None:
    """A new socket may have the number of the one that is gone: its time alone tells. The container does not end."""
    find = ("pods", "--namespace=muster-system", "--field-selector", "spec.nodeName=gpu-2")

    def plugin() -> tuple[str, str]:
        """The container, and what its program has said."""
        (pod,) = [pod for pod in fleet.get(*find)["items"] if "device-plugin" in pod["metadata"]["name"]]
        said = fleet.kubectl("logs", "--namespace=muster-system", pod["metadata"]["name"])
        assert said.rc == 0, said.err
        return str(pod["status"]["containerStatuses"][0]["containerID"]), said.out

    container, before = plugin()
    fleet.must("gpu-2", f"touch {KUBELET_SOCKET}")

    def again() -> bool:
        return OFFERING in plugin()[1].removeprefix(before)

    wait_until("the device plugin to offer its GPUs again", again, timeout_s=30)
    assert plugin()[0] == container

    def offered() -> bool:
        return bool(fleet.get("node", "gpu-2")["status"]["allocatable"]["nvidia.com/gpu"] == "2")

    wait_until("the node to offer them", offered, timeout_s=30)


def test_exec_reaches_the_kubelet_through_its_verified_certificate(fleet: Fleet, pods: None) -> None:
    done = fleet.kubectl("exec", "server", "--", "/labtool", "get", "http://127.0.0.1:8080/")
    assert done.out == "hello from server\n", done.err


def test_the_fleet_answers_without_its_events_etcd(fleet: Fleet) -> None:
    fleet.must("etcd-events-1", "systemctl stop etcd")
    try:
        # Longer than the balancer's checks need to take a server out, if they looked at the wrong thing.
        for _ in range(8):
            assert fleet.kubectl("get", "nodes").rc == 0
            fleet.must("lb-1", "sleep 1")
    finally:
        fleet.must("etcd-events-1", "systemctl start etcd")


@pytest.mark.parametrize("lost", [API_SERVERS[0], pytest.param(API_SERVERS[1], marks=pytest.mark.soak)])
def test_the_fleet_answers_with_one_api_server_less(fleet: Fleet, lost: str) -> None:
    fleet.must(lost, "systemctl stop kube-apiserver")
    try:
        wait_until("the balancer to use the other server", lambda: fleet.kubectl("get", "nodes").rc == 0, timeout_s=30)
    finally:
        fleet.must(lost, "systemctl start kube-apiserver")
    ready = ("get", "--raw", "/readyz")
    wait_until(f"{lost} to be back", lambda: fleet.kubectl(*ready, server=lost).rc == 0, timeout_s=60)


def test_writes_go_on_with_one_etcd_member_less(fleet: Fleet) -> None:
    fleet.must("etcd-2", "systemctl stop etcd")
    try:
        done = fleet.kubectl("create", "configmap", "with-two-members")
        assert done.rc == 0, done.err
    finally:
        fleet.must("etcd-2", "systemctl start etcd")
        fleet.kubectl("delete", "configmap", "with-two-members")
