"""Fixtures of a node: a host key, a machine's id files, a statement, a configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_burnin.api.evidence import Statement
from gpu_burnin.settings.config import Config
from gpu_burnin.types import Verdict
from tests.support.node_runs import Node
from tests.support.report_helpers import BOOT, HARDWARE_SHA256, MACHINE, make_key


@pytest.fixture(scope="session")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private key of the host."""
    return make_key(tmp_path_factory.mktemp("key") / "ssh_host_ed25519_key")


@pytest.fixture(scope="session")
def public_line(host_key: Path) -> str:
    """The host's public key as its .pub file has it."""
    return host_key.with_suffix(".pub").read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with a machine id and a boot id."""
    top = tmp_path / "root"
    (top / "etc").mkdir(parents=True)
    (top / "proc/sys/kernel/random").mkdir(parents=True)
    (top / "etc/machine-id").write_text(MACHINE + "\n")
    (top / "proc/sys/kernel/random/boot_id").write_text(BOOT + "\n")
    return top


@pytest.fixture
def statement() -> Statement:
    """A PASS of gpu-1 on real hardware, sequence 7, finished at NOW."""
    return Statement(
        node="gpu-1",
        machine_id=MACHINE,
        boot_id=BOOT,
        report_sha256="a" * 64,
        verdict=Verdict.PASS,
        level="quick",
        plan_sha256="b" * 64,
        hardware_sha256=HARDWARE_SHA256,
        simulated=False,
        sequence=7,
        finished_at="2026-01-02T03:04:05Z",
    )


@pytest.fixture
def config(tmp_path: Path, host_key: Path) -> Config:
    """The configuration of gpu-1 with its state under tmp_path."""
    return Config(node_name="gpu-1", state_dir=tmp_path / "state", host_key=host_key)


@pytest.fixture
def node(tmp_path: Path, fake_nvml: Path, host_key: Path) -> Node:
    """A node for whole runs."""
    return Node(tmp_path / "node", fake_nvml, host_key)


@pytest.fixture(scope="session")
def state_of_a_pass(tmp_path_factory: pytest.TempPathFactory, fake_nvml: Path, host_key: Path) -> Path:
    """The state directory after a run of the state check alone that has passed."""
    node = Node(tmp_path_factory.mktemp("passed") / "node", fake_nvml, host_key)
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    return node.store.root


@pytest.fixture
def passed_node(node: Node, state_of_a_pass: Path) -> Node:
    """A node for whole runs of the state check, one of which has passed."""
    node.configure(checks=["state"])
    shutil.copytree(state_of_a_pass, node.store.root, symlinks=True)
    return node
