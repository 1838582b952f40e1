"""The first words with a server that is no good one: each way is told as what it is, and many are dialled together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_burnin.fleet import ssh
from gpu_burnin.fleet.dial import dial
from gpu_burnin.fleet.model import Problem, SshError, Target
from gpu_burnin.fleet.ssh import probe
from tests.support.clocks import PATIENCE_S
from tests.support.ssh_server import SshServer, StartServer


@contextlib.contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on 127.0.0.1 that treats each connection so; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    behave(connection)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def problem_of(port: int, timeout_s: float = PATIENCE_S) -> Problem:
    with pytest.raises(SshError) as error:
        asyncio.run(dial(Target("node-1", "127.0.0.1", port), timeout_s))
    return error.value.problem


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say(text: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(text)
        connection.close()

    return behave


@pytest.mark.parametrize(
    ("behave", "kind", "fix"),
    [
        (lambda connection: connection.close(), "closed before a word of SSH", "MaxStartups and tcp wrappers"),
        (reset, "closed before a word of SSH", "MaxStartups and tcp wrappers"),
        (say(b"SSH-2.0-Open"), "closed before a word of SSH", "sshd's log"),
        (say(b"Exceeded MaxStartups\r\n"), "refuses more connections ('Exceeded MaxStartups')", "raise MaxStartups"),
        (say(b"220 mail.example.com ESMTP\r\n"), "not SSH answers", "correct the port"),
        (say(b"x" * 100_000), "not SSH answers", "correct the port"),
    ],
)
def test_a_server_that_ends_it_is_told_as_what_it_is_at_once(
    behave: Callable[[socket.socket], None], kind: str, fix: str
) -> None:
    with serving(behave) as port:
        problem = problem_of(port)
    assert problem.code == "NO_SSH" and kind in problem.kind and fix in problem.fix
    assert problem.message.startswith(f"node-1: 127.0.0.1 port {port}: ")
    assert "127.0.0.1" not in problem.kind


def test_a_reset_that_comes_before_we_look_is_no_broken_route(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accepted_and_reset(*_: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", accepted_and_reset)
    assert "closed before a word of SSH" in problem_of(22).kind


def test_silence_is_told_after_the_time_for_it() -> None:
    held: list[socket.socket] = []
    with serving(held.append) as port:
        problem = problem_of(port, 0.2)
    assert (problem.code, problem.kind) == ("NO_SSH", "something answers but no SSH banner came within 0.2 s")


def test_refused_and_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert problem_of(port).kind == "the TCP connection was refused"
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", Silence())
    assert problem_of(port, 0.01).kind == "no answer to a TCP connection"


def test_a_name_without_an_address() -> None:
    with pytest.raises(SshError) as error:
        asyncio.run(dial(Target("node-1", "no-such-host.invalid"), PATIENCE_S))
    assert error.value.problem.code == "NAME_UNKNOWN" and "does not resolve" in error.value.problem.kind


def test_lines_before_the_version_are_allowed(
    start_server: StartServer, identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: SshServer = start_server()

    def greet(connection: socket.socket) -> None:
        """A forwarder that says two lines first."""
        connection.sendall(b"welcome\r\nto node-1\r\n")
        upstream = socket.create_connection(("127.0.0.1", server.port))
        for source, sink in ((connection, upstream), (upstream, connection)):
            threading.Thread(target=forward, args=(source, sink), daemon=True).start()

    with serving(greet) as port:
        [result] = probe([Target("n", "127.0.0.1", port, "root", identity)], tmp_path / "known", trust_new=True)
    assert result.ok


def forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


class Silence:
    """Connections that nobody answers, and how many of them there were at once. With `at_once` their time is over when
    there are so many, and not by the clock."""

    def __init__(self, at_once: int = 0) -> None:
        self.now = self.most = 0
        self._at_once, self._over = at_once, asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self._at_once:
            self._over.set()
        try:
            await self._over.wait()
            raise TimeoutError
        finally:
            self.now -= 1


@pytest.mark.parametrize(("limit", "at_once"), [(1000, 150), (20, 20)])
def test_dead_hosts_are_dialled_together_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, at_once: int
) -> None:
    silence = Silence(at_once)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", silence)
    monkeypatch.setattr(ssh, "MOST_LINES", limit)
    targets = [Target(f"gpu-{number}", f"127.0.1.{number}") for number in range(150)]
    done: list[int] = []
    results = probe(targets, tmp_path / "known", timeout_s=PATIENCE_S, threads=2, on_done=done.append)
    assert [result.target for result in results] == targets
    assert {problem.kind for result in results for problem in result.problems} == {"no answer to a TCP connection"}
    assert silence.most == at_once and sum(done) == 150
