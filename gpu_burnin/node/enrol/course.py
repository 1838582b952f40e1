"""The way of a machine from its token to its certificate: it says who it is, waits for a decision, and asks.

It may be cut at any point and begun again: what it said stands in the cluster, and its keys on its disk.
"""

from __future__ import annotations

import base64
import binascii
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_burnin.api.enrolment import Claim, Decision, Enrolment, EnrolmentError, Handed, claim_of
from gpu_burnin.node.api import ApiRefused, NotYet
from gpu_burnin.node.enrol.api import Api, refused

# Thousands boot at once, and wait for one person: each looks every minute or so, and not all in the same second.
FIRST_WAIT_S = 2.0
MOST_WAIT_S = 60.0
_FORBIDDEN = 403


@dataclass(frozen=True)
class Enrolled:
    """What the machine became: the decision has address and pod range; the certificate is PEM."""

    node: str
    decision: Decision
    certificate: bytes


def waits(draw: Callable[[float, float], float] = random.uniform) -> Callable[[], float]:
    """The next wait, in seconds: twice as long each time, up to a minute, and half of it by chance."""
    step = FIRST_WAIT_S

    def following() -> float:
        nonlocal step
        now, step = step, min(step * 2, MOST_WAIT_S)
        return now * draw(0.5, 1.5)

    return following


def enrol(
    api: Api,
    handed: Handed,
    claim: Claim,
    sign: Callable[[bytes], str],
    request: bytes,
    say: Callable[[str], None],
    following: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Enrolled:
    """Enrol this machine. `say` is told each change of what it waits for, once.

    Raises EnrolmentError and ApiRefused where waiting would not help: another machine was first, it was refused, its
    token has ended.
    """
    following = following or waits()
    say(f"{handed.node}: this machine's host key is {claim.fingerprint}; approve it only with this one")
    told = ""
    while True:
        try:
            found = _look(api, handed, claim, sign, request)
            if isinstance(found, Enrolled):
                return found
            why = found
        except NotYet as error:
            why = f"{handed.node}: waits: {error}"
        if why != told:
            say(why)
            told = why
        sleep(following())


def _look(api: Api, handed: Handed, claim: Claim, sign: Callable[[bytes], str], request: bytes) -> Enrolled | str:
    """One step; what is waited for. Raises as enrol(), and NotYet."""
    enrolment = api.enrolment()
    if enrolment.spec.token != handed.token:
        raise refused(
            f"{handed.node}: the token of this machine was replaced by another one; hand it that (muster image token)"
        )
    if not enrolment.spec.claim and enrolment.spec.decision is None:
        try:
            api.say(claim, sign(claim.canonical()))
        except ApiRefused as error:
            if error.status != _FORBIDDEN:
                raise
            # Whoever was first: that is what is read now. Where nobody was, the server does not let anybody speak.
            enrolment = api.enrolment()
            if not enrolment.spec.claim and enrolment.spec.decision is None:
                raise
        else:
            enrolment = api.enrolment()
    decision = enrolment.spec.decision
    if decision is not None and not decision.approved:
        raise refused(f"{handed.node}: this machine was refused by {decision.who}: {decision.why}")
    _refuse_another(enrolment, claim)
    if decision is None:
        return f"{handed.node}: waits for its approval (muster image approve {handed.node})"
    if decision.request_sha256 != claim.request_sha256:
        raise refused(
            f"{handed.node}: another key of this machine was approved; hand it another token (muster image token)"
        )
    csr = api.request()
    if csr is None:
        api.ask(request)
        csr = api.request()
    certificate = None if csr is None else _certificate(handed, csr, request)
    if certificate is None:
        return f"{handed.node}: was approved by {decision.who}, and waits for its certificate"
    return Enrolled(handed.node, decision, certificate)


def _refuse_another(enrolment: Enrolment, claim: Claim) -> None:
    """The token was used, but not by this machine. Raises EnrolmentError."""
    name = enrolment.name
    try:
        its = claim_of(enrolment)
    except EnrolmentError as error:
        raise refused(f"{name}: somebody has used this machine's token, and not as a machine does: {error}") from error
    mine = (claim.host_key, claim.machine_id, claim.request_sha256)
    if (its.host_key, its.machine_id, its.request_sha256) != mine:
        raise refused(
            f"{name}: the token of this machine was used before it came, by one with the host key "
            f"{its.fingerprint}, and this one's is {claim.fingerprint}: refuse the other (muster image refuse {name}), "
            f"find out who had the token, then hand this machine another one (muster image token {name} --again)"
        )


def _certificate(handed: Handed, csr: Mapping[str, Any], request: bytes) -> bytes | None:
    """The certificate of this machine's own request, None until it is issued. Raises EnrolmentError."""
    spec, status = csr.get("spec") or {}, csr.get("status") or {}
    if spec.get("request") != base64.b64encode(request).decode():
        raise refused(
            f"{handed.node}: somebody else has asked for a certificate with this machine's token; find out who had it, "
            f"then hand the machine another one (muster image token {handed.node} --again)"
        )
    for condition in status.get("conditions") or []:
        if condition.get("type") in ("Denied", "Failed"):
            raise refused(
                f"{handed.node}: its certificate was refused: {condition.get('message') or 'no reason given'}"
            )
    try:
        return base64.b64decode(status["certificate"], validate=True) if status.get("certificate") else None
    except (binascii.Error, TypeError) as error:
        raise NotYet(f"the certificate of {handed.node} cannot be read ({error})") from error
