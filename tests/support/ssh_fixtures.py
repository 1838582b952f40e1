"""SSH servers and a key to log in with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from tests.support.ssh_server import SshServer, StartServer, new_key


@pytest.fixture
def identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's private key file; no agent and no other keys."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "identity"
    new_key(path)
    return path


@pytest.fixture
def start_server(identity: Path) -> Iterator[StartServer]:
    """Starts SSH servers that accept `identity` and closes them at the end."""
    servers: list[SshServer] = []

    def start(host_key: paramiko.PKey | None = None, **options: object) -> SshServer:
        allowed = options.pop("allowed", paramiko.PKey.from_path(str(identity)))
        server = SshServer(host_key or new_key(), allowed, **options)  # type: ignore[arg-type]
        threading.Thread(target=server.serve, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
