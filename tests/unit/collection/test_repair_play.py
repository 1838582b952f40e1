"""playbooks/repair.yml: one node's refusal stays that node's.

Only here: that the playbook tries the next host after one that is refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
