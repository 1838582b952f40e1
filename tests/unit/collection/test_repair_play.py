"""playbooks/repair.yml: one node's refusal stays that node's.

Only here: that the playbook tries the next host after one that is refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.upgrade_site import Site

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK, INVENTORY = str(ROOT / "playbooks/repair.yml"), str(ROOT / "inventory/example")


@pytest.mark.slow
def test_a_node_that_is_refused_does_not_keep_the_next_from_its_repair(
    ansible_playbook: Playbook, tmp_path: Path
) -> None:
    """Both are refused here, where no gpu-burnin is installed: each is tried and named, and the run fails."""
    here = ("-e", f"fleet_state_dir={tmp_path}", "-e", f"ansible_python_interpreter={sys.executable}")
    done = ansible_playbook(PLAYBOOK, "--limit", "gpu-001,gpu-002", *here, inventory=INVENTORY)
    assert done.returncode == 2, done.stdout + done.stderr
    for host in ("gpu-001", "gpu-002"):
        assert f"{host} was not repaired: " in done.stdout


def test_without_a_limit_nothing_is_done(ansible_playbook: Playbook) -> None:
    done = ansible_playbook(PLAYBOOK, inventory=INVENTORY)
    assert done.returncode == 2 and "repairs the hosts you name and nothing else" in done.stdout + done.stderr
    assert "was not repaired" not in done.stdout


@pytest.mark.slow
def test_a_bmc_that_does_not_answer_is_found_before_the_node_is_asked_for(
    ansible_playbook: Playbook, tmp_path: Path
) -> None:
    """The machine does not answer, and a person is sure: its power would be cut. Nobody listens at its BMC."""
    site = Site(tmp_path, names=("gpu-1",))
    asked: set[str] = set()
    site.api.before_read = lambda path: asked.update(site.spec())
    variables = {
        "fleet_name": "test",
        "fleet_state_dir": str(tmp_path),
        "repair_kubeconfig": str(site.kubeconfig),
        "repair_unreached": True,
        "repair_bmc_address": "127.0.0.1:9",
        "repair_bmc_user": "muster",
        "repair_bmc_password": "a password",
    }
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    groups = {"gpu_nodes": {"hosts": {"gpu-1": away}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": variables, "children": groups}}))
    try:
        done = ansible_playbook(PLAYBOOK, "--limit", "gpu-1", inventory=str(tmp_path / "hosts.yml"))
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 2 and "gpu-1 was not repaired: " in said, said[-3000:]
        assert "127.0.0.1:9" in said, said[-3000:]
        assert "TASK [muster.fleet.repair : Start the repair unless something forbids it]" not in said
        assert asked == set() and site.spec() == {} and not (tmp_path / "repair").exists()
    finally:
        site.api.close()
