"""Which certificates are issued anew, and why; and where the plan refuses."""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki import plan as pki
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CA = pki.Authority("etcd", "lab etcd CA")
LEAF = pki.Leaf("member-a", "etcd", "a", "", ("DNS:a", "IP:10.0.0.1"), ("serverAuth", "clientAuth"), 365)


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    return key


def subject(leaf: pki.Leaf) -> x509.Name:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.cn)]
    names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.o)] if leaf.o else []
    return x509.Name(names)


def write_certificate(
    path: Path,
    name: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: float,
    leaf: pki.Leaf | None = None,
) -> None:
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=400))
        .not_valid_after(NOW + timedelta(days=days))
    )
    if leaf:
        sans: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(san[3:])) if san.startswith("IP:") else x509.DNSName(san[4:])
            for san in leaf.sans
        ]
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([pki.USAGES[usage] for usage in leaf.usages]), critical=False
        )
    path.write_bytes(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    path.chmod(0o600)


def write_ca(root: Path, authority: pki.Authority = CA, days: float = 3000) -> ec.EllipticCurvePrivateKey:
    folder = root / authority.name
    folder.mkdir(mode=0o700, exist_ok=True)
    key = write_key(folder / "ca.key")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority.cn)])
    write_certificate(folder / "ca.crt", name, key, name, key, days)
    return key


def write_leaf(root: Path, ca_key: ec.EllipticCurvePrivateKey, leaf: pki.Leaf = LEAF, days: float = 300) -> None:
    base = root / leaf.ca / leaf.name
    key = write_key(base.with_suffix(".key"))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA.cn)])
    write_certificate(base.with_suffix(".crt"), subject(leaf), key, issuer, ca_key, days, leaf)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A complete PKI folder with nothing to do."""
    root = tmp_path / "pki"
    root.mkdir(mode=0o700)
    write_leaf(root, write_ca(root))
    return root


def request(root: Path, leaf: pki.Leaf = LEAF, **changes: object) -> pki.Request:
    return replace(pki.Request(root, (CA,), (leaf,)), **changes)  # type: ignore[arg-type]


def reason(root: Path, leaf: pki.Leaf = LEAF) -> str:
    plan = pki.make_plan(request(root, leaf), NOW)
    return plan.leaves[0][1] if plan.leaves else ""


def test_nothing_to_do(root: Path) -> None:
    assert pki.make_plan(request(root), NOW) == pki.Plan()


def test_everything_to_do(tmp_path: Path) -> None:
    plan = pki.make_plan(request(tmp_path / "pki", keypairs=("etcd/sa",), secrets=("key",)), NOW)
    assert [reason for _, reason in plan.authorities] == ["it does not exist"]
    assert [reason for _, reason in plan.leaves] == ["its CA is new"]
    assert (plan.keypairs, plan.secrets) == (("etcd/sa",), ("key",))
    assert plan.directories == (str(tmp_path / "pki"), str(tmp_path / "pki/etcd"))


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (replace(LEAF, name="member-b"), "it does not exist"),
        (replace(LEAF, cn="b"), "its subject is CN=a"),
        (replace(LEAF, o="g"), "its subject is CN=a"),
        (replace(LEAF, sans=("DNS:a",)), "its names or addresses differ (IP:10.0.0.1)"),
        (replace(LEAF, sans=(*LEAF.sans, "DNS:c")), "its names or addresses differ (DNS:c)"),
        (replace(LEAF, usages=("clientAuth",)), "its usages differ"),
        (replace(LEAF, days=90), "it is valid for longer than 90 days"),
    ],
)
def test_wanted_differs(root: Path, leaf: pki.Leaf, said: str) -> None:
    assert reason(root, leaf) == said


def test_organisation_counts(root: Path) -> None:
    leaf = replace(LEAF, o="system:masters")
    write_leaf(root, write_ca(root), leaf)
    assert reason(root, leaf) == ""
    assert reason(root, replace(leaf, o="")) != ""


def test_expires(root: Path) -> None:
    ca_key = write_ca(root)
    write_leaf(root, ca_key, days=29.5)
    assert reason(root) == "it expires on 2026-06-30"
    write_leaf(root, ca_key, days=31)
    assert reason(root) == ""


def test_key_missing_or_foreign(root: Path) -> None:
    write_key(root / "etcd/member-a.key")
    assert reason(root) == "its key does not match"
    (root / "etcd/member-a.key").unlink()
    assert reason(root) == "its key does not exist"


def test_ca_changed(root: Path) -> None:
    write_ca(root)  # same name, another key
    assert reason(root) == "its CA changed"


def test_ca_key_may_be_away_or_vaulted_while_nothing_is_issued(root: Path) -> None:
    (root / "etcd/ca.key").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    assert reason(root) == ""
    assert reason(root, replace(LEAF, cn="b")) != ""
    (root / "etcd/ca.key").unlink()
    assert reason(root) == ""
    with pytest.raises(FleetError, match=r"ca\.key is needed to issue member-a and is missing"):
        reason(root, replace(LEAF, cn="b"))


def test_refuses_to_lose_a_ca(root: Path) -> None:
    write_key(root / "etcd/ca.key")
    with pytest.raises(FleetError, match=r"is not the key of .*put the right one back"):
        reason(root)


def test_ca_near_its_end_is_warned_about_and_an_expired_one_refused(root: Path) -> None:
    write_leaf(root, write_ca(root, days=10))
    assert "expires on 2026-06-11" in pki.make_plan(request(root), NOW).warnings[0]
    write_ca(root, days=-1)
    with pytest.raises(FleetError, match="has expired on 2026-05-31"):
        reason(root)


def test_unreadable_files_are_named(root: Path) -> None:
    (root / "etcd/member-a.key").write_text("rubbish")
    with pytest.raises(FleetError, match=r"member-a\.key is not a plain private key"):
        reason(root)
    (root / "etcd/member-a.crt").write_text("rubbish")
    with pytest.raises(FleetError, match=r"member-a\.crt is not a certificate"):
        reason(root)


@pytest.mark.parametrize(
    ("leaf", "renew_before_days", "said"),
    [
        (replace(LEAF, days=366), 30, "pki_leaf_days is 366; give 90 to 365"),
        (replace(LEAF, days=30), 10, "pki_leaf_days is 30"),
        (replace(LEAF, days=90), 90, "each run would issue everything again"),
        (replace(LEAF, ca="none"), 30, "unknown CA none"),
    ],
)
def test_bad_requests(root: Path, leaf: pki.Leaf, renew_before_days: int, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        pki.make_plan(request(root, leaf, renew_before=timedelta(days=renew_before_days)), NOW)


def test_loose_modes(root: Path) -> None:
    (root / "etcd/member-a.key").chmod(0o640)
    (root / "etcd").chmod(0o755)
    plan = pki.make_plan(request(root), NOW)
    assert plan.loose_files == (str(root / "etcd/member-a.key"),)
    assert plan.directories == (str(root / "etcd"),)


def test_keypair(root: Path) -> None:
    def missing() -> tuple[str, ...]:
        return pki.make_plan(request(root, keypairs=("sa",)), NOW).keypairs

    key = write_key(root / "sa.key")
    assert missing() == ("sa",)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (root / "sa.pub").write_bytes(public)
    assert missing() == ()
    write_key(root / "sa.key")
    assert missing() == ("sa",)
    (root / "sa.key").unlink()
    with pytest.raises(FleetError, match=r"sa\.key is missing"):
        missing()


@pytest.mark.parametrize("content", [b"", b"short", base64.b64encode(b"x" * 31), b"\xff\xfe"])
def test_a_damaged_secret_is_never_replaced(root: Path, content: bytes) -> None:
    (root / "key").write_bytes(base64.b64encode(b"x" * 32) + b"\n")
    assert pki.make_plan(request(root, secrets=("key",)), NOW).secrets == ()
    (root / "key").write_bytes(content)
    with pytest.raises(FleetError, match="is not 32 bytes in base64"):
        pki.make_plan(request(root, secrets=("key",)), NOW)


def test_expand_leaves() -> None:
    entry = {
        "name": "apiserver-{host}",
        "ca": "kubernetes",
        "cn": "kube-apiserver",
        "sans": ["{host}", "{address}", "localhost", "127.0.0.1", "127.0.0.1"],
        "first_address_of": "198.19.128.0/20",
        "usages": ["serverAuth"],
        "days": 365,
        "for_each": {"api-1": "10.0.0.1", "api-2": "fd00::2"},
    }
    first, second = pki.expand_leaves([entry])
    assert first == pki.Leaf(
        "apiserver-api-1",
        "kubernetes",
        "kube-apiserver",
        "",
        ("DNS:api-1", "IP:10.0.0.1", "DNS:localhost", "IP:127.0.0.1", "IP:198.19.128.1"),
        ("serverAuth",),
        365,
    )
    assert "IP:fd00::2" in second.sans
    assert pki.expand_leaves([{**entry, "for_each": {}}]) == ()
    with pytest.raises(FleetError, match="two certificates are called kubernetes/apiserver-api-1"):
        pki.expand_leaves([entry, entry])
    with pytest.raises(FleetError, match="is not a network"):
        pki.expand_leaves([{**entry, "first_address_of": "198.19.128.1/20"}])
