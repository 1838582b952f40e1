"""What machines say of themselves, and deciding on it: nothing that a machine says is taken for more than a claim."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """Nodes of the ledger by the host key that is pinned, and by the machine id."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, entry in sorted(self.entries.items()):
            for one in (entry.spec.identity.host_key, entry.spec.identity.machine_id):
                found[one].append(name)
        return found

    @cached_property
    def claimants(self) -> Mapping[str, list[str]]:
        """Nodes by the host key, and by the machine id, that somebody said with their token: whoever it was."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, enrolment in sorted(self.enrolments.items()):
            with suppress(EnrolmentError):
                claim = claim_of(enrolment, lambda *_: True)
                for one in (claim.host_key, claim.machine_id):
                    found[one].append(name)
        return found


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
    for other in _others(known.owners, name, claim.host_key):
        found.append(f"{name}: its host key is that of {other}; make new ones on it (rm /etc/ssh/ssh_host_*)")
    for other in _others(known.owners, name, claim.machine_id):
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
    """Other machines that enrolled and are this one, or a copy of it: not who only says so. Pure but for signatures."""
    for other in _others(known.claimants, enrolment.name, claim.host_key, claim.machine_id):
        with suppress(EnrolmentError):
            claim_of(known.enrolments[other])
            yield (
                f"{enrolment.name}: {other} enrolled with the same host key or machine id; one is a copy of "
                "the other's disk, or somebody has both tokens: refuse both"
            )


def _others(nodes: Mapping[str, list[str]], name: str, *of: str) -> list[str]:
    """The nodes of one of these, but for this one."""
    return sorted({other for one in of for other in nodes.get(one, ())} - {name})


def answering(known: Known, nodes: Iterable[str], port: int = kh.DEFAULT_PORT) -> Mapping[str, str]:
    """Why the key that answers at a node's address is not its machine's, "" where it is; nothing of a node that has no
    claim, which approve() says. All are asked at the same time: one that is silent holds up no other.

    That is what trust at first contact means: whoever is at the address is the node. No login is needed.
    """
    # SSH is the image's: who approves the machines of an attached cluster has none.
    from gpu_burnin.fleet.ssh import probe

    found, claims, targets = dict[str, str](), dict[str, Claim](), list[Target]()
    for node in nodes:
        with suppress(KeyError, EnrolmentError):
            address = _address(known.entries[node])
            # Who signed it, approve() asks.
            claims[node] = claim_of(known.enrolments[node], lambda *_: True)
            if address is None:
                found[node] = f"{node}: the ledger has no address of it; run site.yml"
            else:
                targets.append(Target(node, address, port, fingerprint=claims[node].fingerprint))
    for result in probe(targets, known.hosts.path, write=False):
        node = result.target.name
        found[node] = "; ".join(map(str, result.problems)) or f"{node}: another key answers at its address"
        if result.key is not None and result.key.line == claims[node].host_key:
            found[node] = ""
    return found


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
    """Refuse a machine, also one that has not come yet, whose token is taken back. Raises EnrolmentError and ApiError.

    One that has come reads with its token that it was refused, and why, until the token's end. What else the API server
    lets the token do until then lets nobody in: read enrolments and certificate requests, and make the one request of
    its name, which nobody approves. Static policies see no other object, so they cannot hold it against the decision.
    One that is a node of the cluster already keeps its certificate: `muster node quarantine` ends its work.
    """
    found = api.find(enrolments_path(names, node), f"read the {ENROLMENT_KIND} of {node}")
    if found is None:
        raise EnrolmentError(f"{node}: it was given no token; there is nothing to refuse")
    enrolment = parse_enrolment(found)
    decide(api, names, enrolment, decision)
    if not enrolment.spec.claim:
        withdraw(api, enrolment.spec.token)


def _address(entry: NodeAdmission) -> str | None:
    for one in entry.spec.identity.addresses:
        try:
            return str(ipaddress.ip_address(one))
        except ValueError:
            continue
    return None
