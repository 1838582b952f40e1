"""One function says by which name people know the machine: whatever is told from a pod names the Node."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import gpu_burnin
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.own_name import NODE_VARIABLE, host_name
from gpu_burnin.telemetry.nvml import NvmlUnavailableError

ROOT = Path(gpu_burnin.__file__).parent
# Who holds a lock or a lease is a process, and its machine or pod is meant.
_HOLDERS = {"admission/settings.py", "fleet/feeds/turns.py", "fleet/roll/lock.py", "scaler/settings.py"}


def test_in_a_pod_messages_report_and_configuration_name_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "muster-node-nx2jk")
    monkeypatch.delenv(NODE_VARIABLE, raising=False)
    assert host_name() == "muster-node-nx2jk"
    monkeypatch.setenv(NODE_VARIABLE, "gpu-7")
    assert str(NvmlUnavailableError(9)).startswith("gpu-7: ")
    assert host.read_host().hostname == "gpu-7"
    assert Config().node_name == "gpu-7"


def test_nobody_else_asks_for_the_hosts_own_name() -> None:
    """It would be the pod's in what a contained agent says."""
    own_name = re.compile(r"\b(gethostname|getfqdn|nodename)\b|\bplatform\.node\(")
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if own_name.search(path.read_text())}
    assert found == _HOLDERS | {"system/own_name.py"}
