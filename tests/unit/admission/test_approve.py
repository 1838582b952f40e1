"""Which certificate requests of kubelets are approved, and waiting for the serving ones."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from gpu_burnin.admission.approve import InventoryNode, judge_csr
from gpu_burnin.admission.client import KubeApi
from tests.support.admission_helpers import NOW, make_node
from tests.support.approver import Outcome, approve
from tests.support.csr_helpers import BOOTSTRAP, NODE_GROUPS, SANS, client_csr, kubelet, request_pem, serving_csr
from tests.support.fake_api import FakeApi, Refused

INVENTORY = {
    "gpu-1": InventoryNode.of("gpu-1", ["10.0.0.1", "fd00::1"], ["gpu-1.example.org"]),
    "gpu-2": InventoryNode.of("gpu-2", ["10.0.0.2"]),
}


@pytest.mark.parametrize(
    "good",
    [
        client_csr(),
        client_csr(username="system:node:gpu-1", groups=NODE_GROUPS),
        client_csr(usages=["key encipherment", "digital signature", "client auth"]),
        serving_csr(),
        serving_csr(request=request_pem(sans=SANS[:1])),
        serving_csr(request=request_pem(sans=(x509.DNSName("gpu-1.example.org"),))),
        serving_csr(request=request_pem(sans=(x509.IPAddress(ipaddress.ip_address("fd00::1")),))),
    ],
)
def test_what_matches_the_inventory_may_be_approved(good: dict[str, Any]) -> None:
    judgement = judge_csr(good, INVENTORY)
    assert judgement.refusals == () and judgement.node == "gpu-1"


def test_a_name_of_an_unknown_kind_is_a_refusal() -> None:
    # An x400Address, which API servers let pass and the library has no class for.
    odd = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a300"))
    judgement = judge_csr(serving_csr(request=request_pem(extensions=(odd,))), INVENTORY)
    assert any("cannot be read" in refusal for refusal in judgement.refusals)


TOKEN = {"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers", "system:bootstrappers:muster-enrol"]}


def digest(csr: dict[str, Any]) -> str:
    return hashlib.sha256(base64.b64decode(csr["spec"]["request"])).hexdigest()


class TestAMachineThatEnrols:
    """The admitter approves the one request that was approved with the machine."""

    def test_gets_what_it_has_signed(self) -> None:
        csr, asked = client_csr("enrol-abcdef", **TOKEN), []

        def approved(node: str, token: str) -> str:
            asked.append((node, token))
            return digest(csr)

        assert judge_csr(csr, INVENTORY, approved).refusals == ()
        assert asked == [("gpu-1", "abcdef")]

    def test_gets_nothing_before_it_is_let_in(self) -> None:
        [why] = judge_csr(client_csr("enrol-abcdef", **TOKEN), INVENTORY).refusals
        assert why.startswith("no enrolment of its node with this token and request was approved")

    def test_gets_nothing_for_another_request(self) -> None:
        """As where somebody has its token."""
        [why] = judge_csr(client_csr("enrol-abcdef", **TOKEN), INVENTORY, lambda *_: "0" * 64).refusals
        assert why.startswith("no enrolment of its node")

    @pytest.mark.parametrize(
        "csr",
        [
            client_csr("csr-1", **TOKEN),
            client_csr("enrol-fedcba", **TOKEN),
            client_csr("enrol-abcdef", **{**TOKEN, "groups": ["system:bootstrappers:muster"]}),
            serving_csr("enrol-abcdef", **TOKEN),
        ],
    )
    def test_gets_one_client_certificate(self, csr: dict[str, Any]) -> None:
        """A token that somebody put into the group of Ansible's hosts gets nothing at all."""
        refusals = judge_csr(csr, INVENTORY, lambda *_: digest(csr)).refusals
        assert any("whose token is good for one client certificate" in why for why in refusals)


def sans(*names: x509.GeneralName) -> str:
    return request_pem(sans=names)


def tampered() -> str:
    der = bytearray(base64.b64decode(base64.b64decode(request_pem()).split(b"-----")[2]))
    der[-1] ^= 1
    text = b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(bytes(der))
    return base64.b64encode(text + b"-----END CERTIFICATE REQUEST-----\n").decode()


@pytest.mark.parametrize(
    ("bad", "difference"),
    [
        (client_csr(signerName="kubernetes.io/kube-apiserver-client"), "signer"),
        (client_csr(request="%%%"), "not a PEM"),
        (client_csr(request=base64.b64encode(b"x").decode()), "not a PEM"),
        (client_csr(request=tampered()), "not signed with its own key"),
        (client_csr(request=request_pem("system:node:gpu-9")), "CN 'system:node:gpu-9'"),
        (client_csr(request=request_pem("muster:admitter")), "CN 'muster:admitter'"),
        (client_csr(request=request_pem("gpu-1")), "CN 'gpu-1'"),
        (client_csr(request=request_pem(organizations=("system:masters",))), "O is ['system:masters']"),
        (
            client_csr(request=request_pem(organizations=("system:nodes", "system:masters"))),
            "O is ['system:nodes', 'system:masters']",
        ),
        (client_csr(request=request_pem(organizations=())), "O is []"),
        (
            client_csr(request=request_pem(extra=(x509.NameAttribute(NameOID.COMMON_NAME, "x"),))),
            "2 common names",
        ),
        (
            client_csr(request=request_pem(extra=(x509.NameAttribute(NameOID.LOCALITY_NAME, "x"),))),
            "more than CN and O",
        ),
        (client_csr(usages=["digital signature", "server auth"]), "usages"),
        (client_csr(usages=["digital signature", "client auth", "cert sign"]), "usages"),
        (client_csr(usages=["client auth"]), "usages"),
        (client_csr(request=sans(*SANS)), "no alternative names"),
        (client_csr(username="mallory", groups=["system:authenticated"]), "asked for by 'mallory'"),
        (client_csr(username="system:node:gpu-2", groups=NODE_GROUPS), "asked for by 'system:node:gpu-2'"),
        (client_csr(username="system:node:gpu-1", groups=[]), "asked for by"),
        (
            client_csr(username="system:node:gpu-2", groups=["system:bootstrappers:muster"]),
            "asked for by 'system:node:gpu-2'",
        ),
        (serving_csr(**BOOTSTRAP), "asked for by 'muster:node-bootstrap'"),
        (serving_csr(username="system:node:gpu-2"), "asked for by 'system:node:gpu-2'"),
        (serving_csr(usages=["digital signature", "client auth"]), "usages"),
        (serving_csr(request=request_pem()), "no DNS name and no address"),
        (serving_csr(request=sans(x509.DNSName("gpu-2"))), "DNS names ['gpu-2']"),
        (serving_csr(request=sans(x509.DNSName("*"))), "DNS names ['*']"),
        (
            serving_csr(request=sans(*SANS, x509.IPAddress(ipaddress.ip_address("10.0.0.2")))),
            "addresses ['10.0.0.2']",
        ),
        (serving_csr(request=sans(*SANS, x509.RFC822Name("a@b.c"))), "other than DNS names"),
        (serving_csr(request=sans(*SANS, x509.UniformResourceIdentifier("spiffe://x"))), "other than DNS names"),
    ],
)
def test_each_difference_is_refused_and_named(bad: dict[str, Any], difference: str) -> None:
    assert difference in " | ".join(judge_csr(bad, INVENTORY).refusals)


def test_all_differences_are_named_at_once() -> None:
    bad = client_csr(request=request_pem(organizations=("x",)), usages=[], username="m", groups=[])
    assert len(judge_csr(bad, INVENTORY).refusals) == 3


def run(kube: KubeApi, wait_for: list[str], wait_s: float = 5.0) -> Outcome:
    ticks = iter(range(1000))
    return approve(
        kube,
        INVENTORY,
        wait_for,
        wait_s,
        clock=lambda: next(ticks),
        sleep=lambda s: None,
        now=lambda: NOW,
    )


def test_both_certificates_of_a_new_node_are_approved(api: FakeApi, kube: KubeApi) -> None:
    api.csrs["csr-client"] = client_csr()
    kubelet(api)
    outcome = run(kube, ["gpu-1"])
    assert [j.csr for j in outcome.approved] == ["csr-client", "csr-serving"] and outcome.missing == {}
    condition = api.csrs["csr-serving"]["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Approved",
        "True",
        "MusterInventoryMatch",
    )
    again = run(kube, ["gpu-1"])
    assert again.approved == () and again.missing == {} and len(api.writes()) == 2


def test_a_request_that_differs_stays_pending_and_is_said(api: FakeApi, kube: KubeApi) -> None:
    bad = serving_csr(request=sans(x509.IPAddress(ipaddress.ip_address("10.9.9.9"))))
    api.csrs["csr-serving"] = bad
    api.put_node(make_node())
    outcome = run(kube, ["gpu-1"])
    assert outcome.approved == () and [j.csr for j in outcome.pending] == ["csr-serving"]
    assert "10.9.9.9" in outcome.missing["gpu-1"] and "csr-serving" in outcome.missing["gpu-1"]
    assert api.writes() == []


def test_other_requests_and_decided_ones_are_left_alone(api: FakeApi, kube: KubeApi) -> None:
    denied = client_csr("denied")
    denied["status"] = {"conditions": [{"type": "Denied", "status": "True"}]}
    api.csrs.update({"denied": denied, "other": client_csr("other", signerName="example.org/x")})
    outcome = run(kube, [])
    assert outcome == Outcome((), (), {}) and api.writes() == []


def test_a_request_that_changed_meanwhile_is_judged_again(api: FakeApi, kube: KubeApi) -> None:
    api.csrs["csr-client"] = client_csr()
    kubelet(api)
    attempts: list[str] = []

    def conflict(path: str) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise Refused(409, "the object has been modified")

    api.before_write = conflict
    outcome = run(kube, ["gpu-1"])
    assert [j.csr for j in outcome.approved] == ["csr-client", "csr-serving"]


def approved_not_issued(api: FakeApi) -> None:
    api.csrs["csr-serving"] = serving_csr()
    api.csrs["csr-serving"]["status"] = {"conditions": [{"type": "Approved", "status": "True"}]}


def signer_failed(api: FakeApi) -> None:
    api.csrs["csr-serving"] = serving_csr()
    conditions = [{"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}]
    api.csrs["csr-serving"]["status"] = {"conditions": conditions}


def not_asked(api: FakeApi) -> None:
    node = make_node()
    node["status"]["conditions"][1]["lastTransitionTime"] = "2026-11-21T11:59:50Z"
    api.put_node(node)


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda api: None, "kubelet has not registered"),
        (lambda api: api.put_node(make_node(ready="False")), "registered, not Ready"),
        (not_asked, "serverTLSBootstrap"),
        (approved_not_issued, "approved but not issued"),
        (signer_failed, "the signer failed"),
    ],
)
def test_what_is_missing_at_the_deadline_is_said(api: FakeApi, kube: KubeApi, prepare: Any, sentence: str) -> None:
    prepare(api)
    missing = run(kube, ["gpu-1"]).missing
    assert sentence in missing["gpu-1"] and missing["gpu-1"].startswith("gpu-1:")


def test_a_node_that_is_ready_for_long_needs_no_request(api: FakeApi, kube: KubeApi) -> None:
    api.put_node(make_node())
    assert run(kube, ["gpu-1"]).missing == {}


def test_an_old_request_that_was_left_pending_does_not_hold_up_a_ready_node(api: FakeApi, kube: KubeApi) -> None:
    old = serving_csr("old", request=sans(x509.DNSName("old-name")))
    old["metadata"]["creationTimestamp"] = "2026-11-21T01:00:00Z"
    api.csrs["old"] = old
    api.put_node(make_node())
    outcome = run(kube, ["gpu-1"])
    assert outcome.missing == {} and [j.csr for j in outcome.pending] == ["old"]
