"""A CA is replaced in three steps: each can be killed and run again, and none can be skipped."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.kube.kubelet_state import foreign_certificates
from ansible_collections.muster.fleet.plugins.module_utils.pki import pem_certificates
from ansible_collections.muster.fleet.plugins.module_utils.pki import rotation as pki_rotation
from ansible_collections.muster.fleet.plugins.module_utils.pki.issue import Order, issue
from ansible_collections.muster.fleet.plugins.module_utils.pki.plan import Authority, Leaf, Request, make_plan
from ansible_collections.muster.fleet.plugins.module_utils.pki.rotation import Phase
from ansible_collections.muster.fleet.plugins.modules import pki_scan
from cryptography import x509
from cryptography.hazmat.primitives import serialization

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime.now(UTC)
CA = Authority("etcd", "lab etcd CA")
LEAF = Leaf("member-a", "etcd", "a", "", ("DNS:a",), ("serverAuth", "clientAuth"), 365)


class Killed(Exception):
    """The run ends here."""


def issue_what_is_needed(path: Path, now: datetime = NOW, ca_days: int = 3650) -> Sequence[str]:
    """What the role does after each step; the reasons."""
    plan = make_plan(Request(path, (CA,), (LEAF,)), now)
    keys = {"etcd": (path / "etcd/ca.key").read_text()} if (path / "etcd/ca.key").exists() else {}
    order = Order(
        path, tuple(a for a, _ in plan.authorities), tuple(leaf for leaf, _ in plan.leaves), (), (),
        plan.directories, plan.loose_files, ca_days, keys,
    )  # fmt: skip
    issue(order, now)
    return [reason for _, reason in (*plan.authorities, *plan.leaves)]


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    issue_what_is_needed(tmp_path)
    return tmp_path


def step(pki: Path, name: str, now: datetime = NOW) -> list[str]:
    done = pki_rotation.changes(pki, [CA], name, now, 3650)
    for change in done:
        pki_rotation.apply(change)
    return [change.words for change in done]


def bundle(pki: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((pki / "etcd/ca.crt").read_bytes())


def text(pki: Path, name: str) -> str:
    return (pki / "etcd" / name).read_text()


def trusts(pki: Path, leaf: str, authorities: str) -> bool:
    """What OpenSSL, as the servers' own libraries, makes of a leaf and a file of CAs."""
    store = x509.verification.Store(x509.load_pem_x509_certificates(authorities.encode()))
    verifier = x509.verification.PolicyBuilder().store(store).time(NOW).build_client_verifier()
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf.encode()), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_three_steps_replace_a_ca_and_neighbours_trust_each_other_at_every_moment(pki: Path) -> None:
    """Hosts get their files one after the other: what a step leaves must go with what the step before has left."""
    states = [(text(pki, "ca.crt"), text(pki, "member-a.crt"))]
    old = bundle(pki)[0]
    for name, leaves in (("trust", []), ("reissue", ["its CA changed"]), ("drop", [])):
        assert len(step(pki, name)) == 1
        assert issue_what_is_needed(pki) == leaves
        assert step(pki, name) == [], "a step that is done changes nothing"
        states.append((text(pki, "ca.crt"), text(pki, "member-a.crt")))
    for (cas, leaf), (later_cas, later_leaf) in pairwise(states):
        assert trusts(pki, leaf, later_cas) and trusts(pki, later_leaf, cas)
    assert not trusts(pki, states[0][1], states[-1][0]), "the old certificate counts no more"
    (new,) = bundle(pki)
    assert new != old and pki_rotation.phase(pki / "etcd") is Phase.SETTLED
    assert sorted(path.name for path in (pki / "etcd").iterdir()) == [
        "ca.crt", "ca.key", "member-a.crt", "member-a.key",
    ]  # fmt: skip
    key = serialization.load_pem_private_key(text(pki, "ca.key").encode(), None)
    assert key.public_key() == new.public_key()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (pki / "etcd").iterdir())


@pytest.mark.parametrize(
    ("done", "asked", "instead"),
    [
        ((), "reissue", "step=trust"),
        (("trust",), "drop", "step=reissue"),
        (("trust", "reissue"), "trust", "step=drop"),
    ],
)
def test_a_step_out_of_order_is_refused_and_changes_nothing(
    pki: Path, done: Sequence[str], asked: str, instead: str
) -> None:
    for name in done:
        step(pki, name)
    before = {path: path.read_bytes() for path in (pki / "etcd").iterdir()}
    with pytest.raises(FleetError, match=instead):
        step(pki, asked)
    assert {path: path.read_bytes() for path in (pki / "etcd").iterdir()} == before


def test_dropping_where_nothing_was_begun_does_nothing(pki: Path) -> None:
    assert step(pki, "drop") == []


@pytest.mark.parametrize("done", [(), ("trust",), ("trust", "reissue"), ("expired",)])
def test_a_step_killed_after_any_of_its_files_is_done_by_running_it_again(
    pki: Path, done: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {(): "trust", ("trust",): "reissue", ("trust", "reissue"): "drop", ("expired",): "reissue"}[tuple(done)]
    now = NOW
    for earlier in done:
        if earlier == "expired":
            now = NOW + timedelta(days=4000)
        else:
            step(pki, earlier, now)
            issue_what_is_needed(pki, now)
    start = {path: path.read_bytes() for path in (pki / "etcd").iterdir()}
    real_apply, real_unlink = files.apply, Path.unlink
    for moment in range(8):
        for path in (pki / "etcd").iterdir():
            real_unlink(path)
        for path, content in start.items():
            path.write_bytes(content)
            path.chmod(0o600)
        left = moment

        def count() -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1

        def place(specs: object, directories: object) -> None:
            count()
            real_apply(specs, directories)  # type: ignore[arg-type]

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.parent == pki / "etcd":
                count()
            real_unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(files, "apply", place)
            patch.setattr(Path, "unlink", unlink)
            try:
                step(pki, name, now)
                ended = True
            except Killed:
                ended = False
        for one in pki_rotation.under_way(pki, [CA]):
            assert one.old != one.new
        step(pki, name, now)
        issue_what_is_needed(pki, now)
        assert len(bundle(pki)) == (1 if name == "drop" else 2)
        key = serialization.load_pem_private_key(text(pki, "ca.key").encode(), None)
        assert key.public_key() == bundle(pki)[0].public_key()
        assert (pki / "etcd/next.key").exists() == (name == "trust")
        if ended:
            assert moment > 0
            return
    raise AssertionError("the step never ended")


def test_site_yml_says_what_to_do_about_a_step_that_was_cut_between_key_and_certificate(pki: Path) -> None:
    step(pki, "trust")
    (change,) = pki_rotation.changes(pki, [CA], "reissue", NOW, 3650)
    (key,) = [spec for spec in change.write if spec.dest.endswith("ca.key")]
    files.apply([key], [])
    with pytest.raises(FleetError, match="step=reissue again"):
        make_plan(Request(pki, (CA,), (LEAF,)), NOW)


def test_a_ca_that_has_expired_is_replaced_at_once(pki: Path) -> None:
    later = NOW + timedelta(days=4000)
    with pytest.raises(FleetError, match="step=reissue"):
        make_plan(Request(pki, (CA,), (LEAF,)), later)
    assert len(step(pki, "reissue", later)) == 1
    assert issue_what_is_needed(pki, later) == ["its CA changed"]
    assert len(step(pki, "drop", later)) == 1
    assert bundle(pki)[0].not_valid_after_utc > later


def test_what_is_under_way_names_both_cas_in_each_phase(pki: Path) -> None:
    old = bundle(pki)[0]
    assert pki_rotation.under_way(pki, [CA]) == []
    for name in ("trust", "reissue"):
        step(pki, name)
        (one,) = pki_rotation.under_way(pki, [CA])
        assert x509.load_pem_x509_certificate(one.old.encode()) == old
        assert x509.load_pem_x509_certificate(one.new.encode()) != old
    step(pki, "drop")
    assert pki_rotation.under_way(pki, [CA]) == []


def test_a_host_that_trusts_the_old_ca_alone_or_shows_its_certificate_is_named(pki: Path, tmp_path: Path) -> None:
    host = tmp_path / "host/etc"
    (host / "etcd").mkdir(parents=True)
    (host / "etcd/ca.crt").write_text(text(pki, "ca.crt"))
    (host / "etcd/member.crt").write_text(text(pki, "member-a.crt"))
    (host / "etcd/member.key").write_text(text(pki, "member-a.key"))
    (host / "etcd/link.crt").symlink_to(host / "etcd/member.crt")
    (host / "garbage.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAA=A\n-----END CERTIFICATE-----\n\xff")
    step(pki, "trust")
    (one,) = pki_rotation.under_way(pki, [CA])
    old, new = pem_certificates.first(one.old), pem_certificates.first(one.new)
    assert old is not None and new is not None
    exchange = pem_certificates.Exchange("etcd", old, new)

    def lacking_and_old() -> tuple[list[str], list[str]]:
        found = list(pem_certificates.files_below([host]))
        return pem_certificates.lacking(found, exchange), pem_certificates.signed_by_old(found, exchange)

    assert lacking_and_old() == ([str(host / "etcd/ca.crt")], [str(host / "etcd/member.crt")])
    (host / "etcd/ca.crt").write_text(text(pki, "ca.crt"))
    assert lacking_and_old() == ([], [str(host / "etcd/member.crt")])
    step(pki, "reissue")
    issue_what_is_needed(pki)
    (host / "etcd/member.crt").write_text(text(pki, "member-a.crt"))
    assert lacking_and_old() == ([], [])


ETCD = "etcd.service"


def test_a_service_that_runs_since_before_its_files_came_is_named(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """site.yml was cut between a step's files and the restarts, or not: what the gate of the next step sees then."""
    host = tmp_path / "host/etc"
    (host / "etcd").mkdir(parents=True)
    reads = [str(host / "etcd/ca.crt"), str(host / "etcd/member.crt")]
    start_s = NOW.timestamp() - 3600

    def brought() -> None:
        """Newer than the process by a second. What does not differ is left as it is."""
        for name, source in (("ca.crt", "ca.crt"), ("member.crt", "member-a.crt")):
            if not (host / "etcd" / name).exists() or (host / "etcd" / name).read_text() != text(pki, source):
                (host / "etcd" / name).write_text(text(pki, source))
                os.utime(host / "etcd" / name, (start_s + 1, start_s + 1))

    def scan(loaded: Path | None = None) -> tuple[list[str], list[str]]:
        exchanges = [asdict(one) for one in pki_rotation.under_way(pki, [CA])]
        service = {"unit": ETCD, "reads": reads, "loaded": str(loaded) if loaded else None}
        params = {"folders": [str(host)], "files": [], "signers": [], "services": [service], "exchanges": exchanges}
        found = pki_scan.scan(cast(AnsibleModule, SimpleNamespace(params=params)))
        return found["lacking"], found["signed_by_old"]

    def shown(name: str) -> SimpleNamespace:
        assert name == ETCD
        return SimpleNamespace(started_at=start_s)

    monkeypatch.setattr(pki_scan, "show", shown)
    brought()
    start_s += 2
    step(pki, "trust")
    brought()
    old = [reads[1]]
    assert scan() == ([f"{ETCD} (runs since before {reads[0]})"], old), "it knows the old CA alone"
    (marker := tmp_path / "loaded").touch()
    assert scan(marker) == ([], old), "it has read the file without a restart"
    start_s += 2
    assert scan() == ([], old)
    step(pki, "reissue")
    issue_what_is_needed(pki)
    brought()
    # The step reissue is not kept from being run again, but drop from being run.
    assert scan() == ([], [f"{ETCD} (runs since before {', '.join(reads)})"])
    monkeypatch.setattr(pki_scan, "show", lambda _: SimpleNamespace(started_at=None))
    assert scan() == ([], []), "it does not run"
    monkeypatch.setattr(pki_scan, "show", shown)
    start_s += 2
    assert scan() == ([], [])


def tasks_of(found: Any) -> list[dict[str, Any]]:
    """Each mapping in a YAML text, which a task is one of."""
    within = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return [*([found] if isinstance(found, dict) else []), *(task for one in within for task in tasks_of(one))]


def test_each_service_that_a_role_restarts_for_a_ca_is_looked_at() -> None:
    wanted: dict[str, set[str]] = {}
    for role in (ROOT / "roles").iterdir():
        texts = [path.read_text() for part in ("tasks", "vars") for path in (role / part).glob("*.yml")]
        certificates = set(re.findall(r"dest: (/etc/\S+\.crt)", "".join(texts)))
        for task in [one for text in texts for one in tasks_of(yaml.safe_load(text))]:
            given = [task.get("restart_after"), task.get("reload_after")]
            places = [place for one in given if isinstance(one, list) for place in one]
            if any(Path(file).is_relative_to(place) for file in certificates for place in places):
                # The unit of etcd_member is etcd.service by default.
                unit = task.get("unit") or str(task["name"])
                wanted[unit if unit.endswith(".service") else ETCD] = set(places)
    known = {one["unit"]: set(one["reads"]) for one in pki_scan.SERVICES}
    assert wanted.keys() == known.keys()
    assert {unit: reads - wanted[unit] for unit, reads in known.items()} == {unit: set() for unit in known}


def test_the_pages_know_every_ca() -> None:
    """A key that the page forgets stays plain."""
    variables = yaml.safe_load((ROOT / "roles/pki/vars/main.yml").read_text())
    names = [one["name"] for one in variables["__pki_authorities"]]
    page = (ROOT / "docs/operations/certificates.md").read_text()
    (encrypted,) = re.findall(r"^ansible-vault encrypt STATE/pki/\{(.*)\}/ca\.key$", page, re.MULTILINE)
    assert encrypted.split(",") == sorted(set(names) - {"kubelet"})
    decision = (ROOT / "docs/decisions/29-six-cas.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", decision, re.MULTILINE) == names


def test_identifiers_are_those_that_a_library_reads(pki: Path) -> None:
    for name in ("ca.crt", "member-a.crt"):
        read = x509.load_pem_x509_certificate((pki / "etcd" / name).read_bytes())
        found = pem_certificates.first(text(pki, name))
        assert found is not None
        assert found.der == ssl.PEM_cert_to_DER_cert(text(pki, name))
        assert found.key_id == read.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    (ca, leaf) = (pem_certificates.first(text(pki, name)) for name in ("ca.crt", "member-a.crt"))
    assert ca is not None and leaf is not None and leaf.signer_id == ca.key_id


def test_a_kubelet_s_certificate_of_another_ca_is_foreign(pki: Path, tmp_path: Path) -> None:
    own, signer = [pki / "etcd/member-a.crt", tmp_path / "none.pem"], text(pki, "ca.crt")
    assert foreign_certificates(own, signer) == []
    step(pki, "trust")
    assert foreign_certificates(own, text(pki, "ca.crt")) == [], "the successor does not sign yet"
    step(pki, "reissue")
    assert foreign_certificates(own, text(pki, "ca.crt")) == [own[0]]
    assert foreign_certificates(own, "") == []
    (tmp_path / "none.pem").write_text("no certificate")
    issue_what_is_needed(pki)
    assert foreign_certificates(own, text(pki, "ca.crt")) == []
