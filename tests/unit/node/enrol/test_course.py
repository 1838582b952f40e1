"""The way of a machine from its token to its certificate, and each way in which it ends before."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.enrolment import SIGNED_FOR, Claim, Decision, Enrolment, EnrolmentError, EnrolmentSpec, Handed
from gpu_burnin.node.api import ApiRefused, NotYet
from gpu_burnin.node.enrol.course import FIRST_WAIT_S, MOST_WAIT_S, Enrolled, enrol, waits
from gpu_burnin.node.signing import own_public_key, sign
from tests.support.admission_helpers import new_host_key

HANDED = Handed("gpu-1", "abcdef", "0123456789abcdef")
REQUEST = b"-----BEGIN CERTIFICATE REQUEST-----\n"
APPROVED = Decision(True, "alice", "seen", "2026-11-28T05:00:00.000Z", "0" * 64, "198.18.0.9", "198.19.9.0/24")


@dataclass
class Cluster:
    """The API server, as far as the machine knows it; what is in `fails` is raised once each, in turn."""

    spec: EnrolmentSpec = field(default_factory=lambda: EnrolmentSpec("abcdef", "2026-11-28T09:00:00Z"))
    csr: dict[str, Any] | None = None
    fails: list[Exception] = field(default_factory=list)
    asked: int = 0

    def enrolment(self) -> Enrolment:
        if self.fails:
            raise self.fails.pop(0)
        return Enrolment("gpu-1", self.spec)

    def say(self, claim: Claim, signature: str) -> None:
        if self.spec.claim:
            raise ApiRefused("was used already", 403)
        self.spec = replace(self.spec, claim=claim.canonical().decode(), signature=signature)

    def request(self) -> dict[str, Any] | None:
        return self.csr

    def ask(self, request: bytes) -> None:
        self.asked += 1
        self.csr = {"spec": {"request": base64.b64encode(request).decode()}, "status": {}}

    def decide(self, decision: Decision) -> None:
        self.spec = replace(self.spec, decision=decision)

    def issue(self, certificate: bytes = b"PEM") -> None:
        assert self.csr is not None
        self.csr["status"] = {"certificate": base64.b64encode(certificate).decode()}


@dataclass
class Machine:
    """With a host key, and what it was told to wait for."""

    key: Path
    said: list[str] = field(default_factory=list)

    @property
    def claim(self) -> Claim:
        boot = "0b1c2d3e-0000-4000-8000-000000000000"
        return Claim("gpu-1", "abcdef", own_public_key(self.key), "1" * 32, boot, "", "0" * 64)

    def sign(self, data: bytes) -> str:
        return sign(data, self.key, SIGNED_FOR)

    def enrols(self, cluster: Cluster, *deeds: Callable[[], object]) -> Enrolled:
        """Each wait is one deed of others; a wait too many fails the test."""
        following = iter(deeds)

        def sleep(_: float) -> None:
            next(following)()

        return enrol(cluster, HANDED, self.claim, self.sign, REQUEST, self.said.append, sleep=sleep)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    new_host_key(tmp_path / "key")
    return Machine(tmp_path / "key")


@pytest.fixture
def other(tmp_path: Path) -> Machine:
    new_host_key(tmp_path / "other")
    return Machine(tmp_path / "other")


def test_it_says_who_it_is_waits_and_asks(machine: Machine) -> None:
    cluster = Cluster()
    nothing = len
    found = machine.enrols(cluster, lambda: nothing(()), lambda: cluster.decide(APPROVED), cluster.issue)
    assert found == Enrolled("gpu-1", APPROVED, b"PEM")
    assert machine.said == [
        f"gpu-1: this machine's host key is {machine.claim.fingerprint}; approve it only with this one",
        "gpu-1: waits for its approval (muster image approve gpu-1)",
        "gpu-1: was approved by alice, and waits for its certificate",
    ]
    assert cluster.asked == 1


def test_a_server_that_does_not_answer_is_waited_for(machine: Machine) -> None:
    cluster = Cluster(fails=[NotYet("https://x does not answer"), NotYet("https://x does not answer")])
    nothing = [].clear
    machine.enrols(cluster, nothing, nothing, lambda: cluster.decide(APPROVED), cluster.issue)
    assert machine.said[1] == "gpu-1: waits: https://x does not answer"
    assert len(machine.said) == 4


def test_it_goes_on_where_an_earlier_boot_was_cut(machine: Machine) -> None:
    """The boot is another one now; key, machine and request are the same."""
    cluster = Cluster()
    before = replace(machine.claim, boot_id="1b1c2d3e-0000-4000-8000-000000000000")
    cluster.say(before, machine.sign(before.canonical()))
    cluster.decide(APPROVED)
    cluster.ask(REQUEST)
    cluster.issue()
    assert machine.enrols(cluster).certificate == b"PEM" and cluster.asked == 1


def test_another_machine_was_first(machine: Machine, other: Machine) -> None:
    cluster = Cluster()
    cluster.say(other.claim, other.sign(other.claim.canonical()))
    with pytest.raises(EnrolmentError) as caught:
        machine.enrols(cluster)
    assert caught.value.exit_code == 1
    mine, its = machine.claim.fingerprint, other.claim.fingerprint
    assert str(caught.value) == (
        f"gpu-1: the token of this machine was used before it came, by one with the host key {its}, and this one's is "
        f"{mine}: refuse the other (muster image refuse gpu-1), find out who had the token, then hand this machine "
        "another one (muster image token gpu-1 --again)"
    )


def test_another_machine_was_first_by_a_moment(machine: Machine, other: Machine) -> None:
    """Between its look and its word."""
    cluster = Cluster()

    def race(data: bytes) -> str:
        cluster.say(other.claim, other.sign(other.claim.canonical()))
        return machine.sign(data)

    with pytest.raises(EnrolmentError, match="was used before it came"):
        enrol(cluster, HANDED, machine.claim, race, REQUEST, machine.said.append)


def test_another_machine_that_was_first_is_not_this_one_because_it_was_approved(
    machine: Machine, other: Machine
) -> None:
    cluster = Cluster()
    cluster.say(other.claim, other.sign(other.claim.canonical()))
    cluster.decide(APPROVED)
    with pytest.raises(EnrolmentError, match="was used before it came"):
        machine.enrols(cluster)


def test_a_server_that_lets_nobody_speak_is_no_thief(machine: Machine) -> None:
    cluster = Cluster()

    def say(*_: object) -> None:
        raise ApiRefused("gpu-1: the policies are not loaded", 403)

    cluster.say = say  # type: ignore[method-assign]
    with pytest.raises(ApiRefused, match="the policies are not loaded"):
        machine.enrols(cluster)


def test_a_server_that_does_not_understand_says_so_first(machine: Machine) -> None:
    """What a second look says instead, as of a server that is gone by then, would hide it."""
    cluster = Cluster()

    def say(*_: object) -> None:
        cluster.fails.append(ApiRefused("gpu-1: it has ended", 401))
        raise ApiRefused("gpu-1: unknown field", 422)

    cluster.say = say  # type: ignore[method-assign]
    with pytest.raises(ApiRefused, match="unknown field"):
        machine.enrols(cluster)


def test_what_somebody_else_said_is_no_claim_of_a_machine(machine: Machine) -> None:
    cluster = Cluster(EnrolmentSpec("abcdef", "x", "{}", "x"))
    with pytest.raises(EnrolmentError, match="somebody has used this machine's token, and not as a machine does"):
        machine.enrols(cluster)


def test_it_was_refused(machine: Machine) -> None:
    cluster = Cluster()
    refused = Decision(False, "alice", "not the key on its console", "x")
    with pytest.raises(EnrolmentError, match="gpu-1: this machine was refused by alice: not the key on its console"):
        machine.enrols(cluster, lambda: cluster.decide(refused))


def test_it_was_refused_before_it_came_and_says_nothing(machine: Machine) -> None:
    cluster = Cluster()
    cluster.decide(Decision(False, "alice", "the file was lost", "x"))
    with pytest.raises(EnrolmentError, match="the file was lost"):
        machine.enrols(cluster)
    assert not cluster.spec.claim


def test_its_token_was_replaced(machine: Machine) -> None:
    with pytest.raises(EnrolmentError, match="the token of this machine was replaced by another one"):
        machine.enrols(Cluster(EnrolmentSpec("zzzzzz", "x")))


def test_its_token_has_ended(machine: Machine) -> None:
    with pytest.raises(ApiRefused, match="it has ended"):
        machine.enrols(Cluster(fails=[ApiRefused("gpu-1: it has ended", 401)]))


def test_another_request_was_approved(machine: Machine) -> None:
    """As after its disk was written anew: the key of before is lost."""
    cluster = Cluster()
    with pytest.raises(EnrolmentError, match="another key of this machine was approved"):
        machine.enrols(cluster, lambda: cluster.decide(replace(APPROVED, request_sha256="1" * 64)))
    assert cluster.asked == 0


def test_somebody_else_asks_with_its_token(machine: Machine) -> None:
    cluster = Cluster()
    cluster.ask(b"another request")
    cluster.issue(b"another certificate")
    with pytest.raises(EnrolmentError, match="somebody else has asked for a certificate with this machine's token"):
        machine.enrols(cluster, lambda: cluster.decide(APPROVED))


@pytest.mark.parametrize("kind", ["Denied", "Failed"])
def test_its_certificate_is_refused(machine: Machine, kind: str) -> None:
    cluster = Cluster()

    def deny() -> None:
        cluster.decide(APPROVED)
        cluster.ask(REQUEST)
        assert cluster.csr is not None
        cluster.csr["status"] = {"conditions": [{"type": kind, "message": "no such signer"}]}

    with pytest.raises(EnrolmentError, match="its certificate was refused: no such signer"):
        machine.enrols(cluster, deny)


def test_thousands_do_not_ask_in_the_same_second() -> None:
    """Each waits longer each time, up to a bound, and half of it is chance."""
    least, most = waits(lambda low, high: low), waits(lambda low, high: high)
    assert [least() for _ in range(8)] == [FIRST_WAIT_S * factor * 0.5 for factor in (1, 2, 4, 8, 16, 30, 30, 30)]
    assert max(most() for _ in range(8)) == MOST_WAIT_S * 1.5
    assert waits()() != waits()()
