"""A burn-in on a remote host, over a real SSH connection to a host whose systemd is played."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.model import SshError, Target
from gpu_burnin.fleet.remote import PROGRESS, REPORT, UNIT, RemoteRun, run_on_host
from gpu_burnin.system import known_hosts as kh
from tests.support.ssh_server import SshServer, StartServer, new_key

RUN_FILES = "/srv/look here/runs/r1"
NAMED = f"report: {RUN_FILES}\n".encode()


@dataclass
class Host:
    """Plays systemd: the unit prints `progress`, a piece at each poll, then ends with `exit_code`."""

    progress: list[bytes] = field(default_factory=lambda: [b"one\ntw", b"o\nthree"])
    exit_code: int = 0
    exit_kind: str = "1"
    state: str = "none"
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
            case ["systemctl", "stop"] | ["systemctl", "reset-failed"]:
                self.state = "none"
                return 0, b"", b""
            case ["install", _]:
                return 0, b"", b""
            case ["systemd-run", _]:
                if self.refuse:
                    return 1, b"", self.refuse.encode()
                self.state = "running"
                return 0, b"", b""
            case ["tail", _]:
                assert words[3] == PROGRESS
                return 0, self.log[int(words[2]) - 1 :], b""
            case ["cat", path]:
                return (0, self.files[path], b"") if path in self.files else (1, b"", b"No such file")
        return 127, b"", b"not played"

    def _show(self) -> bytes:
        if self.state == "running":
            self.polls += 1
            self.on_poll(self.polls)
            if self.progress:
                self.log += self.progress.pop(0)
            else:
                self.state = "done"
        lines = {
            "none": "LoadState=not-found\nActiveState=inactive\nSubState=dead",
            "running": "LoadState=loaded\nActiveState=active\nSubState=running\nExecMainCode=0\nExecMainStatus=0",
            "done": "LoadState=loaded\nActiveState=failed\nSubState=failed\n"
            f"ExecMainCode={self.exit_kind}\nExecMainStatus={self.exit_code}",
        }
        return lines[self.state].encode() + b"\n"


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
    [started] = [words for words in bench.host.commands if words[0] == "systemd-run"]
    assert started[-5:] == ["/usr/local/bin/gpu-burnin", "run", "--json", "--level", "quick"]
    assert f"--unit={UNIT}" in started
    assert "--property=KillMode=mixed" in started, "workers that systemd kills look like workers that died"
    assert bench.host.state == "none", "the finished unit is not left behind"


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
    assert sum(words[0] == "systemd-run" for words in bench.host.commands) == 1


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
    with pytest.raises(SshError) as caught:
        bench.run()
    assert caught.value.problem.code == "HOST_KEY_CHANGED"


def test_a_run_that_goes_on_is_followed_not_started(bench: Bench) -> None:
    bench.host.state = "running"
    assert bench.run("--level", "standard").exit_code == 0
    assert not any(words[0] == "systemd-run" for words in bench.host.commands)
    assert "following it" in bench.lines[0]


def test_a_killed_run_is_inconclusive(bench: Bench) -> None:
    bench.host.exit_kind, bench.host.exit_code = "2", 9
    with pytest.raises(GpuBurninError, match="killed") as caught:
        bench.run()
    assert caught.value.exit_code == 3


def test_a_reboot_meanwhile_is_inconclusive(bench: Bench) -> None:
    def reboot(poll: int) -> None:
        if poll == 2:
            bench.host.state = "none"

    bench.host.on_poll = reboot
    with pytest.raises(GpuBurninError, match="has booted meanwhile") as caught:
        bench.run()
    assert caught.value.exit_code == 3


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
