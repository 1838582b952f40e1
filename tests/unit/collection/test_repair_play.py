"""playbooks/repair.yml: one node's refusal stays that node's.

Only here: that the playbook tries the next host after one that is refused, and that one run has a node at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpu_burnin.fleet.roll import lock
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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """gpu-1 does not answer, and a person is sure that nothing works there."""
    made = Site(tmp_path, names=("gpu-1",))
    yield made
    made.api.close()


def repair(ansible_playbook: Playbook, site: Site, **variables: str) -> tuple[int, str]:
    """How the playbook ends, and what it says."""
    here = {"fleet_name": "test", "fleet_state_dir": str(site.folder), "repair_kubeconfig": str(site.kubeconfig)}
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    groups = {"gpu_nodes": {"hosts": {"gpu-1": away}}}
    inventory = site.folder / "hosts.yml"
    inventory.write_text(
        yaml.safe_dump({"all": {"vars": {**here, "repair_unreached": True, **variables}, "children": groups}})
    )
    done = ansible_playbook(PLAYBOOK, "--limit", "gpu-1", inventory=str(inventory))
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
def test_a_bmc_that_does_not_answer_is_found_before_the_node_is_asked_for(
    ansible_playbook: Playbook, site: Site
) -> None:
    """The machine's power would be cut. Nobody listens at its BMC."""
    asked: set[str] = set()
    site.api.before_read = lambda path: asked.update(site.spec())
    bmc = {"repair_bmc_address": "127.0.0.1:9", "repair_bmc_user": "muster", "repair_bmc_password": "a password"}
    code, said = repair(ansible_playbook, site, **bmc)
    assert code == 2 and "gpu-1 was not repaired: " in said, said[-3000:]
    assert "127.0.0.1:9" in said, said[-3000:]
    assert asked == set() and site.spec() == {} and not (site.folder / "repair").exists()


@pytest.mark.slow
def test_one_run_has_a_node_at_a_time(ansible_playbook: Playbook, site: Site) -> None:
    """The same user has it in repair in another terminal; then that run is dead, and this one hands the node over."""
    locks, mine = site.folder / "repair/locks/gpu-1", lock.owner(pid=os.getpid())
    ask = {"who": site.api.user, "why": "repair ladder: XID_FATAL", "since": "s", "until": "", "level": ""}
    site.spec()["repair"] = ask
    lock.write(locks, lock.Lock("anna", "t", mine, "repairs gpu-1"))
    code, said = repair(ansible_playbook, site)
    assert code == 2 and f"anna repairs gpu-1 since t (process {os.getpid()} on" in said, said[-3000:]
    assert site.spec()["repair"] == ask and lock.read(locks) is not None
    lock.write(locks, lock.Lock("anna", "t", replace(mine, boot_id="another"), "repairs gpu-1"))
    code, said = repair(ansible_playbook, site)
    assert code == 0 and "anna repairs gpu-1 since t" in said and "that run is dead" in said, said[-3000:]
    assert "gpu-1: held for a technician" in said
    assert "repair" not in site.spec() and "hold" in site.spec() and lock.read(locks) is None
