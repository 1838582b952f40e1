"""Fixtures of the campaign: the fake NVML library, a process that uses it, and the way a case gets into the matrix."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.campaign.model import Row
from tests.campaign.nvml_child import NvmlChild
from tests.lab.nvml import fake_nvml as nvml_library

Record = Callable[[Row], None]


@pytest.fixture(scope="session")
def fake_nvml() -> Path:
    """Folder with the built fake NVML library."""
    return nvml_library().parent


@pytest.fixture(scope="session")
def nvml(fake_nvml: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlChild]:
    """A process that reads scenarios through the fake library."""
    with NvmlChild(fake_nvml, tmp_path_factory.mktemp("scenario")) as child:
        yield child


@pytest.fixture(scope="session")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh host key for the evidence."""
    path = tmp_path_factory.mktemp("key") / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Leaves the row of a case with the test's report, from where the matrix is made."""
    properties: list[tuple[str, object]] = request.node.user_properties
    return lambda row: properties.append(("campaign", json.dumps(row.to_json())))
