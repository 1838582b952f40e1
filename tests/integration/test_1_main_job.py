"""The main job: site.yml to its end, two nodes of three admitted, the third held with its reasons.

Only here: all of site.yml on hosts, from bare to admitted, after two runs that were killed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from gpu_burnin.checks import SELFTESTED, USUAL_CHECKS
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY

from . import first_run
from .fleet import Fleet, run, wait_until

# Of inventory/lab.
DRIVER = "580.65.06"
READY = "muster.node-restriction.kubernetes.io/ready"


def _is_ready(fleet: Fleet, node: str) -> bool:
    return fleet.condition(node, "Ready") == "True"


def test_the_run_after_a_killed_one_reaches_the_end(fleet: Fleet) -> None:
    first = first_run.results["first"]
    assert first.rc == 0, first.failures
    for host in fleet.addresses:
        assert host in first.summary, f"{host} is not in the summary"


def test_the_summary_says_which_nodes_are_ready_and_why_one_is_held(fleet: Fleet) -> None:
    hosts = first_run.results["first"].summary.split("\n\n")[0]
    lines = {line.split()[0]: line for line in hosts.splitlines()}
    assert "ready" in lines["gpu-1"] and "ready" in lines["gpu-2"]
    assert "held" in lines["gpu-3"] and "FAIL" in lines["gpu-3"]
    assert "ECC_UNCORRECTED" in first_run.results["first"].summary
    assert "XID_FATAL" in first_run.results["first"].summary


def test_a_driver_whose_installation_was_cut_is_complete_after_the_next_run(fleet: Fleet) -> None:
    host = first_run.CUT_HOST
    if first_run.left_behind:
        assert first_run.CUT_AT in first_run.left_behind[host], "apt and dpkg were killed in the middle of it"
    assert fleet.must(host, "dpkg --audit") == ""
    assert f"nvidia/{DRIVER}, " in fleet.must(host, "dkms status")


@pytest.mark.parametrize("node", ["gpu-1", "gpu-2", "gpu-3"])
def test_a_gpu_node_has_its_driver_and_dcgm_before_its_burn_in(fleet: Fleet, node: str) -> None:
    """Its burn-in saw the version that was asked for: without that driver it would have seen no GPU at all."""
    report = json.loads(fleet.must(node, "cat /var/lib/gpu-burnin/latest/report.json"))
    assert report["software"]["driver"] == DRIVER
    held = fleet.must(node, "apt-mark showhold").split()
    assert {"nvidia-kernel-open-dkms", "libnvidia-ml1", "datacenter-gpu-manager-4-core"} <= set(held)
    seen = fleet.must(node, "nvidia-smi -L; dcgmi discovery --host unix:///run/nvidia-dcgm/nv-hostengine -l")
    metrics = fleet.must(node, "curl --silent --fail http://127.0.0.1:9400/metrics")
    for gpu in report["gpus"]:
        assert seen.count(gpu["uuid"]) == 2 and f'UUID="{gpu["uuid"]}"' in metrics
    hosts = first_run.results["first"].summary.split("\n\n")[0]
    shown = re.search(rf"^{node} .*(\n .*)*", hosts, re.MULTILINE)
    assert shown and f"driver {DRIVER}" in " ".join(shown[0].split())


def test_a_node_with_nvswitches_has_its_gpus_on_the_fabric_and_one_without_has_no_manager(fleet: Fleet) -> None:
    for node in ("gpu-1", "gpu-3"):
        assert fleet.must(node, "systemctl is-active nvidia-fabricmanager") == "active\n"
        states = fleet.must(node, "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader")
        assert states == 2 * "Completed, Success\n"
    assert fleet.ssh("gpu-2", "dpkg -s nvidia-fabricmanager").rc == 1


def test_admitted_nodes_carry_label_condition_and_no_taint(fleet: Fleet) -> None:
    for name in ("gpu-1", "gpu-2"):
        node = fleet.get("node", name)
        assert node["metadata"]["labels"][READY] == "true"
        assert node["metadata"]["labels"]["muster.node-restriction.kubernetes.io/simulated"] == "true"
        assert fleet.node_taints(name) == set()
        assert fleet.condition(name, "GPUVerified") == "True"
        # Admission looks at evidence; that its network and runtime are up is kubelet's to say, when they are.
        wait_until(f"{name} to be Ready", partial(_is_ready, fleet, name), timeout_s=60)


def test_hosts_fetched_what_is_installed_on_them_from_the_mirror(fleet: Fleet) -> None:
    """One archive for the GPU nodes, another for the hosts of the admitter, each whole."""
    places = {"gpu_nodes": "/opt/gpu-burnin/current", "kube_apiserver": "/opt/muster/current"}
    hosts = [(host, place) for group, place in places.items() for host in fleet.lab.groups[group]]
    builds = [fleet.must(host, f"ls /opt/*.tar >&2 || readlink {place}").strip() for host, place in hosts]
    assert len(builds) == 5 and len(set(builds)) == 2
    log = run(["podman", "logs", f"muster-{fleet.lab.name}-mirror"])
    fetched = re.findall(r'"GET /wheelhouse/gpu-burnin-(\w+)\.tar HTTP/1\.\d" 200', log.out + log.err)
    assert Counter(builds) <= Counter(fetched)


@pytest.mark.parametrize("arguments", [("site.yml", "--tags", "preflight"), ("playbooks/admit.yml",)])
def test_playbooks_run_from_any_folder_without_a_configuration(
    fleet: Fleet, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    playbook, *options = arguments
    tool = Path(sys.executable).parent / "ansible-playbook"
    done = run([str(tool), "-i", str(LAB_INVENTORY), str(REPOSITORY / playbook), *options], cwd=tmp_path)
    assert done.rc == 0, done.out + done.err
    assert "changed=0" in done.out and not re.search(r"changed=[1-9]", done.out)


def test_no_secret_stands_in_a_log(fleet: Fleet) -> None:
    secrets = ["PRIVATE KEY", (fleet.state / "pki/encryption-key").read_text().split()[-1]]
    for log in (fleet.lab.state / "logs").glob("*.log"):
        text = log.read_text(errors="replace")
        for secret in secrets:
            assert secret not in text, f"{log} holds a secret"


def test_private_keys_are_readable_by_their_owner_alone(fleet: Fleet) -> None:
    for key in (fleet.state / "pki").rglob("*.key"):
        assert key.stat().st_mode & 0o077 == 0, key
    for host in ("etcd-1", "api-1", "gpu-1"):
        loose = fleet.must(
            host, r"find /etc/etcd /etc/kubernetes /var/lib/kubelet/pki -name '*.key' -perm /077 2>/dev/null || true"
        )
        assert loose == "", f"{host}: {loose}"


def test_no_ca_key_but_the_kubelets_signer_leaves_the_controller(fleet: Fleet) -> None:
    keys = {p.parent.name: p.read_text() for p in (fleet.state / "pki").glob("*/ca.key")}
    found = set()
    for host in fleet.addresses:
        on_host = fleet.must(host, "find /etc -name '*.key' -type f -exec cat {} +")
        found |= {(name, host) for name, key in keys.items() if key in on_host}
    # That the signer's own are found shows that the search would find the others.
    assert found == {("kubelet", "api-1"), ("kubelet", "api-2")}


ETCDCTL = (
    "etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/pki/ca.crt "
    "--cert=/etc/etcd/pki/health.crt --key=/etc/etcd/pki/health.key "
)


def test_events_live_in_their_own_etcd(fleet: Fleet) -> None:
    keys = ETCDCTL + "get {} --prefix --keys-only --limit=5"
    assert "/registry/events/" in fleet.must("etcd-events-1", keys.format("/registry/events/"))
    assert fleet.must("etcd-1", keys.format("/registry/events/")).strip() == ""
    assert "/registry/minions" in fleet.must("etcd-1", keys.format("/registry/minions"))
    assert fleet.must("etcd-events-1", keys.format("/registry/minions")).strip() == ""


def test_secrets_are_encrypted_at_rest(fleet: Fleet) -> None:
    fleet.kubectl("create", "secret", "generic", "at-rest", "--from-literal=word=muster-plain-text")
    value = fleet.must("etcd-1", ETCDCTL + "get /registry/secrets/default/at-rest | tr -cd '[:print:]'")
    assert "k8s:enc:" in value and "muster-plain-text" not in value


def test_the_report_of_the_held_node_says_why_and_what_to_do(fleet: Fleet) -> None:
    text = fleet.ssh("gpu-3", "gpu-burnin report").out
    assert "FAIL" in text and "ECC_UNCORRECTED" in text and "XID_FATAL" in text
    assert re.search(r"what to do|To do|do:", text, re.IGNORECASE), text
    report = json.loads((fleet.state / "reports/gpu-3/report.json").read_text())
    assert report["verdict"] == "FAIL" and report["simulated"] is True
    page = (fleet.state / "reports/gpu-3/report.html").read_text().replace("<wbr>", "")  # where a code may break
    assert report["run_id"] in page and "XID_FATAL" in page
    assert "STATE/reports/gpu-3/report.html".replace("STATE", str(fleet.state)) in first_run.results["first"].summary


def test_every_detector_of_an_admitted_node_was_proven_and_every_gpu_watched(fleet: Fleet) -> None:
    report = json.loads((fleet.state / "reports/gpu-1/report.json").read_text())
    assert {check["name"] for check in report["checks"]} == set(USUAL_CHECKS)
    assert {test["check"] for test in report["selftest"]} == SELFTESTED | {"kernel_log", "counters"}
    assert all(test["injected"] and test["detected"] for test in report["selftest"])
    sources = report["telemetry"]["sources"]
    assert all(source["alive"] for source in sources), sources
    assert {s["gpu"] for s in sources if s["name"] == "nvml_samples"} == {gpu["uuid"] for gpu in report["gpus"]}


def test_an_injected_wrong_operand_is_seen_and_never_becomes_evidence(fleet: Fleet) -> None:
    run_it = "gpu-burnin run --inject gemm:operand_a:gpu=0 --state-dir /run/look --json"
    done = fleet.ssh("gpu-2", run_it)
    assert done.rc == 1, done.err
    report = json.loads(done.out)
    (index,) = {gpu["index"] for gpu in report["gpus"] if gpu["verdict"] == "FAIL"}
    assert index == 0 and {"GEMM_MISMATCH", "INJECTED"} <= {reason["code"] for reason in report["reasons"]}
    assert fleet.ssh("gpu-2", "ls /run/look/runs/*/evidence.json").rc != 0


def test_the_kubelet_of_the_held_node_is_not_running(fleet: Fleet) -> None:
    assert fleet.ssh("gpu-3", "pgrep -x kubelet").rc == 1
    gate = fleet.ssh("gpu-3", "gpu-burnin gate")
    assert gate.rc == 1 and "gpu-3" in gate.err + gate.out
    assert fleet.kubectl("get", "node", "gpu-3").rc != 0
