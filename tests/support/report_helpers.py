"""What the tests of this area share: identities, a host key, finished runs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.api.evidence import Statement
from gpu_burnin.node.signing import write_evidence
from gpu_burnin.node.store import RunDirectory, Store
from gpu_burnin.settings.config import Config
from gpu_burnin.system.hardware_identity import digest
from gpu_burnin.types import JSON

MACHINE = "0123456789abcdef0123456789abcdef"
BOOT = "11111111-2222-3333-4444-555555555555"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HARDWARE: dict[str, JSON] = {"gpus": [["GPU-a", "1650", "96.00.D0.00.03"]], "driver": "580.95.05", "kernel": "6.12"}
HARDWARE_SHA256 = digest(HARDWARE)


def make_key(path: Path) -> Path:
    """A fresh ed25519 key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def leave_run(config: Config, statement: Statement, hardware: Mapping[str, JSON] = HARDWARE) -> RunDirectory:
    """A finished run of this node with signed evidence; the sequence is the store's."""
    statement = replace(statement, hardware_sha256=digest(hardware))
    store = Store(config.state_dir)
    with store.locked():
        run = store.new_run(NOW)
        store.begin(run)
        write_evidence(run.path, replace(statement, sequence=run.sequence), hardware, config.host_key)
        store.finish(run)
    return run
