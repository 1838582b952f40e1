"""A burn-in on a remote host, over a real SSH connection to a host whose systemd and gpu-burnin are played."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.model import SshError, Target
from gpu_burnin.fleet.remote import RemoteRun, run_on_host
from gpu_burnin.node import unit
from gpu_burnin.system import known_hosts as kh
from tests.support.ssh_server import SshServer, StartServer, new_key

RUN_FILES = "/srv/look here/runs/r1"
REPORT, PROGRESS, ENDED = (str(unit.RUN_DIR / name) for name in ("report.json", unit.PROGRESS, unit.ENDED))
INVOCATION = "11112222333344445555666677778888"
NAMED = f"report: {RUN_FILES}\n".encode()


@dataclass
class Host:
    """Plays the unit: it prints `progress`, a piece at each poll, then ends with `exit_code`."""

    progress: list[bytes] = field(default_factory=lambda: [b"one\ntw", b"o\nthree"])
    exit_code: int = 0
    exit_kind: str = "exited"
    running: bool = False
    invocation: str = INVOCATION
    log: bytes = b""
    files: dict[str, bytes] = field(
        default_factory=lambda: {REPORT: b'{"run_id": "r1"}', f"{RUN_FILES}/report.html": b"<!doctype html>"}
    )
    commands: list[list[str]] = field(default_factory=list)
    refuse: str = ""
    on_poll: Callable[[int], None] = lambda poll: None
    polls: int = 0

    def execute(self, command: str) -> tuple[int, bytes, bytes]:
        words = shlex.split(command)
        if words[0] == "sudo":
            words = words[2:]
        self.commands.append(words)
        match words[:2]:
            case ["systemctl", "show"]:
                return 0, self._show(), b""
            case [_, "start"]:
                if self.refuse:
                    return 2, b"", self.refuse.encode()
                answer = {"unit": unit.UNIT, "started": not self.running, "invocation": self.invocation}
                self.running = True
                return 0, json.dumps(answer).encode(), b""
            case ["tail", _]:
                assert words[3] == PROGRESS
                return 0, self.log[int(words[2]) - 1 :], b""
            case ["cat", path]:
                return (0, self.files[path], b"") if path in self.files else (1, b"", b"No such file")
        return 127, b"", b"not played"

    def _show(self) -> bytes:
        if self.running:
            self.polls += 1
            self.on_poll(self.polls)
            if self.progress:
                self.log += self.progress.pop(0)
            elif self.running:
                self.running = False
                self.files[ENDED] = f"{self.invocation} {self.exit_kind} {self.exit_code}\n".encode()
        if not self.running:
            return b"ActiveState=inactive\nResult=success\nInvocationID=\n"
        return f"ActiveState=active\nResult=success\nInvocationID={self.invocation}\n".encode()


@dataclass
class Bench:
    """A served host, and a way to run on it."""

    host: Host
    server: SshServer
    target: Target
    known: kh.KnownHosts
    lines: list[str] = field(default_factory=list)
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, *arguments: str, reconnect_s: float = 30.0) -> RemoteRun:
        return run_on_host(
            self.target,
            self.known,
            arguments,
            self.lines.append,
            reconnect_s=reconnect_s,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@pytest.fixture
def bench(start_server: StartServer, identity: Path, tmp_path: Path) -> Bench:
    host = Host()
    server = start_server(execute=host.execute)
    path = tmp_path / "known_hosts"
    key = kh.HostKey(server.host_key.get_name(), base64.b64encode(server.host_key.asbytes()).decode())
    kh.record(kh.load(path), [("127.0.0.1", server.port, key)])
    target = Target("node-1", "127.0.0.1", server.port, "root", identity)
    return Bench(host, server, target, kh.load(path))


@pytest.mark.parametrize("exit_code", [0, 1, 2, 3])
def test_progress_report_and_exit_code_come_back(bench: Bench, exit_code: int) -> None:
    bench.host.exit_code = exit_code
    assert bench.run("--level", "quick") == RemoteRun(exit_code, b'{"run_id": "r1"}')
    assert bench.lines == ["one", "two", "three"]
    [started] = [words for words in bench.host.commands if "start" in words]
    assert started == ["/usr/local/bin/gpu-burnin", "start", "--json", "--", "--level", "quick"], "the one starter"


def test_the_page_comes_from_the_directory_that_the_run_names(bench: Bench) -> None:
    bench.host.progress += [b"\n" + NAMED]
    assert bench.run("--state-dir", "/srv/look here") == RemoteRun(0, b'{"run_id": "r1"}', b"<!doctype html>")


def test_a_run_without_a_page_has_its_report(bench: Bench) -> None:
    bench.host.progress += [b"\n" + NAMED]
    del bench.host.files[f"{RUN_FILES}/report.html"]
    assert bench.run() == RemoteRun(0, b'{"run_id": "r1"}')


def test_a_connection_lost_while_the_page_comes_is_made_again(bench: Bench) -> None:
    bench.host.progress += [b"\n" + NAMED]
    execute, lost = bench.host.execute, []

    def lose_once(command: str) -> tuple[int, bytes, bytes]:
        if "report.html" in command and not lost:
            lost.append(command)
            bench.server.drop()
        return execute(command)

    bench.server.execute = lose_once
    assert bench.run().page == b"<!doctype html>"
    assert lost and any("connection lost" in line for line in bench.lines)


def test_a_lost_connection_is_made_again_and_no_line_is_lost_or_repeated(bench: Bench) -> None:
    bench.host.on_poll = lambda poll: bench.server.drop() if poll == 2 else None
    assert bench.run().exit_code == 0
    assert [line for line in bench.lines if "connection lost" not in line] == ["one", "two", "three"]
    assert any("connection lost" in line for line in bench.lines)
    assert sum("start" in words for words in bench.host.commands) == 1


def test_a_host_that_stays_away_is_inconclusive(bench: Bench) -> None:
    bench.host.on_poll = lambda poll: bench.server.close()
    with pytest.raises(GpuBurninError, match="no connection for 30 s") as caught:
        bench.run()
    assert caught.value.exit_code == 3


def test_a_changed_key_while_following_is_not_accepted(bench: Bench) -> None:
    def change(poll: int) -> None:
        bench.server.host_key = new_key()
        bench.server.drop()

    bench.host.on_poll = change
    with pytest.raises(GpuBurninError, match="the run goes on there: the same command follows it") as caught:
        bench.run()
    assert caught.value.exit_code == 3 and "ssh-keygen -R" in str(caught.value)
    assert isinstance(caught.value.__cause__, SshError)
    assert caught.value.__cause__.problem.code == "HOST_KEY_CHANGED"


def test_a_connection_lost_before_the_run_was_seen_to_begin_is_no_verdict(bench: Bench) -> None:
    def lost(command: str) -> tuple[int, bytes, bytes]:
        bench.server.drop()
        return 0, b"", b""

    bench.server.execute = lost
    with pytest.raises(GpuBurninError, match="before a run was seen to begin") as caught:
        bench.run()
    assert caught.value.exit_code == 2


def test_a_run_that_goes_on_is_followed_not_started(bench: Bench) -> None:
    bench.host.running = True
    assert bench.run("--level", "standard").exit_code == 0
    assert "following it" in bench.lines[0]


def test_a_killed_run_is_inconclusive(bench: Bench) -> None:
    bench.host.exit_kind, bench.host.exit_code = "killed", 9
    with pytest.raises(GpuBurninError, match=r"killed \(signal 9\)") as caught:
        bench.run()
    assert caught.value.exit_code == 3


def test_a_reboot_meanwhile_is_inconclusive(bench: Bench) -> None:
    def reboot(poll: int) -> None:
        if poll == 2:
            bench.host.running = False

    bench.host.on_poll = reboot
    with pytest.raises(GpuBurninError, match="has booted meanwhile") as caught:
        bench.run()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("ended", [False, True])
def test_the_run_of_the_next_boot_is_not_taken_for_this_one(bench: Bench, ended: bool) -> None:
    def reboot(poll: int) -> None:
        if poll == 2:
            bench.host.invocation = "9" * 32
            bench.host.progress = [] if ended else bench.host.progress

    bench.host.on_poll = reboot
    with pytest.raises(GpuBurninError, match="has booted meanwhile") as caught:
        bench.run()
    assert caught.value.exit_code == 3


def test_another_version_on_the_host_is_named(bench: Bench) -> None:
    execute = bench.host.execute
    bench.server.execute = lambda command: (0, b"started", b"") if "start" in command else execute(command)
    with pytest.raises(GpuBurninError, match="install this version there") as caught:
        bench.run()
    assert caught.value.exit_code == 2


def test_a_host_without_gpu_burnin_is_a_usage_error(bench: Bench) -> None:
    bench.host.refuse = "Failed to find executable /usr/local/bin/gpu-burnin"
    with pytest.raises(GpuBurninError, match=r"node-1: .*Failed to find executable") as caught:
        bench.run()
    assert caught.value.exit_code == 2


def test_an_unreachable_host_is_said_at_once(bench: Bench) -> None:
    target = Target("node-1", "127.0.0.1", 1)
    with pytest.raises(SshError) as caught:
        run_on_host(target, bench.known, [], bench.lines.append)
    assert caught.value.problem.code == "UNREACHABLE"


def test_another_user_goes_through_sudo(bench: Bench) -> None:
    seen: list[str] = []
    bench.server.execute = lambda command: (seen.append(command), bench.host.execute(command))[1]
    bench.target = Target("node-1", "127.0.0.1", bench.target.port, "ops", bench.target.identity)
    bench.run()
    assert all(command.startswith("sudo -n ") for command in seen)
