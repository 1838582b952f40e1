"""known_hosts as OpenSSH writes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system import known_hosts as kh

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE"
RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ=="


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("line", "address", "port", "found"),
    [
        (f"node-1 {ED}", "node-1", 22, True),
        (f"node-1 {ED}", "NODE-1", 22, True),
        (f"node-1 {ED}", "node-1", 2222, False),
        (f"[node-1]:2222 {ED}", "node-1", 2222, True),
        (f"[node-1]:2222 {ED}", "n", 22, False),
        (f"a,b,10.0.0.1 {ED} comment", "10.0.0.1", 22, True),
        (f"*.example.org {ED}", "x.example.org", 22, True),
        (f"*.example.org,!x.example.org {ED}", "x.example.org", 22, False),
        (f"@cert-authority * {ED}", "node-1", 22, False),
        (f"# node-1 {ED}", "node-1", 22, False),
    ],
)
def test_lookup(tmp_path: Path, line: str, address: str, port: int, found: bool) -> None:
    keys = kh.load(write(tmp_path, line + "\n")).keys(address, port)
    assert [key.line for key in keys] == ([ED] if found else [])


def test_keys_come_in_the_order_of_the_file_whatever_names_them(tmp_path: Path) -> None:
    lines = [f"*.b {ED}", f"a.b,x {RSA}", f"a.* {RSA}", f"a.b {ED}", f"c {ED}", f"a.b,a.b {RSA}"]
    keys = kh.load(write(tmp_path, "\n".join(lines))).keys("a.b")
    assert [key.line for key in keys] == [ED, RSA, RSA, ED, RSA]


def test_a_line_of_a_plain_name_is_compared_with_no_other_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = kh.load(write(tmp_path, "".join(f"node-{n} {ED}\n" for n in range(100)) + f"*.org {ED}\n"))
    asked: list[str] = []
    monkeypatch.setattr(kh.Entry, "matches", lambda entry, name: asked.append(entry.hosts) or False)
    assert all(len(known.keys(f"node-{n}")) == 1 for n in range(100))
    assert set(asked) == {"*.org"}


def test_hashed_lines_as_ssh_keygen_makes_them(tmp_path: Path) -> None:
    path = write(tmp_path, f"node-1 {ED}\n[node-2]:22022 {ED}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "node-1" not in path.read_text()
    known = kh.load(path)
    assert len(known.keys("node-1")) == len(known.keys("node-2", 22022)) == 1
    assert known.keys("node-3") == ()


def test_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    path = write(tmp_path, f"node-1 {ED}\n")
    out = subprocess.run(["ssh-keygen", "-l", "-f", str(path)], check=True, capture_output=True, text=True)
    [key] = kh.load(path).keys("node-1")
    assert key.fingerprint in out.stdout


def test_recording_keeps_what_was_there(tmp_path: Path) -> None:
    path = write(tmp_path, f"# mine\nold {ED}")
    known = kh.load(path)
    kh.record(known, [("10.0.0.2", 22, kh.HostKey(*ED.split()))])
    assert path.read_text() == f"# mine\nold {ED}\n10.0.0.2 {ED}\n"


@pytest.mark.parametrize("line", ["node-1 ssh-ed25519", "node-1 ssh-ed25519 %%%", f"@what node-1 {ED}"])
def test_a_line_that_cannot_be_read_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(GpuBurninError, match="known_hosts line 2"):
        kh.load(write(tmp_path, f"ok {ED}\n{line}\n"))
