"""The verify of a role's scenario on the lab's hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY
from tools.molecule import failure, scenario

from .fleet import Fleet


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
