"""What machines say of themselves, and deciding on it: nothing that a machine says is taken for more than a claim."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.admission.carried import carried, keep
from gpu_burnin.admission.client import Conflict, KubeApi
from gpu_burnin.admission.provision import entries, pin
from gpu_burnin.api.enrolment import (
    Claim,
    Decision,
    Enrolment,
    EnrolmentError,
    claim_of,
    enrolments_path,
    parse_enrolment,
)
from gpu_burnin.api.names import ENROLMENT_KIND, Names
from gpu_burnin.api.record import NodeAdmission
from gpu_burnin.fleet.image.tokens import withdraw
from gpu_burnin.fleet.model import Target
from gpu_burnin.system import known_hosts as kh
from gpu_burnin.system.codec import to_json


@dataclass(frozen=True)
class State:
    """What the controller keeps: known_hosts, and what it knows of machines that left."""

    known_hosts: Path
    ledger: Path


@dataclass(frozen=True)
class Known:
    """All that an enrolment is held against."""

    enrolments: Mapping[str, Enrolment]
    entries: Mapping[str, NodeAdmission]
    hosts: kh.KnownHosts


def read(api: KubeApi, names: Names, known_hosts: Path) -> Known:
    """Everything, as it is now. Raises ApiError and GpuBurninError."""
    items = (parse_enrolment(item) for item in api.items(enrolments_path(names), f"list the {ENROLMENT_KIND}s"))
    return Known({one.name: one for one in items}, entries(api, names), kh.load(known_hosts))


def doubts(enrolment: Enrolment, claim: Claim, known: Known, port: int = kh.DEFAULT_PORT) -> tuple[str, ...]:
    """Why this machine may not be let in as this node, whoever approves it; a sentence each. Pure."""
    name, entry = enrolment.name, known.entries.get(enrolment.name)
    if entry is None:
        return (f"{name}: the ledger has no entry for it; add it to the inventory and run site.yml, or refuse it",)
    found: list[str] = []
    for other, its in sorted(known.entries.items()):
        if other != name and claim.host_key == its.spec.identity.host_key:
            found.append(f"{name}: its host key is that of {other}; make new ones on it (rm /etc/ssh/ssh_host_*)")
        if other != name and claim.machine_id == its.spec.identity.machine_id:
            found.append(f"{name}: its machine id is that of {other}; one of them is a copy of the other's disk")
    found += _twins(enrolment, claim, known)
    for address in entry.spec.identity.addresses:
        key = kh.HostKey(*claim.host_key.split())
        where = kh.host_pattern(address, port)
        if known.hosts.revoked(address, port, key):
            found.append(f"{name}: {known.hosts.path} marks its host key @revoked; make new ones on it")
        pinned = [one for one in known.hosts.keys(address, port) if one.key_type == key.key_type]
        if pinned and key not in pinned:
            found.append(
                f"{name}: {known.hosts.path} has another host key for {where}, {pinned[0].fingerprint}; find out why, "
                f"and only if this machine was replaced or installed anew, forget it (ssh-keygen -R '{where}' -f "
                f"{known.hosts.path})"
            )
    if not entry.spec.identity.pod_range or _address(entry) is None:
        found.append(f"{name}: the ledger has no address or no pod range of it; run site.yml, which writes both")
    return tuple(dict.fromkeys(found))


def _twins(enrolment: Enrolment, claim: Claim, known: Known) -> Iterable[str]:
    """Other machines that enrolled and are this one, or a copy of it. Pure."""
    for other in sorted(known.enrolments.keys() - {enrolment.name}):
        try:
            its = claim_of(known.enrolments[other], lambda *_: True)
        except EnrolmentError:
            continue
        if claim.host_key == its.host_key or claim.machine_id == its.machine_id:
            yield (
                f"{enrolment.name}: {other} enrolled with the same host key or machine id; one is a copy of "
                "the other's disk, or somebody has both tokens: refuse both"
            )


def answering(entry: NodeAdmission, claim: Claim, known_hosts: Path, port: int = kh.DEFAULT_PORT) -> str:
    """Why the key that answers at the node's address is not the machine's, "" where it is.

    That is what trust at first contact means: whoever is at the address is the node. No login is needed.
    """
    # SSH is the image's: who approves the machines of an attached cluster has none.
    from gpu_burnin.fleet.ssh import probe

    address = _address(entry)
    if address is None:
        return f"{entry.name}: the ledger has no address of it; run site.yml"
    target = Target(entry.name, address, port, fingerprint=claim.fingerprint)
    [result] = probe([target], known_hosts, write=False)
    if result.key is not None and result.key.line == claim.host_key:
        return ""
    return "; ".join(str(problem) for problem in result.problems) or f"{entry.name}: another key answers at its address"


def approve(
    api: KubeApi,
    names: Names,
    node: str,
    known: Known,
    state: State,
    decision: Decision,
    compare: Callable[[NodeAdmission, Claim], str],
    port: int = kh.DEFAULT_PORT,
) -> Decision:
    """Pin the machine's key and write the decision, which has who, why and when. Raises EnrolmentError, ApiError.

    `compare` says why the machine is not the one that was meant, "" where it is. In this order: known_hosts, ledger,
    decision. So a run that is cut is only begun, and the next one goes on.
    """
    enrolment = known.enrolments.get(node)
    if enrolment is None:
        raise EnrolmentError(f"{node}: it was given no token; hand it one (muster image token {node})")
    if enrolment.spec.decision is not None and not enrolment.spec.decision.approved:
        raise EnrolmentError(
            f"{node}: it was refused; hand the machine another token (muster image token {node} --again)"
        )
    claim = claim_of(enrolment)
    if enrolment.spec.decision is None and enrolment.spec.ends < decision.at:
        again = f"muster image token {node} --again"
        raise EnrolmentError(
            f"{node}: its token ended at {enrolment.spec.ends}, so the machine cannot read what is decided; hand it "
            f"another one ({again})"
        )
    if found := doubts(enrolment, claim, known, port):
        raise EnrolmentError(" | ".join(found))
    entry = known.entries[node]
    if differs := compare(entry, claim):
        raise EnrolmentError(differs)
    identity, key = entry.spec.identity, kh.HostKey(*claim.host_key.split())
    hosts = kh.load(state.known_hosts)
    kh.record(hosts, [(one, port, key) for one in identity.addresses if key not in hosts.keys(one, port)])
    pin(
        api,
        names,
        node,
        claim.host_key,
        claim.machine_id,
        carried=carried(state.ledger, node, claim.host_key),
        keep=lambda *seen: keep(state.ledger, *seen),
    )
    made = Decision(
        True, decision.who, decision.why, decision.at, claim.request_sha256, _address(entry) or "", identity.pod_range
    )
    decide(api, names, enrolment, made)
    return made


def decide(api: KubeApi, names: Names, enrolment: Enrolment, decision: Decision) -> None:
    """Write what was decided on exactly this enrolment. Raises EnrolmentError where it has changed, and ApiError."""
    test: dict[str, Any] = {"op": "test", "path": "/metadata/resourceVersion", "value": enrolment.version}
    add = {"op": "add", "path": "/spec/decision", "value": to_json(decision)}
    try:
        api.patch(enrolments_path(names, enrolment.name), [test, add], f"decide on {enrolment.name}")
    except Conflict as error:
        raise EnrolmentError(f"{enrolment.name}: its enrolment changed meanwhile; look at it again") from error


def refuse(api: KubeApi, names: Names, node: str, decision: Decision) -> None:
    """Refuse a machine, also one that has not come yet, and take its token back. Raises EnrolmentError and ApiError.

    One that is a node of the cluster already keeps its certificate: `muster node quarantine` ends its work.
    """
    found = api.find(enrolments_path(names, node), f"read the {ENROLMENT_KIND} of {node}")
    if found is None:
        raise EnrolmentError(f"{node}: it was given no token; there is nothing to refuse")
    enrolment = parse_enrolment(found)
    decide(api, names, enrolment, decision)
    withdraw(api, enrolment.spec.token)


def _address(entry: NodeAdmission) -> str | None:
    for one in entry.spec.identity.addresses:
        try:
            return str(ipaddress.ip_address(one))
        except ValueError:
            continue
    return None
