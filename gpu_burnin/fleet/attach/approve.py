"""Who a machine is, decided by a person: its agent's key is pinned in the ledger, with its Node and its machine id.

The ledger says how the key came to be believed (expected.py). What binds it: the enrolment was written with a token
that the cluster made for a pod on that very node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound, admissions_path
from gpu_burnin.admission.kubeconfig import current_cluster
from gpu_burnin.api.attached import ENROLLED_BY_AGENT, PROVISIONER_ACCOUNT
from gpu_burnin.api.enrolment import (
    Claim,
    Decision,
    Enrolment,
    EnrolmentError,
    claim_of,
    enrolments_path,
    parse_enrolment,
)
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import Identity, NodeAdmission, Proof, Spec, document
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach.expected import COMPARED, FIRST_USE, Compare, Expected, Trust, first_use
from gpu_burnin.fleet.attach.ledger import Ledger, read_ledger
from gpu_burnin.fleet.attach.settings import Settings, check_level
from gpu_burnin.fleet.attach.workloads import CONFIG
from gpu_burnin.fleet.image.enrolments import decide
from gpu_burnin.system.codec import to_json

# The least that the API server makes one for.
_TOKEN_S = 600
_FORBIDDEN = 403


@dataclass(frozen=True)
class Claimed:
    """A node, what its agent claims, and the decision, None before there is one; `why` is what cannot be believed.

    `trust` is how its key came to be believed, as the ledger has it; "" where it has another key, or none.
    """

    name: str
    claim: Claim | None
    decision: Decision | None
    why: str = ""
    trust: str = ""


def claims(api: KubeApi, names: Names) -> list[Claimed]:
    """All of them. Raises ApiError."""
    found = []
    ledger = {name: entry.spec.identity for name, entry in read_ledger(api, names).items()}
    for item in api.items(enrolments_path(names), "list the NodeEnrolments"):
        decision = None
        try:
            enrolment = parse_enrolment(item)
            decision = enrolment.spec.decision
            claim, why = claim_of(enrolment), ""
        except EnrolmentError as error:
            claim, why = None, str(error)
        name = str(item["metadata"]["name"])
        pinned = ledger.get(name)
        trust = pinned.trust if pinned is not None and claim is not None and pinned.host_key == claim.host_key else ""
        found.append(Claimed(name, claim, decision, why, trust))
    return sorted(found, key=lambda one: one.name)


def unapproved(api: KubeApi, names: Names, nodes: Iterable[str]) -> tuple[str, ...] | None:
    """Those of these nodes that nobody has approved; None where that cannot be read."""
    try:
        approved = {one.name for one in claims(api, names) if one.decision is not None and one.decision.approved}
    except GpuBurninError:
        return None
    return tuple(node for node in nodes if node not in approved)


def due(one: Claimed, expected: Expected | None) -> bool:
    """Whether it is decided on where no node is named: it waits, or was believed on first use and can be compared now.

    Pure.
    """
    if one.decision is None:
        return True
    return expected is not None and one.claim is not None and one.trust == FIRST_USE and expected.has_key(one.claim)


def level_for(api: KubeApi, given: str | None) -> str:
    """As least_level(), of the agents' configuration as it is. Who may not read that has to give a level, which is then
    held against nothing. Raises ApiError, and GpuBurninError for a configuration that cannot be used.
    """
    try:
        agents = _agents_level(api)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        if given is None:
            raise GpuBurninError(f"{error}; or give the --level of `muster attach`") from error
        agents = None
    return least_level(given, agents)


def _agents_level(api: KubeApi) -> str | None:
    """None where there is no configuration, as where Muster is not attached."""
    found = api.find(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{CONFIG}", "read the agents' configuration")
    if found is None:
        return None
    try:
        level = yaml.safe_load(found["data"]["agent.yaml"])["level"]
    except (KeyError, TypeError, yaml.YAMLError):
        level = None
    if level not in LEVEL_NAMES:
        raise GpuBurninError(
            f"{api.server}: ConfigMap {CONFIG} of {SYSTEM_NAMESPACE} has {level!r} as level in agent.yaml, and not one "
            f"of {', '.join(LEVEL_NAMES)}; use the muster that attached it, or run `muster attach` again"
        )
    return str(level)


def least_level(given: str | None, agents: str | None) -> str:
    """The level that lets a node in: the one that is given, else that of the agents' configuration. Pure.

    Raises GpuBurninError for one below the agents' own: a test of it is less than their configuration asks for, and no
    PASS comes of that on a node that has none yet.
    """
    own = agents or Settings.level
    level = own if given is None else given
    check_level(level)
    if agents is not None and LEVEL_NAMES.index(level) < LEVEL_NAMES.index(agents):
        raise GpuBurninError(
            f"--level {level}: the agents' own level is {agents}, so a test of less lets no node in; leave it out, "
            f"or first run `muster attach` again with --level {level}"
        )
    return level


def approve(
    api: KubeApi,
    names: Names,
    node: str,
    decision: Decision,
    level: str,
    *,
    ledger: Ledger,
    compare: Compare = first_use,
    allow_simulated: bool = False,
    again: bool = False,
) -> Claim:
    """Let a machine be this node. `api` is the provisioner's. `compare` says how its key came to be believed, which
    the decision and the ledger tell. `again`: its Node or key is another one than before. `ledger` is one for all nodes
    of a command, whose doubles() are to be looked at when all are approved.

    Raises EnrolmentError for what is in doubt, and ApiError. The ledger first: a run that is cut is only begun.
    """
    found = api.find(enrolments_path(names, node), f"read the NodeEnrolment of {node}")
    if found is None:
        raise EnrolmentError(f"{node}: its agent has not come yet; see that the pod of muster-node runs there")
    enrolment = parse_enrolment(found)
    claim = claim_of(enrolment)
    entries, there = ledger.current(node), api.node(node)
    if doubts := doubts_of(enrolment, claim, there, entries, again=again):
        raise EnrolmentError(" | ".join(doubts))
    trust = compare(claim)
    if trust.doubt:
        raise EnrolmentError(trust.doubt)
    identity = Identity(
        host_key=claim.host_key,
        machine_id=claim.machine_id,
        allow_simulated=allow_simulated,
        node_uid=str((there or {}).get("metadata", {}).get("uid", "")),
        trust=trust.how,
    )
    old = entries.get(node)
    if old is None:
        new = NodeAdmission(node, Spec(identity=identity, evidence=Proof(level=level)))
        made = document(new, names)
        ledger.write(new, lambda: api.create(admissions_path(names), made, f"create the NodeAdmission of {node}"))
    elif old.spec.identity != (changed := with_known(identity, old.spec.identity)):
        new = replace(old, spec=replace(old.spec, identity=changed))
        change = {"spec": {"identity": to_json(changed)}}
        path = admissions_path(names, node)
        ledger.write(new, lambda: api.merge(path, change, f"write the NodeAdmission of {node}"))
    if decided_anew(enrolment.spec.decision, trust, old.spec.identity if old else None):
        decide(api, names, enrolment, replace(decision, why=f"{decision.why}: {trust.why}"))
    return claim


def decided_anew(before: Decision | None, trust: Trust, old: Identity | None) -> bool:
    """Whether the decision is to be written, and not the one of `before` kept: what it says of a comparison would be
    less than is known now. Pure."""
    if before is None or not before.approved:
        return True
    nothing_new = trust.why == Trust().why or trust.why in before.why
    return not nothing_new and (trust.how == COMPARED or old is None or old.trust != COMPARED)


def with_known(new: Identity, old: Identity) -> Identity:
    """With what is known of the same key: that it was compared once, and the numbers that it has signed. Pure."""
    if old.host_key != new.host_key:
        return new
    return replace(
        new,
        trust=COMPARED if old.trust == COMPARED else new.trust,
        carried_sequence=old.carried_sequence,
        carried_report_sha256=old.carried_report_sha256,
    )


def doubts_of(
    enrolment: Enrolment,
    claim: Claim,
    node: Mapping[str, Any] | None,
    ledger: Mapping[str, NodeAdmission],
    *,
    again: bool,
) -> list[str]:
    """Why this machine may not be this node; a sentence each. Pure."""
    name, found = enrolment.name, []
    if enrolment.spec.token != ENROLLED_BY_AGENT:
        return [f"{name}: it enrolled with a token of a machine image; approve it with `muster image approve`"]
    if node is None:
        return [f"{name}: there is no Node of this name; wait until its kubelet has registered it"]
    reported = str(((node.get("status") or {}).get("nodeInfo") or {}).get("machineID", ""))
    if reported != claim.machine_id:
        found.append(
            f"{name}: its agent speaks of machine {claim.machine_id}, its kubelet of {reported or 'none'}; mount the "
            "host's /etc/machine-id into the agent's pod"
        )
    others = [(other, entry.spec.identity) for other, entry in ledger.items() if other != name]
    same = [one for one in others if one[1].host_key == claim.host_key or one[1].machine_id == claim.machine_id]
    for other, identity in sorted(same, key=lambda one: one[0]):
        if claim.host_key == identity.host_key:
            found.append(f"{name}: its key is that of {other}; remove the identity folder of the one that is a copy")
        if claim.machine_id == identity.machine_id:
            found.append(f"{name}: its machine id is that of {other}: it was renamed, or one is a copy of it")
    old = ledger.get(name)
    if old is not None and not again:
        uid = str(node["metadata"].get("uid", ""))
        if old.spec.identity.host_key != claim.host_key:
            found.append(f"{name}: it was approved with another key; find out why, then approve it with --again")
        elif old.spec.identity.node_uid not in ("", uid):
            found.append(f"{name}: its Node was made anew; see that it is the same machine, then --again")
    return found


def forget(api: KubeApi, names: Names, node: str) -> None:
    """Have the agent say anew who it is. The ledger stays until that is approved. Raises EnrolmentError."""
    try:
        api.delete(enrolments_path(names, node), f"remove the NodeEnrolment of {node}")
    except NotFound as error:
        raise EnrolmentError(f"{node}: it has not enrolled; there is nothing to forget") from error


def provisioner(api: KubeApi, kubeconfig: Path, clock: Callable[[], float] = time.monotonic) -> Callable[[], KubeApi]:
    """The API as who alone writes identities: with a token of minutes, which the audit log says you asked for.

    To be called for each node: a token that is old makes way for another one. Both raise ApiError.
    """
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{PROVISIONER_ACCOUNT}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_S},
    }
    made_s = clock()

    def made() -> KubeApi:
        try:
            answer = api.create(path, request, f"ask for a token of {PROVISIONER_ACCOUNT}")
        except NotFound as error:
            raise EnrolmentError(f"{error}: Muster is not attached here; run `muster attach`") from error
        # In no file: whoever kills this would leave it.
        return KubeApi(with_token(kubeconfig, str(answer["status"]["token"])))

    present = made()

    def current() -> KubeApi:
        nonlocal present, made_s
        if (asked_s := clock()) - made_s > _TOKEN_S / 2:
            present, made_s = made(), asked_s
        return present

    return current


def with_token(kubeconfig: Path, token: str) -> dict[str, Any]:
    """The kubeconfig's current cluster with this token. Raises GpuBurninError."""
    cluster = dict(current_cluster(kubeconfig)[1])
    authority = cluster.get("certificate-authority")
    if isinstance(authority, str):
        cluster["certificate-authority"] = str(kubeconfig.absolute().parent / authority)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
