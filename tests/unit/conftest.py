"""Unit tests import the collection's plugins from the checkout, as ansible_collections.muster.fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

Playbook = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ansible_playbook(tmp_path: Path) -> Playbook:
    """Runs the real ansible-playbook in a temporary folder, with this checkout's collection."""

    def run(*arguments: str, inventory: str = "localhost,") -> subprocess.CompletedProcess[str]:
        # An own, empty configuration: neither the checkout's nor the user's.
        configuration = tmp_path / "ansible.cfg"
        configuration.write_text("[defaults]\n")
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(configuration),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_ROLES_PATH": f"{tmp_path / 'roles'}:{ROOT / 'roles'}",
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local-tmp"),
            "ANSIBLE_HOME": str(tmp_path / "ansible-home"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_NOCOLOR": "1",
        }
        command = str(Path(sys.executable).parent / "ansible-playbook")
        return subprocess.run(
            [command, "-i", inventory, "-c", "local", *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run
