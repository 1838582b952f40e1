"""The commands `muster probe` and `gpu-burnin host`: arguments, output, exit codes."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_burnin.cli import host as cli
from gpu_burnin.cli import main as burnin
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.cli.program import EXTRA_OF
from gpu_burnin.cli.program import call as command
from gpu_burnin.cli.ssh_hosts import parse_host
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.model import Target
from gpu_burnin.fleet.remote import RemoteRun
from tests.support.ssh_server import StartServer, new_key


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str


Call = Callable[..., Done]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the program as the shell does."""

    def run(*arguments: object) -> Done:
        program = muster.cli if arguments[0] == "probe" else burnin.cli
        monkeypatch.setattr(sys, "argv", [program.name, *map(str, arguments)])
        code = command(program)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def test_probe_prints_json_and_exits_0(call: Call, start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    known, server = tmp_path / "known_hosts", start_server()
    options = ["--identity", identity, "--known-hosts", known, "--trust-new", "--json"]
    done = call("probe", f"127.0.0.1:{server.port}", *options)
    assert done.exit_code == 0, done.stderr
    [result] = json.loads(done.stdout)
    assert result["ok"] and result["new_key"] and result["port"] == server.port


def test_probe_exits_1_and_says_what_to_do(
    call: Call, start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    server = start_server(allowed=new_key())
    options = ["--identity", identity, "--known-hosts", tmp_path / "k", "--trust-new"]
    done = call("probe", f"127.0.0.1:{server.port}", *options)
    assert done.exit_code == 1
    assert "LOGIN_FAILED" in done.stdout and "authorized_keys" in done.stdout


def test_probe_with_a_broken_known_hosts_exits_2(call: Call, tmp_path: Path) -> None:
    (tmp_path / "k").write_text("nonsense\n")
    done = call("probe", "127.0.0.1", "--known-hosts", tmp_path / "k")
    assert done.exit_code == 2 and "k line 1" in done.stderr


def test_one_fingerprint_for_two_hosts_is_refused(call: Call) -> None:
    done = call("probe", "a", "b", "--fingerprint", "SHA256:x")
    assert done.exit_code == 2 and "single host" in done.stderr


@pytest.mark.parametrize(
    ("text", "user", "address", "port"),
    [
        ("node42", "root", "node42", 22),
        ("me@node42:2222", "me", "node42", 2222),
        ("fd00::1", "root", "fd00::1", 22),
        ("me@[fd00::1]:2222", "me", "fd00::1", 2222),
    ],
)
def test_host_forms(text: str, user: str, address: str, port: int) -> None:
    assert parse_host(text, "root", 22, None) == Target(address, address, port, user, None)


@pytest.mark.parametrize("text", ["", "a b", "[fd00::1", "node:x"])
def test_what_is_no_host_is_a_usage_error(call: Call, text: str) -> None:
    assert call("host", text).exit_code == 2


def test_options_before_the_host_are_explained(call: Call) -> None:
    done = call("host", "--level", "quick", "node42")
    assert done.exit_code == 2 and "HOST comes first" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--levle", "quick"], "No such option '--levle'. (Did you mean one of: '--help', '--level', '--seed'?)"),
        (["--level", "quik"], "Invalid value for '--level': 'quik' is not one of 'quick', 'standard', 'extended'."),
    ],
)
def test_options_that_run_would_refuse_dial_nobody(
    call: Call, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr("gpu_burnin.fleet.remote.run_on_host", lambda *_: pytest.fail("dialled"))
    done = call("host", "node42", *options)
    assert done.exit_code == 2 and done.stderr.endswith(f"\n\nError: {message}\n")


def test_host_gives_unknown_options_to_run_and_exits_with_its_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(target: Target, options: tuple[str, ...], *rest: object) -> RemoteRun:
        asked.append(options)
        return RemoteRun(2, b"")

    monkeypatch.setattr(cli, "_run", run)
    done = call("host", "node42", "--level", "quick", "--user", "me", "--checks=gemm")
    assert done.exit_code == 2
    assert asked == [("--level", "quick", "--checks=gemm")]


def test_an_unreachable_host_is_no_verdict(call: Call, tmp_path: Path) -> None:
    done = call("host", "127.0.0.1", "--port", "1", "--known-hosts", tmp_path / "k")
    assert done.exit_code == 2 and "refused" in done.stderr


def test_a_refused_key_or_login_is_no_verdict(
    call: Call, start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    host, options = f"127.0.0.1:{start_server(allowed=new_key()).port}", ["--identity", identity]
    done = call("host", host, "--known-hosts", tmp_path / "k", *options)
    assert done.exit_code == 2 and "--trust-new" in done.stderr
    done = call("host", host, "--known-hosts", tmp_path / "k", "--trust-new", *options)
    assert done.exit_code == 2 and "authorized_keys" in done.stderr


@pytest.mark.parametrize("command", [("host", "node42"), ("probe", "node42")])
def test_without_paramiko_the_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    for name in ("login", "ssh", "remote"):
        monkeypatch.delitem(sys.modules, f"gpu_burnin.fleet.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "paramiko", None)  # an import of it is a ModuleNotFoundError
    done = call(*command)
    assert done.exit_code == 2
    assert done.stderr == (
        f"{'gpu-burnin' if command[0] == 'host' else 'muster'}: paramiko is not installed; "
        "pip install '.[controller]' in a checkout (of a release: 'FILE.whl[controller]') brings it\n"
    )


def test_the_extras_bring_what_is_said_of_them() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRA_OF.items():
        distribution = "nvidia-ml-py" if module == "pynvml" else module.replace("_", "-")
        assert any(re.match(rf"{distribution}\b", wanted) for wanted in extras[extra])


@pytest.mark.parametrize("data", [b"", b"nonsense", b"{}", b'{"run_id": "../../etc/passwd"}'])
def test_a_report_that_is_none_is_not_written(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(GpuBurninError, match="node42"):
        cli._show(RemoteRun(0, data, b"<!doctype html>"), tmp_path / "node42", as_json=False)
    assert not (tmp_path / "node42").exists()
