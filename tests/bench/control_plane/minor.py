"""The slow scenario of an upgrade over a minor: from the Kubernetes before 1.36, which has no gate on its disk.

No playbook brings a fleet to such a release, so its hosts are brought there by hand, as it would have been built then:
the older programs, and API servers without the two flags of the gate.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial

from gpu_burnin.fleet.mirror.golang import sha256
from gpu_burnin.fleet.mirror.programs import ETCD_VERSION, KUBERNETES_VERSION
from tests.integration.fleet import API_SERVERS, Fleet
from tests.lab.older import OLDER_VERSION, ensure_older

from .clients import Clients, under_clients
from .health import NODES, wait_for_health
from .kills import kill_when
from .operations import play
from .table import Cost
from .upgrades import CONTROL_PLANE, NODE_PROGRAMS, expect

UPGRADE = ["playbooks/upgrade.yml", "-e", "snapshot=mine", "-e"]
UNIT = "/etc/systemd/system/kube-apiserver.service"
GATE_FLAGS = ("--admission-control-config-file=", "--feature-gates=")
UNTAINTED = "{apiVersion: v1, kind: Node, metadata: {name: untainted}}"
BUSY = "gpu-1"
JOB = f"""
apiVersion: v1
kind: Pod
metadata: {{name: job, namespace: default}}
spec:
  nodeName: {BUSY}
  terminationGracePeriodSeconds: 0
  containers: [{{name: tool, image: "lab.muster.dev/tool:1", imagePullPolicy: Never, args: [pause]}}]
"""


def over_a_minor(fleet: Fleet) -> tuple[Cost, str]:
    """The playbook is killed while one server has the gate and one has not, run again, and once more for the node whose
    job was left alone."""
    bring_back(fleet)
    made = fleet.kubectl("create", "-f", "-", stdin=JOB)
    assert made.rc == 0, made.err
    waited = fleet.kubectl("wait", "pod", "job", "--for=condition=Ready", "--timeout=120s")
    assert waited.rc == 0, waited.err
    try:
        return under_clients(fleet, _upgraded)
    finally:
        fleet.kubectl("delete", "pod", "job", "--now", "--ignore-not-found")


def bring_back(fleet: Fleet) -> None:
    """All hosts run the older release. Servers of both must not serve beside each other on this way, so all stop."""
    everywhere = partial(_on, fleet, API_SERVERS)
    everywhere(f"systemctl stop {' '.join(CONTROL_PLANE)}")
    delete = " ".join(f"-e '/{flag}/d'" for flag in GATE_FLAGS)
    everywhere(f"sed -i {delete} {UNIT} && systemctl daemon-reload")
    _install(fleet, dict.fromkeys(API_SERVERS, CONTROL_PLANE) | dict.fromkeys(NODES, NODE_PROGRAMS))
    everywhere(f"systemctl start {' '.join(CONTROL_PLANE)}")
    _on(fleet, NODES, f"systemctl restart {' '.join(NODE_PROGRAMS)}")
    wait_for_health(fleet)
    expect(fleet, OLDER_VERSION, ETCD_VERSION)
    assert _refusing(fleet) == set(), "a server of before 1.36 has a gate"


def _upgraded(clients: Clients) -> str:
    fleet = clients.fleet
    job = fleet.get("pod", "job")["metadata"]["uid"]
    batches = 0

    def second_server(line: str) -> bool:
        nonlocal batches
        batches += line.startswith("PLAY [Upgrade the hosts of the phase servers")
        return batches == len(API_SERVERS)

    log = fleet.lab.state / "logs/bench-minor-killed.log"
    assert kill_when([*UPGRADE, "part=all"], second_server, 0.0, log), f"it had ended before, see {log}"
    half = {server: _version(fleet, server) for server in API_SERVERS}
    assert sorted(half.values()) == [f"v{OLDER_VERSION}", f"v{KUBERNETES_VERSION}"], half
    assert _refusing(fleet) == {server for server, version in half.items() if version == f"v{KUBERNETES_VERSION}"}
    assert _admitters(fleet) == [["inactive", "disabled"]] * len(API_SERVERS), _admitters(fleet)

    play([*UPGRADE, "part=all"], "minor-again")
    expect(fleet, KUBERNETES_VERSION, ETCD_VERSION, {BUSY: OLDER_VERSION})
    assert _refusing(fleet) == set(API_SERVERS)
    assert _admitters(fleet) == [["active", "enabled"]] * len(API_SERVERS), _admitters(fleet)
    now = fleet.get("pod", "job")
    assert (now["metadata"]["uid"], now["status"]["phase"]) == (job, "Running"), now["status"]
    _site_changes_nothing(fleet, "left")
    expect(fleet, KUBERNETES_VERSION, ETCD_VERSION, {BUSY: OLDER_VERSION})
    fleet.kubectl("delete", "pod", "job", "--now")
    play([*UPGRADE, "part=nodes"], "minor-nodes")
    expect(fleet, KUBERNETES_VERSION, ETCD_VERSION)
    _site_changes_nothing(fleet, "done")
    return (
        f"Kubernetes {OLDER_VERSION} to {KUBERNETES_VERSION}; killed between the servers, admission stayed closed; run "
        "again; a node with a job was left, by `site.yml` too, and upgraded without the job"
    )


def _site_changes_nothing(fleet: Fleet, when: str) -> None:
    done = fleet.playbook("site.yml", log=f"bench-minor-site-{when}")
    assert (done.rc, done.changed) == (0, {}), done.failures or done.changed


def _install(fleet: Fleet, programs: Mapping[str, tuple[str, ...]]) -> None:
    """The older programs, and units that name them, as the older fleet would have them."""
    builds = ensure_older()
    for host, names in programs.items():
        for name in names:
            target = fleet.lab.state / f"hosts/{host}/merged/usr/local/bin" / name
            part = target.with_suffix(".older")
            shutil.copy2(builds / name, part)
            part.replace(target)
            sum_line = f"s/^X-BinarySHA256=.*/X-BinarySHA256={sha256(target)}/"
            fleet.must(host, f"sed -i '{sum_line}' /etc/systemd/system/{name}.service && systemctl daemon-reload")


def _on(fleet: Fleet, hosts: tuple[str, ...], command: str) -> None:
    for host in hosts:
        fleet.must(host, command)


def _version(fleet: Fleet, server: str) -> str:
    done = fleet.kubectl("version", "-o", "json", server=server)
    assert done.rc == 0, done.err
    return str(json.loads(done.out)["serverVersion"]["gitVersion"])


def _refusing(fleet: Fleet) -> set[str]:
    """The servers that refuse a node without the taint, by the gate."""
    refusing = set()
    for server in API_SERVERS:
        words = ("create", "--dry-run=server", "-f", "-")
        done = fleet.kubectl(*words, identity="break-glass", server=server, stdin=UNTAINTED)
        if done.rc != 0:
            assert "muster-node-gate" in done.err, done.err
            refusing.add(server)
    return refusing


def _admitters(fleet: Fleet) -> list[list[str]]:
    """For each server: whether its admitter runs, and whether a reboot would start it."""
    ask = "systemctl is-active muster-admitter; systemctl is-enabled muster-admitter; true"
    return [fleet.must(server, ask).split() for server in API_SERVERS]
