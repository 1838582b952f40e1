"""What several areas of unit tests need: Ansible's plugins and the lab's fake NVML; and workers that compile once."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.nvml import fake_nvml as nvml_library
from tests.support.collecting import one_at_a_time

pytest_plugins = [
    "tests.support.engine_fixtures",
    "tests.support.node_fixtures",
    "tests.support.playbook_fixtures",
    "tests.support.ssh_fixtures",
    "tests.support.telemetry_fixtures",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """In a fresh clone each worker would rewrite the assertions of all tests: one does it for all."""
    with one_at_a_time(Path(__file__).parent):
        yield


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
