"""What people do to a node of the fleet: test it again, with Ansible or without, and delete its Node.

Only here: the playbook and the command reach a real host, and an agent brings a deleted Node back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .fleet import Fleet, run, wait_until

READY = "muster.node-restriction.kubernetes.io/ready"


def test_burnin_without_a_limit_does_nothing_and_says_how(fleet: Fleet) -> None:
    result = fleet.playbook("playbooks/burnin.yml", log="burnin-no-limit")
    assert result.rc == 2 and result.changed == {}
    assert any("-l" in failure for failure in result.failures), result.failures


def test_burnin_of_one_host(fleet: Fleet) -> None:
    before = int(fleet.must("gpu-2", "cat /var/lib/gpu-burnin/sequence"))
    result = fleet.playbook("playbooks/burnin.yml", "-l", "gpu-2", log="burnin-gpu-2")
    assert result.rc == 0, result.failures
    assert int(fleet.must("gpu-2", "cat /var/lib/gpu-burnin/sequence")) == before + 1


def test_burnin_of_a_host_from_the_controller_brings_its_report_back(fleet: Fleet, tmp_path: Path) -> None:
    tool = Path(sys.executable).parent / "gpu-burnin"
    login = ["--identity", str(fleet.lab.state / "ssh/id_ed25519"), "--known-hosts", str(fleet.state / "known_hosts")]
    words = [str(tool), "host", *login, "--reports", str(tmp_path), fleet.addresses["gpu-3"]]
    done = run(words)
    assert done.rc == 1, done.err
    assert "XID_FATAL" in done.out and "gemm" in done.err, "the text report, and progress while it ran"
    (path,) = tmp_path.rglob("*.json")
    report = json.loads(path.read_text())
    assert report["verdict"] == "FAIL"
    assert report["run_id"] in path.with_suffix(".html").read_text() and str(path.with_suffix(".html")) in done.err


def test_a_node_that_an_admin_deleted_comes_back_by_itself(fleet: Fleet) -> None:
    """Its agent sees that kubelet runs without a Node and has it register again; the admitter judges it anew."""
    before = fleet.get("node", "gpu-2")["metadata"]["uid"]
    assert fleet.kubectl("delete", "node", "gpu-2", "--wait").rc == 0

    def back() -> bool:
        done = fleet.kubectl("get", "node", "gpu-2", "-o", "json")
        return done.rc == 0 and json.loads(done.out)["metadata"]["labels"].get(READY) == "true"

    wait_until("gpu-2 to be registered and let in again", back, timeout_s=300)
    assert fleet.get("node", "gpu-2")["metadata"]["uid"] != before
    assert fleet.node_taints("gpu-2") == set()
