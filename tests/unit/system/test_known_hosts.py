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


FIELD = Path(__file__).parents[2] / "support/field_cases/known_hosts-revoked"


@pytest.mark.parametrize(
    "hosts",
    [
        "GPU-001.example",
        "gpu-001.example,10.0.0.9",
        "*.EXAMPLE",
        "gpu-00?.example",
        "[gpu-001.example]:22022",
        "[GPU-001.example]:*",
        "[*.example]:22",
        "*",
    ],
)
@pytest.mark.parametrize("port", [22, 22022])
def test_a_revoked_key_is_revoked_whatever_names_its_host(tmp_path: Path, hosts: str, port: int) -> None:
    """By case, port and wildcard, and it is no pinned key any more."""
    key = kh.HostKey(*ED.split())
    pinned = kh.host_pattern("gpu-001.example", port)
    known = kh.load(write(tmp_path, f"@revoked {hosts} {ED}\n{pinned} {ED}\n"))
    assert known.revoked("gpu-001.example", port, key)
    assert known.revoked("GPU-001.Example", port, key)
    assert known.keys("gpu-001.example", port) == ()
    assert known.evidence_key("gpu-001.example", port) == ""


@pytest.mark.parametrize("hosts", ["gpu-002.example", "*.example,!gpu-001.example", "gpu-[0-9][0-9]1.example"])
def test_a_revoked_line_of_other_hosts_says_nothing(tmp_path: Path, hosts: str) -> None:
    known = kh.load(write(tmp_path, f"@revoked {hosts} {ED}\n"))
    assert not known.revoked("gpu-001.example", 22, kh.HostKey(*ED.split()))


def test_a_revoked_line_of_a_hashed_name_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, f"gpu-001.example {ED}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    known = kh.load(write(tmp_path, f"@revoked {path.read_text()}"))
    assert known.revoked("GPU-001.example", 22022, kh.HostKey(*ED.split()))


def test_the_line_of_the_field(tmp_path: Path) -> None:
    """After paramiko issue 1161 and Ansible issue 29371: the revoked name is in capitals, the pinned one is not."""
    lines = FIELD.read_text().splitlines()
    known = kh.load(write(tmp_path, "\n".join(lines) + "\n"))
    (key,) = {entry.key for entry in known.entries}
    assert known.revoked("gpu-001.example", 22, key) and known.keys("gpu-001.example") == ()


def test_a_pinned_name_in_capitals_is_found(tmp_path: Path) -> None:
    known = kh.load(write(tmp_path, f"GPU-001.Example {ED}\n[Node-2]:22022 {ED}\n"))
    assert len(known.keys("gpu-001.example")) == len(known.keys("NODE-2", 22022)) == 1


def test_a_comment_in_another_encoding_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    old = b"# caf\xe9 \x85\nnode-1 " + ED.encode() + b" k\xf6nig@node\n"
    path.write_bytes(old)
    known = kh.load(path)
    assert len(known.keys("node-1")) == 1
    kh.record(known, [("node-2", 22, kh.HostKey(*ED.split()))])
    assert path.read_bytes() == old + f"node-2 {ED}\n".encode()
