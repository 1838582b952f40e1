"""Each role that needs no hosts of its own (tools/molecule.py: OWN_HOSTS) does in the fleet what its verify says.

Only here: what such a role brings serves, refuses and is closed to others (on hosts of the scenario: `make soak`).
A verify puts back what it changes: the tests after this one want the fleet as site.yml left it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY
from tools.molecule import failure, roles_in_lab, scenario

from .fleet import Fleet

ROLES = roles_in_lab()


@pytest.mark.parametrize("role", ROLES)
def test_verify(fleet: Fleet, role: str) -> None:
    """Ends with what the task that failed has said."""
    verify(fleet, role)


def verify(fleet: Fleet, role: str, *inventories: Path) -> None:
    """Run it, with these inventories beside the lab's."""
    log = fleet.lab.state / "logs" / f"verify-{role}.log"
    with log.open("w") as out:
        done = subprocess.run(
            command(role, *inventories), cwd=REPOSITORY, env=environment(role), stdout=out, stderr=out, check=False
        )
    if done.returncode != 0:
        pytest.fail("\n".join([f"{role}, from {log}:", *failure(log.read_text(errors="replace"))]), pytrace=False)


def command(role: str, *inventories: Path) -> list[str]:
    """The verify of a role's scenario on the lab's hosts."""
    inventories = (LAB_INVENTORY, REPOSITORY / "tests/molecule/lab.yml", *inventories)
    tool = Path(sys.executable).parent / "ansible-playbook"
    return [str(tool), *(f"--inventory={path}" for path in inventories), str(scenario(role) / "verify.yml")]


def environment(role: str) -> dict[str, str]:
    """What molecule gives to a verify, without the history callback: `muster why` is not to tell these plays."""
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
        "ANSIBLE_CALLBACKS_ENABLED": "muster.fleet.preload",
        "MOLECULE_SCENARIO_DIRECTORY": str(scenario(role)),
        "MUSTER_REPOSITORY": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
