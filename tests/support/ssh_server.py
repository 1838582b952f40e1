"""A real SSH server in this process: paramiko's server side on 127.0.0.1."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko.common import cMSG_CHANNEL_SUCCESS

from tests.support.clocks import PATIENCE_S

Execute = Callable[[str], tuple[int, bytes, bytes]]


def new_key(path: Path | None = None, passphrase: bytes | None = None) -> paramiko.PKey:
    """A fresh ed25519 key, also written to `path` (and its public half to `path`.pub) when given."""
    private = Ed25519PrivateKey.generate()
    protection = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
    if path is not None:
        path.write_bytes(private.private_bytes(*form, protection))
        path.chmod(0o600)
        public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        Path(f"{path}.pub").write_bytes(public + b"\n")
    text = private.private_bytes(*form, serialization.NoEncryption()).decode("ascii")
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text))


@dataclass
class Shell:
    """Runs commands for real, as sshd does: with their input and output over the channel. `received` is all input."""

    environment: dict[str, str]
    received: bytearray = field(default_factory=bytearray)

    def run(self, channel: paramiko.Channel, command: str) -> None:
        process = subprocess.Popen(
            ["sh", "-c", command], env=self.environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        outputs = [(process.stdout, channel.sendall), (process.stderr, channel.sendall_stderr)]
        threads = [threading.Thread(target=self._send, args=one, daemon=True) for one in outputs]
        threading.Thread(target=self._receive, args=(channel, process.stdin), daemon=True).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = process.wait()
        with contextlib.suppress(OSError, EOFError):
            channel.send_exit_status(code if code >= 0 else 128 - code)
        channel.close()

    def _receive(self, channel: paramiko.Channel, stdin: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stdin:
            while data := channel.recv(65536):
                self.received += data
                stdin.write(data)
                stdin.flush()

    @staticmethod
    def _send(source: IO[bytes], send: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError, EOFError), source:
            while data := os.read(source.fileno(), 65536):
                send(data)


@dataclass
class _Session(paramiko.ServerInterface):
    allowed: paramiko.PKey | None
    execute: Execute
    replied: threading.Event = field(default_factory=threading.Event)
    transport: paramiko.Transport | None = None
    shell: Shell | None = None

    def get_allowed_auths(self, username: str) -> str:
        return "publickey" if self.allowed else "password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = self.allowed is not None and key.asbytes() == self.allowed.asbytes()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.replied.clear()
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        try:
            line = socket.create_connection(destination)
        except OSError:
            return paramiko.OPEN_FAILED_CONNECT_FAILED
        threading.Thread(target=self._forward, args=(line,), daemon=True).start()
        return paramiko.OPEN_SUCCEEDED

    def _forward(self, line: socket.socket) -> None:
        """Both ways until one side ends."""
        assert self.transport is not None
        channel = self.transport.accept(PATIENCE_S)
        with line, contextlib.suppress(OSError, EOFError):
            while channel is not None and (ready := select.select([channel, line], [], [])[0]):
                for one, other in ((channel, line), (line, channel)):
                    data = one.recv(65536) if one in ready else None
                    if data == b"":
                        channel.close()
                        return
                    if data:
                        other.sendall(data)

    def _run(self, channel: paramiko.Channel, command: str) -> None:
        # Output before the reply to the exec request would be taken for a broken channel.
        self.replied.wait(PATIENCE_S)
        if self.shell is not None:
            self.shell.run(channel, command)
            return
        code, stdout, stderr = self.execute(command)
        if not channel.get_transport().is_active():
            return
        channel.sendall(stdout)
        channel.sendall_stderr(stderr)
        channel.send_exit_status(code)
        channel.close()


class _Transport(paramiko.Transport):
    """Tells the session when the reply to an exec request has gone out."""

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc]
        if data.asbytes()[:1] == cMSG_CHANNEL_SUCCESS and isinstance(self.server_object, _Session):
            self.server_object.replied.set()


@dataclass
class SshServer:
    """Serves `host_key`; logins with `allowed` succeed (None: keys are not accepted at all)."""

    host_key: paramiko.PKey
    allowed: paramiko.PKey | None
    execute: Execute = lambda command: (0, b"", b"")
    shell: Shell | None = None
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    transports: list[paramiko.Transport] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = _Transport(connection)
            transport.add_server_key(self.host_key)
            self.transports.append(transport)
            try:
                transport.start_server(
                    server=_Session(self.allowed, self.execute, transport=transport, shell=self.shell)
                )
            except (paramiko.SSHException, EOFError, OSError):
                transport.close()

    def drop(self) -> None:
        """Cut all connections, as a broken network does."""
        for transport in self.transports:
            transport.close()
        self.transports.clear()

    def close(self) -> None:
        if self.listener.fileno() >= 0:
            # shutdown wakes the accept(), close alone does not.
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.drop()


StartServer = Callable[..., SshServer]
