"""The probe against real SSH servers in this process, one test for each way in which a host can be unusable."""

from __future__ import annotations

import base64
import socket
import subprocess
from pathlib import Path

import paramiko
import pytest

from gpu_burnin.fleet import dial
from gpu_burnin.fleet.model import ProbeResult, Target
from gpu_burnin.fleet.ssh import probe
from gpu_burnin.system import known_hosts as kh
from tests.support.clocks import PATIENCE_S
from tests.support.ssh_server import SshServer, StartServer, new_key


def key_of(server: SshServer) -> kh.HostKey:
    return as_host_key(server.host_key)


def as_host_key(key: paramiko.PKey) -> kh.HostKey:
    return kh.HostKey(key.get_name(), base64.b64encode(key.asbytes()).decode())


def target(server: SshServer, identity: Path, name: str = "node-1", fingerprint: str | None = None) -> Target:
    return Target(name, "127.0.0.1", server.port, "root", identity, fingerprint)


def codes(result: ProbeResult) -> list[str]:
    return [str(problem.code) for problem in result.problems]


def test_a_new_key_with_the_right_fingerprint_is_pinned_and_ssh_keygen_finds_it(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    server, known = start_server(), tmp_path / "state" / "known_hosts"
    [result] = probe([target(server, identity, fingerprint=key_of(server).fingerprint)], known)
    assert result.ok and result.new_key and result.key == key_of(server)
    assert result.rtt_s is not None and result.rtt_s > 0
    assert known.read_text() == f"[127.0.0.1]:{server.port} {key_of(server).line}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", str(known)], capture_output=True, check=False
    )
    assert found.returncode == 0
    [again] = probe([target(server, identity)], known)
    assert again.ok and not again.new_key


def test_an_unknown_key_is_refused_and_not_written(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    [result] = probe([target(start_server(), identity)], known)
    assert codes(result) == ["HOST_KEY_UNKNOWN"]
    assert "fleet_host_key_fingerprint" in result.problems[0].fix
    assert not known.exists()


def test_trust_new_pins_an_unknown_key_but_not_without_write(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    server, known = start_server(), tmp_path / "known_hosts"
    [dry] = probe([target(server, identity)], known, trust_new=True, write=False)
    assert dry.ok and dry.new_key and not known.exists()
    [real] = probe([target(server, identity)], known, trust_new=True)
    assert real.new_key
    assert kh.load(known).keys("127.0.0.1", server.port) == (key_of(server),)


def test_a_wrong_fingerprint_is_refused_even_with_trust_new(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    other = as_host_key(new_key()).fingerprint
    [result] = probe([target(start_server(), identity, fingerprint=other)], known, trust_new=True)
    assert codes(result) == ["HOST_KEY_MISMATCH"]
    assert other in result.problems[0].message
    assert not known.exists()


@pytest.mark.parametrize("with_fingerprint", [False, True])
def test_a_changed_key_is_never_accepted(
    start_server: StartServer, identity: Path, tmp_path: Path, with_fingerprint: bool
) -> None:
    server, known = start_server(), tmp_path / "known_hosts"
    kh.record(kh.load(known), [("127.0.0.1", server.port, as_host_key(new_key()))])
    before = known.read_bytes()
    fingerprint = key_of(server).fingerprint if with_fingerprint else None
    [result] = probe([target(server, identity, fingerprint=fingerprint)], known, trust_new=True)
    assert codes(result) == ["HOST_KEY_CHANGED"]
    assert "ssh-keygen -R" in result.problems[0].fix
    assert known.read_bytes() == before


def test_no_credential_is_offered_to_a_host_whose_key_is_refused(
    start_server: StartServer, identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[str] = []
    monkeypatch.setattr(paramiko.Transport, "auth_publickey", lambda *a, **k: offered.append("key"))
    probe([target(start_server(), identity)], tmp_path / "known_hosts")
    assert offered == []


def test_a_revoked_key_is_refused(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    server, known = start_server(), tmp_path / "known_hosts"
    known.write_text(f"@revoked * {key_of(server).line}\n")
    [result] = probe([target(server, identity)], known, trust_new=True)
    assert codes(result) == ["HOST_KEY_REVOKED"]


def test_a_closed_port(identity: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    [result] = probe([Target("node-1", "127.0.0.1", port, "root", identity)], tmp_path / "known_hosts")
    assert codes(result) == ["UNREACHABLE"]
    assert "refused" in result.problems[0].message and f"port {port}" in result.problems[0].message


def test_a_port_that_is_not_ssh(identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing for 0.3 s; the line to it may take the time that a busy machine needs."""
    connect = dial._connect
    monkeypatch.setattr(dial, "_connect", lambda target, _: connect(target, PATIENCE_S))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        [result] = probe(
            [Target("node-1", "127.0.0.1", port, "root", identity)], tmp_path / "known_hosts", timeout_s=0.3
        )
    assert codes(result) == ["NO_SSH"]


def test_a_refused_login_keeps_the_key(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    server, known = start_server(allowed=new_key()), tmp_path / "known_hosts"
    [result] = probe([target(server, identity)], known, trust_new=True)
    assert codes(result) == ["LOGIN_FAILED"] and "authorized_keys" in result.problems[0].fix
    assert result.new_key and known.exists()


def test_a_host_without_key_logins(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    [result] = probe([target(start_server(allowed=None), identity)], tmp_path / "known_hosts", trust_new=True)
    assert codes(result) == ["LOGIN_FAILED"] and "password" in result.problems[0].message


@pytest.mark.parametrize("content", [None, b"not a key\n", "passphrase"])
def test_an_unusable_identity(
    start_server: StartServer, identity: Path, tmp_path: Path, content: bytes | str | None
) -> None:
    path = tmp_path / "other"
    if content == "passphrase":
        new_key(path, passphrase=b"secret")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    [result] = probe([target(start_server(), path)], tmp_path / "known_hosts", trust_new=True)
    assert codes(result) == ["IDENTITY_UNUSABLE"] and str(path) in result.problems[0].message


def test_the_users_default_key_is_found(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    ssh_dir = tmp_path / "home" / ".ssh"
    ssh_dir.mkdir(parents=True)
    (ssh_dir / "id_ed25519").write_bytes(identity.read_bytes())
    server = start_server()
    [result] = probe([Target("n", "127.0.0.1", server.port)], tmp_path / "known_hosts", trust_new=True)
    assert result.ok


def test_two_hosts_with_one_key_are_both_refused_and_not_pinned(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    key, known = new_key(), tmp_path / "known_hosts"
    first, second, third = start_server(key), start_server(key), start_server()
    targets = [
        target(first, identity, "node-1"),
        target(second, identity, "node-2"),
        target(third, identity, "node-3"),
    ]
    results = probe(targets, known, trust_new=True)
    assert [codes(r) for r in results] == [["HOST_KEY_DUPLICATE"], ["HOST_KEY_DUPLICATE"], []]
    assert "node-2" in results[0].problems[0].message and "node-1" not in results[0].problems[0].message[7:]
    assert known.read_text().count("\n") == 1


def test_all_hosts_are_probed_whatever_the_others_do(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    good, bad = start_server(), start_server(allowed=new_key())
    results = probe(
        [target(bad, identity, "bad"), target(good, identity, "good")], tmp_path / "known_hosts", trust_new=True
    )
    assert [(r.target.name, r.ok) for r in results] == [("bad", False), ("good", True)]


def test_the_key_that_is_pinned_for_a_host_nobody_dials_is_no_other_hosts(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    key, known = new_key(), tmp_path / "known_hosts"
    away, clone, fine = start_server(key), start_server(key), start_server()
    others = [target(away, identity, "away"), Target("never-met", "127.0.0.9")]
    assert probe(others[:1], known, trust_new=True)[0].ok
    away.close()
    results = probe(
        [target(clone, identity, "clone"), target(fine, identity, "fine")], known, trust_new=True, others=others
    )
    assert [codes(result) for result in results] == [["HOST_KEY_DUPLICATE"], []]
    assert "is also that of away" in results[0].problems[0].message
