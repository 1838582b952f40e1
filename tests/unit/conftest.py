"""What several areas of unit tests need: ansible-playbook and the lab's fake NVML."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.nvml import fake_nvml as nvml_library
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

pytest_plugins = [
    "tests.support.engine_fixtures",
    "tests.support.node_fixtures",
    "tests.support.ssh_fixtures",
    "tests.support.telemetry_fixtures",
]

Playbook = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def fake_nvml() -> Path:
    """Folder with the built fake NVML library of the lab."""
    if not (os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler for the fake NVML library")
    return nvml_library().parent


@pytest.fixture(scope="session")
def ansible_plugins() -> None:
    """Ansible's plugins in this process, for tests that call its managers themselves; it may be asked for them once."""
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    # Tests have imported them before, as plain packages: through these, Ansible's finder, which is in charge from now
    # on, loads no further module of the collection ("collection metadata was not loaded").
    for package in ("ansible_collections", "ansible_collections.muster", "ansible_collections.muster.fleet"):
        sys.modules.pop(package, None)
    importlib.import_module("ansible_collections.muster.fleet")


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
            "ANSIBLE_ROLES_PATH": str(tmp_path / "roles"),
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
            timeout=PATIENCE_S,
            check=False,
        )

    return run
