"""Tokens and enrolments on the controller: what is shown of them, handed over, and decided."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.enrolment import (
    Claim,
    Decision,
    Enrolment,
    EnrolmentError,
    EnrolmentSpec,
    Handed,
    claim_of,
    enrolment_document,
    parse_enrolment,
    parse_handed,
)
from gpu_burnin.api.names import Names
from gpu_burnin.fleet.image.enrolments import Known, answering, doubts
from gpu_burnin.fleet.image.text import Stands, handed_files, rows, table
from gpu_burnin.fleet.image.tokens import mint, withdraw
from gpu_burnin.node.signing import own_public_key, sign
from gpu_burnin.system.known_hosts import HostKey, load
from tests.support.enrolments import ENDS, enrolled, entry
from tests.support.fake_api import FakeApi
from tests.support.ssh_server import StartServer

NAMES = Names()
NOW = datetime(2026, 11, 28, 5, tzinfo=UTC)


@pytest.fixture
def known(key: Path, tmp_path: Path) -> Known:
    """One machine that waits."""
    return Known({"gpu-1": enrolled(key)}, {"gpu-1": entry("gpu-1")}, load(tmp_path / "known_hosts"))


class TestClaims:
    def test_what_was_signed_is_read_back(self, key: Path) -> None:
        claim = claim_of(enrolled(key))
        assert (claim.node, claim.host_key) == ("gpu-1", own_public_key(key))
        assert claim.fingerprint.startswith("SHA256:")

    def test_evidence_is_no_claim(self, key: Path) -> None:
        """A signature that the same key made for something else."""
        good = enrolled(key)
        signature = sign(good.spec.claim.encode(), key)
        with pytest.raises(EnrolmentError, match="not signed by the host key that it names"):
            claim_of(replace(good, spec=replace(good.spec, signature=signature)))

    @pytest.mark.parametrize(
        ("old", "new", "why"),
        [
            ('"node":"gpu-1"', '"node":"gpu-2"', "of node 'gpu-2'"),
            ('"token":"abcdef"', '"token":"fedcba"', "token 'fedcba'"),
            ('"machine_id":"1111', '"machine_id":"xyz1', "machine_id is not of its form"),
            ('"product_uuid":""', '"product_uuid":"<b>"', "product_uuid is not of its form"),
            ('"host_key":"ssh-ed25519', '"host_key":"ssh-rsa', "host_key|not an SSH public key"),
            ('"boot_id"', '"bootid"', "keys missing or unknown"),
            ('{"boot_id"', '{ "boot_id"', "not in canonical form"),
            ("muster-enrolment/v1", "muster-evidence/v1", "schema is not"),
            ('"product_uuid":""', '"product_uuid":7', "no text"),
            ('"product_uuid":""', '"product_uuid":"","product_uuid":""', "a key appears twice"),
            ("{", "", "."),
        ],
    )
    def test_what_is_not_exactly_one_is_refused(self, key: Path, old: str, new: str, why: str) -> None:
        good = enrolled(key)
        bad = good.spec.claim.replace(old, new, 1)
        assert bad != good.spec.claim
        with pytest.raises(EnrolmentError, match=why):
            claim_of(replace(good, spec=replace(good.spec, claim=bad)), lambda *_: True)

    def test_what_cannot_be_read_names_the_node(self) -> None:
        with pytest.raises(EnrolmentError, match="gpu-1: its NodeEnrolment cannot be read"):
            parse_enrolment({"metadata": {"name": "gpu-1"}, "spec": {"token": 7}})


class TestDoubts:
    def test_a_machine_that_fits_has_none(self, known: Known) -> None:
        enrolment = known.enrolments["gpu-1"]
        assert doubts(enrolment, claim_of(enrolment), known) == ()

    @pytest.mark.parametrize(
        ("identity", "why"),
        [
            ({"pod_range": ""}, "has no address or no pod range"),
            ({"addresses": ()}, "has no address or no pod range"),
            ({"addresses": ("gpu-1.example.com",)}, "has no address or no pod range"),
        ],
    )
    def test_one_whose_entry_lacks_what_it_has_to_know_waits(
        self, known: Known, identity: dict[str, object], why: str
    ) -> None:
        enrolment = known.enrolments["gpu-1"]
        [doubt] = doubts(enrolment, claim_of(enrolment), replace(known, entries={"gpu-1": entry("gpu-1", **identity)}))
        assert why in doubt

    def test_one_that_the_ledger_does_not_know_is_none_of_the_fleet(self, known: Known) -> None:
        enrolment = known.enrolments["gpu-1"]
        [doubt] = doubts(enrolment, claim_of(enrolment), replace(known, entries={}))
        assert doubt.startswith("gpu-1: the ledger has no entry for it")

    def test_the_key_that_was_pinned_at_first_contact_is_no_doubt(
        self, known: Known, key: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "known_hosts"
        path.write_text(f"127.0.0.1 {own_public_key(key)}\n")
        enrolment = known.enrolments["gpu-1"]
        assert doubts(enrolment, claim_of(enrolment), replace(known, hosts=load(path))) == ()

    def test_who_only_says_that_it_is_this_machine_keeps_nobody_out(self, known: Known) -> None:
        enrolment = known.enrolments["gpu-1"]
        claim = claim_of(enrolment)
        copied = replace(claim, node="gpu-2", token="ghijkl").canonical().decode()
        liar = Enrolment("gpu-2", EnrolmentSpec("ghijkl", ENDS, copied, enrolment.spec.signature))
        assert doubts(enrolment, claim, replace(known, enrolments={"gpu-1": enrolment, "gpu-2": liar})) == ()

    def test_thousands_that_wait_are_each_read_once(self, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
        enrolment, read = known.enrolments["gpu-1"], list[str]()
        many = {name: replace(enrolment, name=name) for name in (f"gpu-{number}" for number in range(1, 21))}

        def counted(one: Enrolment, *_: object) -> Claim:
            read.append(one.name)
            return replace(claim_of(enrolment, lambda *_: True), host_key=one.name, machine_id=one.name)

        monkeypatch.setattr("gpu_burnin.fleet.image.enrolments.claim_of", counted)
        whole = replace(known, enrolments=many)
        for one in many.values():
            doubts(one, claim_of(enrolment, lambda *_: True), whole)
        assert sorted(read) == sorted(many)


class TestTheAddress:
    """The rule: the key that answers at the node's address is the machine's."""

    def test_the_machine_that_answers_is_the_one(self, start_server: StartServer, known: Known) -> None:
        server, enrolment = start_server(), known.enrolments["gpu-1"]
        key = HostKey(server.host_key.get_name(), server.host_key.get_base64())
        said = replace(claim_of(enrolment), host_key=key.line).canonical().decode()
        here = replace(known, enrolments={"gpu-1": replace(enrolment, spec=replace(enrolment.spec, claim=said))})
        assert answering(here, ["gpu-1"], server.port) == {"gpu-1": ""}
        assert not known.hosts.path.exists()

    def test_one_with_another_key_is_not(self, start_server: StartServer, known: Known) -> None:
        why = answering(known, ["gpu-1"], start_server().port)["gpu-1"]
        assert "showed the ssh-ed25519 host key" in why and claim_of(known.enrolments["gpu-1"]).fingerprint in why

    def test_nor_is_one_that_is_silent(self, start_server: StartServer, known: Known) -> None:
        server = start_server()
        port = server.port
        server.close()
        assert "refused" in answering(known, ["gpu-1"], port)["gpu-1"]

    def test_all_are_asked_at_once(self, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that is silent costs its seconds once, and those that nobody can let in are not asked."""
        asked: list[list[str]] = []
        monkeypatch.setattr(
            "gpu_burnin.fleet.ssh.probe", lambda targets, *_, **__: asked.append([one.name for one in targets]) or []
        )
        enrolment = known.enrolments["gpu-1"]
        waits = {
            name: replace(enrolment, name=name, spec=replace(enrolment.spec, claim=said))
            for name in ("gpu-1", "gpu-2", "gpu-3")
            for said in [enrolment.spec.claim.replace('"gpu-1"', f'"{name}"')]
        }
        entries = {"gpu-1": entry("gpu-1"), "gpu-2": entry("gpu-2"), "gpu-3": entry("gpu-3", addresses=())}
        found = answering(replace(known, enrolments=waits, entries=entries), [*waits, "gpu-4"])
        assert asked == [["gpu-1", "gpu-2"]]
        assert found == {"gpu-3": "gpu-3: the ledger has no address of it; run site.yml"}


class TestShown:
    def test_those_that_wait_come_first(self, known: Known, key: Path) -> None:
        bare = Enrolment("gpu-0", EnrolmentSpec("aaaaaa", ENDS))
        approved = replace(enrolled(key, "gpu-2", "2" * 32))
        decision = Decision(True, "alice", "seen", "2026-11-28T05:00:00Z")
        approved = replace(approved, spec=replace(approved.spec, decision=decision))
        broken = replace(known.enrolments["gpu-1"], name="gpu-3")
        found = rows(
            replace(known, enrolments={e.name: e for e in (bare, approved, broken, *known.enrolments.values())})
        )
        assert [(row.node, row.stands) for row in found] == [
            ("gpu-1", Stands.WAITS),
            ("gpu-3", Stands.WAITS),
            ("gpu-0", Stands.TOKEN),
            ("gpu-2", Stands.APPROVED),
        ]
        assert "gpu-2 enrolled with the same host key" in found[0].note
        assert "cannot be believed" in found[1].note and found[1].fingerprint == ""
        text = table(found)
        assert f"gpu-1  waits     {found[0].fingerprint}  machine {'1' * 32}" in text
        assert f"no machine has come; the token ends at {ENDS}" in text and "by alice at" in text
        assert table(()) == "no machine was given a token (muster image token NODE)"

    def test_what_is_handed_over_is_read_by_the_image(self) -> None:
        """The place and the word are those that its first boot looks for."""
        handed = Handed("gpu-1.example.com", "abcdef", "0123456789abcdef")
        files = handed_files(handed)
        [written] = yaml.safe_load(files["user-data"])["write_files"]
        assert files["user-data"].startswith("#cloud-config\n")
        assert (written["path"], written["permissions"]) == ("/etc/muster/enrol", "0600")
        assert parse_handed(written["content"]) == handed
        assert parse_handed(files["kernel-argument"].partition("muster.enrol=")[2]) == handed
        assert yaml.safe_load(files["meta-data"])["instance-id"] == "enrol-abcdef"


class TestTokens:
    def test_a_second_one_takes_the_place_of_the_first(self, ledger: FakeApi, kube: KubeApi) -> None:
        first = mint(kube, NAMES, "gpu-1", 3600, NOW)
        second = mint(kube, NAMES, "gpu-1", 3600, NOW)
        assert first != second and len(second.secret) == 16
        assert list(ledger.objects["secrets"]) == [f"kube-system/bootstrap-token-{second.token}"]
        spec = ledger.objects["nodeenrolments"]["gpu-1"]["spec"]
        assert spec == {"token": second.token, "ends": "2026-11-28T06:00:00Z"}
        withdraw(kube, second.token)
        withdraw(kube, second.token)

    def test_the_first_is_gone_before_there_is_a_second(self, ledger: FakeApi, kube: KubeApi) -> None:
        mint(kube, NAMES, "gpu-1", 3600, NOW)
        ledger.requests.clear()
        mint(kube, NAMES, "gpu-1", 3600, NOW)
        assert [method for method, _, _ in ledger.requests if method != "GET"] == ["PUT", "DELETE", "POST"]

    def test_a_machine_that_comes_meanwhile_keeps_its_token(self, ledger: FakeApi, kube: KubeApi, key: Path) -> None:
        mint(kube, NAMES, "gpu-1", 3600, NOW)
        before = dict(ledger.objects["secrets"])

        def comes(letters: str) -> str:
            ledger.put("nodeenrolments", enrolment_document("gpu-1", enrolled(key).spec, NAMES))
            return letters[0]

        with pytest.raises(EnrolmentError, match="changed meanwhile"):
            mint(kube, NAMES, "gpu-1", 3600, NOW, draw=comes)
        assert ledger.objects["secrets"] == before

    def test_one_that_was_used_is_replaced_only_on_purpose(self, ledger: FakeApi, kube: KubeApi, key: Path) -> None:
        ledger.put("nodeenrolments", enrolment_document("gpu-1", enrolled(key).spec, NAMES))
        with pytest.raises(EnrolmentError, match=r"waits for a decision .* give --again"):
            mint(kube, NAMES, "gpu-1", 3600, NOW)
        mint(kube, NAMES, "gpu-1", 3600, NOW, again=True)
        assert "claim" not in ledger.objects["nodeenrolments"]["gpu-1"]["spec"]
