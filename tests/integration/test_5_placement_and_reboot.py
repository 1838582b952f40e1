"""A pod placed past the scheduler on a tainted node; a reboot: no work before a new pass.

Only here: kubelet's own refusal of a pod, and a boot without a pass.
"""

from __future__ import annotations

import pytest

from tests.lab import hosts

from .fleet import Fleet, wait_until

TAINT = "muster.dev/preflight"
READY = "muster.node-restriction.kubernetes.io/ready"
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  containers: [{{name: tool, image: "lab.muster.dev/tool:1", imagePullPolicy: Never}}]
"""


def test_after_a_reboot_the_node_takes_no_work_before_a_new_pass(fleet: Fleet) -> None:
    """And then every unit runs again that ran before: is-enabled alone does not show that a boot starts it."""
    ran = running(fleet, "gpu-1")
    assert {"chrony.service", "containerd.service", "gpu-burnin-watch.service", "kubelet.service"} <= ran
    old_boot = fleet.get("node", "gpu-1")["status"]["nodeInfo"]["bootID"]
    # A boot burn-in that waits for us, so that the moment before the pass can be looked at.
    fleet.must("gpu-1", "systemctl disable gpu-burnin-boot.service")
    hosts.reboot(fleet.lab, "gpu-1")
    new_boot = fleet.must("gpu-1", "cat /proc/sys/kernel/random/boot_id").strip()
    assert new_boot != old_boot

    assert fleet.ssh("gpu-1", "gpu-burnin gate").rc == 1
    assert fleet.ssh("gpu-1", "pgrep -x kubelet").rc == 1

    # The cluster knows before kubelet says a word: the agent tells its boot, and the admitter taints the node.
    wait_until("the node to be tainted", lambda: f"{TAINT}:NoExecute" in fleet.node_taints("gpu-1"), timeout_s=60)
    node = fleet.get("node", "gpu-1")
    assert READY not in node["metadata"]["labels"] and node["status"]["nodeInfo"]["bootID"] == old_boot

    assert fleet.ssh("gpu-1", "gpu-burnin run").rc == 0
    fleet.must("gpu-1", "systemctl enable gpu-burnin-boot.service")
    wait_until("kubelet to start after the pass", lambda: fleet.ssh("gpu-1", "pgrep -x kubelet").rc == 0, timeout_s=60)
    wait_until(
        "the node to take work in its new boot, with nobody's help",
        lambda: (
            fleet.get("node", "gpu-1")["metadata"]["labels"].get(READY) == "true"
            and fleet.node_taints("gpu-1") == set()
        ),
        timeout_s=120,
    )
    assert fleet.get("node", "gpu-1")["status"]["nodeInfo"]["bootID"] == new_boot
    runs_again(fleet, "gpu-1", ran, timeout_s=60)


@pytest.mark.soak
@pytest.mark.parametrize("host", ["api-2", "etcd-3", "etcd-events-1", "lb-1", "mon-1", "system-1"])
def test_after_a_reboot_every_unit_of_a_host_runs_again(fleet: Fleet, host: str) -> None:
    """For make test the GPU node above is enough: the same module starts and enables the units of all."""
    ran = running(fleet, host)
    hosts.reboot(fleet.lab, host)
    runs_again(fleet, host, ran, timeout_s=90)
    wait_until("the API to answer", lambda: fleet.kubectl("get", "--raw=/readyz").rc == 0, timeout_s=60)


def running(fleet: Fleet, host: str) -> set[str]:
    """The host's services that run, and its timers and paths that wait; not those of a person's session."""
    shown = fleet.must(
        host, "systemctl list-units --plain --no-legend --type=service,timer,path --state=running,waiting"
    )
    return {unit for unit in (line.split()[0] for line in shown.splitlines()) if not unit.startswith("user@")}


def runs_again(fleet: Fleet, host: str, ran: set[str], timeout_s: float) -> None:
    """Wait until all of it does; an error that names what does not, and its state."""
    try:
        wait_until("what ran before the reboot to run again", lambda: ran <= running(fleet, host), timeout_s=timeout_s)
    except AssertionError as error:
        missing = sorted(ran - running(fleet, host))
        states = fleet.ssh(host, f"systemctl status --lines=20 {' '.join(missing)}").out
        raise AssertionError(f"{error}: {missing}: {states}") from error


def said_by_kubelet(fleet: Fleet) -> set[str]:
    """The reasons of kubelet's events about the pod that was placed past the scheduler."""
    events = fleet.get("events", "--field-selector=involvedObject.name=past-the-scheduler")["items"]
    return {event["reason"] for event in events if event["source"]["component"] == "kubelet"}


def test_a_pod_placed_by_node_name_on_a_tainted_node_is_refused_by_kubelet(fleet: Fleet) -> None:
    fleet.must("gpu-3", "systemctl stop kubelet kubelet-by-hand || true")
    command = fleet.must(
        "gpu-3", "systemctl show kubelet -p ExecStart --value | sed 's/.*argv\\[\\]=\\([^;]*\\);.*/\\1/'"
    )
    fleet.must("gpu-3", f"systemd-run --unit kubelet-by-hand --collect {command.strip()}")
    wait_until("gpu-3 to register", lambda: fleet.kubectl("get", "node", "gpu-3").rc == 0, timeout_s=60)
    made = fleet.kubectl("create", "-f", "-", stdin=POD.format(name="past-the-scheduler", node="gpu-3"))
    assert made.rc == 0, made.err
    # Its events: the pod itself may be gone by then, since the taint has the API servers delete it in the same second.
    wait_until("kubelet to refuse the pod", lambda: "TaintToleration" in said_by_kubelet(fleet), timeout_s=60)
    assert "Started" not in said_by_kubelet(fleet)
    fleet.kubectl("delete", "pod", "past-the-scheduler", "--now", "--ignore-not-found")
    fleet.must("gpu-3", "systemctl stop kubelet-by-hand")
