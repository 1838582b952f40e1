"""What is issued is what the plan wanted, and nothing that gave trust is overwritten."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys
from ansible_collections.muster.fleet.plugins.module_utils.pki import issue as pki_issue
from ansible_collections.muster.fleet.plugins.module_utils.pki import plan as pki_plan
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SERVER = pki_plan.Leaf("server", "kubernetes", "server", "", ("DNS:a", "IP:10.0.0.1"), ("serverAuth",), 365)
PERSON = pki_plan.Leaf("person", "kubernetes", "person", "muster:admins", (), ("clientAuth",), 90)
OTHER_KEY = pki_issue.pem_of_key(ec.generate_private_key(ec.SECP256R1())).decode()


def request(root: Path, *leaves: pki_plan.Leaf) -> pki_plan.Request:
    return pki_plan.Request(
        path=root / "pki",
        authorities=(pki_plan.Authority("kubernetes", "lab kubernetes CA"),),
        leaves=leaves or (SERVER, PERSON),
        keypairs=("kubernetes/service-account",),
        secrets=("encryption-key",),
    )


def order(wanted: pki_plan.Request, ca_keys: dict[str, str] | None = None) -> pki_issue.Order:
    plan = pki_plan.make_plan(wanted, NOW)
    return pki_issue.Order(
        path=wanted.path,
        authorities=tuple(authority for authority, _ in plan.authorities),
        leaves=tuple(leaf for leaf, _ in plan.leaves),
        keypairs=plan.keypairs,
        secrets=plan.secrets,
        directories=plan.directories,
        loose_files=plan.loose_files,
        ca_days=3650,
        ca_keys=ca_keys or {},
    )


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pki_issue.issue(order(request(tmp_path)), NOW)
    return tmp_path


def test_nothing_is_left_to_do(root: Path) -> None:
    assert pki_plan.make_plan(request(root), NOW) == pki_plan.Plan()


def test_only_the_owner_may_read(root: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in (root / "pki").rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (root / "pki", root / "pki/kubernetes")} == {0o700}
    (key,) = encryption_keys.parse((root / "pki/encryption-key").read_text(), "")
    assert len(base64.b64decode(key.secret)) == 32 and encryption_keys.born(key) == NOW.replace(microsecond=0)


def test_openssl_agrees(root: Path) -> None:
    folder = root / "pki/kubernetes"
    verify = ["openssl", "verify", "-x509_strict", "-attime", str(int(NOW.timestamp())), "-CAfile", folder / "ca.crt"]
    for purpose, name in (("sslserver", "server.crt"), ("sslclient", "person.crt")):
        subprocess.run([*verify, "-purpose", purpose, folder / name], check=True, capture_output=True)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([*verify, "-purpose", "sslserver", folder / "person.crt"], check=True, capture_output=True)


def test_times(root: Path) -> None:
    ca, server = (
        x509.load_pem_x509_certificate((root / f"pki/kubernetes/{n}.crt").read_bytes()) for n in ("ca", "server")
    )
    assert ca.not_valid_after_utc == NOW + timedelta(days=3650)
    assert server.not_valid_after_utc == NOW + timedelta(days=365)
    assert server.not_valid_before_utc == NOW - timedelta(hours=1)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)


def test_a_later_leaf_is_signed_by_the_ca_that_is_there(root: Path) -> None:
    before = contents(root)
    wanted = request(root, SERVER, replace(PERSON, o="others"))
    pki_issue.issue(order(wanted, {"kubernetes": (root / "pki/kubernetes/ca.key").read_text()}), NOW)
    assert pki_plan.make_plan(wanted, NOW) == pki_plan.Plan()
    after = contents(root)
    assert {path.name for path in after if after[path] != before.get(path)} == {"person.crt", "person.key"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "was not given"),
        ({"kubernetes": "damaged"}, "is not a private key"),
        ({"kubernetes": OTHER_KEY}, "is not the key of"),
    ],
)
def test_a_wrong_ca_key_changes_nothing(root: Path, keys: dict[str, str], said: str) -> None:
    before = contents(root)
    with pytest.raises(FleetError, match=said):
        pki_issue.issue(order(request(root, replace(SERVER, cn="other"), PERSON), keys), NOW)
    assert contents(root) == before


def test_what_a_killed_run_left_is_used(root: Path) -> None:
    kept = {
        name: (root / "pki" / name).read_bytes() for name in ("kubernetes/ca.key", "kubernetes/service-account.key")
    }
    for gone in ("ca.crt", "service-account.pub"):
        (root / "pki/kubernetes" / gone).unlink()
    pki_issue.issue(order(request(root)), NOW)
    assert {name: (root / "pki" / name).read_bytes() for name in kept} == kept
    assert pki_plan.make_plan(request(root), NOW) == pki_plan.Plan()


def test_a_secret_is_never_overwritten(root: Path) -> None:
    with pytest.raises(FleetError, match="will not be overwritten"):
        pki_issue.issue(replace(order(request(root)), secrets=("encryption-key",)), NOW)


def test_open_files_are_closed(root: Path) -> None:
    key = root / "pki/kubernetes/server.key"
    key.chmod(0o644)
    pki_issue.issue(order(request(root)), NOW)
    assert key.stat().st_mode & 0o777 == 0o600
