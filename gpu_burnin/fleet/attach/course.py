"""Attaching and detaching: what is looked at first, what is written, and what is removed."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_burnin.admission.client import NODES, ApiError, Conflict, KubeApi, NotFound, Object, node_path
from gpu_burnin.admission.gate_probe.attached import SAYS, changed_at, refuses, taints
from gpu_burnin.admission.objects import path_of, shown_name, write_objects
from gpu_burnin.admission.provision import define
from gpu_burnin.admission.webhook.certificate import Pair, renew_authority, usable
from gpu_burnin.api.attached import WEBHOOK_CA, Mode
from gpu_burnin.api.names import CONDITION, GATE_PROBE_NODE, LABEL_PREFIX, LEASE, PAUSE, SYSTEM_NAMESPACE, Names
from gpu_burnin.fleet.attach.ability import Need, Refused, lacking, on, refuse_unable, words
from gpu_burnin.fleet.attach.approve import unapproved
from gpu_burnin.fleet.attach.discover import (
    Capabilities,
    Found,
    capabilities,
    changes_of,
    look,
    present,
    refuse_others,
    refuse_release,
    release,
)
from gpu_burnin.fleet.attach.manifests import Parts, parts, tainted_labels
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, WEBHOOK_TAINTS, Settings

AUTO = "auto"
AUTHORITY_FILES = ("ca.crt", "ca.key")
_SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{WEBHOOK_CA}"
_MOST_TRIES = 5
# An API server goes by a policy until it has seen that it is gone.
_GATE_FORGOTTEN_S = _GATE_SEEN_S = 30.0
_FORBIDDEN = 403
_RENDER, _ANOTHER = "or give one the files of --render", "or have one do this"


@dataclass(frozen=True)
class Written:
    """What was written and removed (or would be), and what was found."""

    capabilities: Capabilities
    found: Found
    settings: Settings
    written: tuple[str, ...]
    removed: tuple[str, ...]
    # What was attached otherwise before: a sentence each.
    changes: tuple[str, ...] = ()
    # Of a look alone: what doing it takes that the user may not, in words; "" for nothing.
    lacking: str = ""
    # Whether the webhook taints a GPU Node already; None where none is to, or nobody asked.
    tainted: bool | None = None
    # GPU Nodes that nobody has approved; None where nobody asked, or that cannot be read.
    unapproved: tuple[str, ...] | None = None


def attach(api: KubeApi, settings: Settings, now: datetime, *, despite: bool = False, apply: bool = True) -> Written:
    """Have the cluster attached so. `despite`: enforce though DaemonSets do not tolerate the taint. Without `apply` it
    takes the rights to look alone.

    Raises Refused, with nothing written, and ApiError.
    """
    can = capabilities(api)
    if not can.gate:
        raise Refused(f"{api.server} ({can.version}): {can.missing[0]}")
    settings = choose_taints(settings, can)
    if settings.monitoring and not can.monitoring:
        raise Refused(f"{api.server}: it has no PodMonitor and PrometheusRule; leave --monitoring out")
    first, of_all = parts(settings, {}), variants(settings, can)
    missing = _refuse_or_name(api, needs(first, of_all), first.rights, _RENDER, apply=apply)
    obsolete = [one for one in of_all if path_of(one) not in set(map(path_of, first.all()))]
    obsolete = _present(api, obsolete, missing)
    missing += _refuse_or_name(api, on(obsolete, "delete"), (), _RENDER, apply=apply)
    helm = release(api)
    if apply:
        refuse_release(api, helm, f"change it with `helm upgrade`, or `helm uninstall {helm}` first")
    # What Helm has made has its mark, and not ours.
    refuse_others(api, first.definitions if helm else cluster_wide(of_all))
    found, changes = look(api, settings), changes_of(present(api), settings)
    if settings.enforcing and found.intolerant and not despite:
        raise Refused(
            f"{api.server}: these DaemonSets do not tolerate {settings.names.preflight}:NoSchedule and would not come "
            f"to a new GPU Node, which its burn-in may need: {', '.join(found.intolerant)}; give those of driver, "
            "network and device plugin the toleration, and then --despite-daemonsets for those that can wait"
        )
    tainted, waiting = None, None
    if apply:
        made = parts(settings, _authority(api, now) if _webhook(settings) else {})
        _write(api, made, settings.names)
        for one in obsolete:
            _remove(api, one)
        _await_gate(api, settings)
        tainted = webhook_taints(api, settings)
        waiting = unapproved(api, settings.names, found.nodes)
    named, removed = (tuple(map(shown_name, of)) for of in (first.all(), obsolete))
    return Written(can, found, settings, named, removed, changes, words(missing), tainted, waiting)


def webhook_taints(api: KubeApi, settings: Settings) -> bool | None:
    """Whether the webhook taints a GPU Node now, None where none is to or that cannot be asked: all is written by then,
    and its first pods take a moment, so neither is an error."""
    labels = tainted_labels(settings)
    try:
        return taints(api, labels) if labels else None
    except (ApiError, Conflict):
        return None


def _refuse_or_name(
    api: KubeApi, of: Sequence[Need], roles: Sequence[Object], instead: str, *, apply: bool
) -> list[Need]:
    """Raise Refused where the user may not; who only looks needs the rights to read, of all but Secrets, and what else
    doing it takes is returned."""
    reads = [one for one in of if one.verb in ("get", "list") and one.resource != "secrets"]
    refuse_unable(api, of if apply else reads, roles=roles if apply else (), instead=instead)
    return [] if apply else lacking(api, of, roles)


def _present(api: KubeApi, of: Sequence[Object], missing: Sequence[Need]) -> list[Object]:
    """Those that are there, as far as the user may read them."""
    readable = [one for one in of if not set(on([one], "get")) & set(missing)]
    return [one for one in readable if api.find(path_of(one), f"read {shown_name(one)}") is not None]


def needs(first: Parts, of_all: Sequence[Object]) -> list[Need]:
    """What attaching takes but for handing out rights. Applying is a patch, and a create of what is not there. Pure."""
    return [
        *(Need("list", group, resource) for group, resource in (("", "nodes"), ("", "pods"), ("apps", "daemonsets"))),
        *on(of_all, "get"),
        *on(first.all(), "create", "patch"),
        *on(first.definitions, "update"),
        # They are served when a list is answered.
        *(Need("list", one["spec"]["group"], one["spec"]["names"]["plural"]) for one in first.definitions),
        *on([*first.gate, *first.taint], "update"),
        # The gate is tried by a dry run.
        *(Need(verb, "", "nodes", name=GATE_PROBE_NODE) for verb in ("create", "patch")),
    ]


def choose_taints(settings: Settings, can: Capabilities) -> Settings:
    """By policy where the cluster has it, which needs no certificate and cannot be away."""
    if settings.taints_by == AUTO:
        return replace(settings, taints_by=POLICY_TAINTS if can.taint_policy else WEBHOOK_TAINTS)
    if settings.taints_by == POLICY_TAINTS and not can.taint_policy:
        raise Refused(f"{can.version} has no MutatingAdmissionPolicy in its v1 API; leave --taint-by out")
    return settings


def authority(now: datetime, found: Mapping[str, str] | None = None) -> dict[str, str]:
    """The webhook's, as the Secret has it: the one that was found as long as it can stay, else another one."""
    old = Pair(*((found or {}).get(key, "") for key in AUTHORITY_FILES))
    made = old if usable(old, now) else renew_authority(old, now, "muster-webhook")
    return dict(zip(AUTHORITY_FILES, (made.certificate, made.key), strict=True))


def variants(settings: Settings, can: Capabilities) -> list[Object]:
    """All objects that attach may have written in such a cluster, whatever its settings were."""
    found: dict[str, Object] = {}
    for by in (WEBHOOK_TAINTS, POLICY_TAINTS) if can.taint_policy else (WEBHOOK_TAINTS,):
        of = replace(settings, mode=Mode.ENFORCING, taints_by=by, monitoring=can.monitoring)
        found |= {path_of(one): one for one in parts(of, {}).all()}
    return list(found.values())


def cluster_wide(objects: Sequence[Object]) -> list[Object]:
    """Those of no namespace, whose names somebody else may have. Pure."""
    return [one for one in objects if "namespace" not in one["metadata"]]


def detach(
    api: KubeApi,
    settings: Settings,
    *,
    apply: bool = True,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Remove everything; the names of what was there. Nodes are left as they were. Safe to run again.

    First what adds taints, then the rights of the admitter, so that it can put nothing back; the gate, then the taints
    that it holds. Without `apply` it takes the rights to look alone; `say` gets what else it would take. Raises Refused
    and ApiError.
    """
    of_namespace = [_in_system("coordination.k8s.io/v1", "Lease", LEASE), _in_system("v1", "ConfigMap", PAUSE)]
    of_all = [*variants(settings, capabilities(api)), *of_namespace]
    missing = _refuse_or_name(api, [*on(of_all, "get"), Need("list", "", "nodes")], (), _ANOTHER, apply=apply)
    helm = release(api)
    refuse_release(api, helm, f"`helm uninstall {helm}` first, then this")
    there = _present(api, of_all, missing)
    refuse_others(api, cluster_wide(there))
    nodes = [
        str(node["metadata"]["name"]) for node in api.items(NODES, "list the nodes") if traces(node, settings.names)
    ]
    of_nodes = [Need("patch", "", resource) for resource in ("nodes", "nodes/status")] if nodes else []
    missing += _refuse_or_name(api, [*on(there, "delete"), *of_nodes], (), _ANOTHER, apply=apply)
    if missing:
        say(f"lacking: you may not {words(missing)}; have an admin do this")
    if apply:
        order = sorted(there, key=_removal)
        before = [one for one in order if _removal(one) < _KEPT_TO_THE_END]
        for one in before:
            _remove(api, one)
        until_s = clock() + _GATE_FORGOTTEN_S
        for name in nodes:
            while not _clean(api, name, settings.names, last=clock() >= until_s):
                sleep(0.5)
        for one in order[len(before) :]:
            _remove(api, one)
        _await_end(api, [one for one in there if one["kind"] == "CustomResourceDefinition"], clock, sleep)
    return (*(shown_name(one) for one in sorted(there, key=_removal)), *(f"Node/{name} (marks)" for name in nodes))


def traces(node: Object, names: Names) -> list[dict[str, Any]]:
    """The JSON Patch operations that take from a Node all that is Muster's, but for its condition. Pure."""
    metadata, prefix = node["metadata"], f"{names.preflight.partition('/')[0]}/"
    found: list[dict[str, Any]] = []
    taints = (node.get("spec") or {}).get("taints") or []
    kept = [taint for taint in taints if not str(taint.get("key")).startswith(prefix)]
    if kept != taints:
        found.append({"op": "add", "path": "/spec/taints", "value": kept} if kept else _gone("/spec/taints"))
    for place, of in (("labels", LABEL_PREFIX), ("annotations", prefix)):
        keys = [key for key in metadata.get(place) or {} if key.startswith(of)]
        found += [_gone(f"/metadata/{place}/{key.replace('~', '~0').replace('/', '~1')}") for key in keys]
    return found or ([_gone("")] if _condition(node) is not None else [])


_ORDER = {
    "MutatingWebhookConfiguration": 0,
    "MutatingAdmissionPolicyBinding": 0,
    "MutatingAdmissionPolicy": 1,
    "ClusterRoleBinding": 2,
    "RoleBinding": 2,
    "ValidatingAdmissionPolicyBinding": 3,
    "ValidatingAdmissionPolicy": 4,
    "Deployment": 5,
    "DaemonSet": 5,
    "Namespace": 9,
}
_KEPT_TO_THE_END = 6


def _removal(one: Object) -> int:
    return _ORDER.get(str(one["kind"]), 7 if "namespace" in one["metadata"] else 6 if "Role" in one["kind"] else 8)


def _clean(api: KubeApi, name: str, names: Names, *, last: bool) -> bool:
    """Whether it is done; False where the gate that is gone still holds, which raises at the `last` try."""
    for _ in range(_MOST_TRIES):
        node = api.node(name)
        if node is None:
            return True
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
        patch = [one for one in traces(node, names) if one["path"]]
        try:
            if patch:
                node = api.patch(node_path(name), [test, *patch], f"clean node {name}")
            place = _condition(node)
            if place is not None:
                test = {**test, "value": node["metadata"]["resourceVersion"]}
                gone = _gone(f"/status/conditions/{place}")
                api.patch(f"{node_path(name)}/status", [test, gone], f"clean the status of node {name}")
            return True
        except Conflict:
            continue
        except ApiError as error:
            if error.status != _FORBIDDEN or last:
                raise
            return False
    raise Refused(f"{name}: it kept changing while it was cleaned; run `muster detach` again")


def _condition(node: Object) -> int | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((place for place, one in enumerate(conditions) if one.get("type") == CONDITION), None)


def _gone(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def _remove(api: KubeApi, one: Object) -> None:
    try:
        api.delete(path_of(one), f"remove {shown_name(one)}")
    except NotFound:
        return


def _await_end(
    api: KubeApi, definitions: Sequence[Object], clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """A definition ends when the last object of its kind has. Raises ApiError, and names those that do not."""
    until_s = clock() + _GATE_FORGOTTEN_S
    for one in definitions:
        while api.find(path_of(one), f"read {shown_name(one)}") is not None:
            if clock() > until_s:
                raise ApiError(f"{api.server}: {shown_name(one)} does not end{_held(api, one)}")
            sleep(0.5)


def _held(api: KubeApi, definition: Object) -> str:
    spec = definition["spec"]
    [version] = [one["name"] for one in spec["versions"] if one["storage"]]
    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    held = [
        f"{one['metadata']['name']} ({', '.join(finalizers)})"
        for one in api.items(path, f"list what is left of {shown_name(definition)}")
        if (finalizers := one["metadata"].get("finalizers"))
    ]
    return f": somebody's finalizers hold {'; '.join(held)}; remove them, and run `muster detach` again" if held else ""


def _await_gate(api: KubeApi, settings: Settings) -> None:
    """An API server goes by a policy seconds after it was written. Raises ApiError where it never does."""
    until_s = time.monotonic() + _GATE_SEEN_S
    while not refuses(api, enforcing=settings.enforcing):
        if time.monotonic() > until_s:
            raise ApiError(
                f"{api.server}: the gate was written and does not refuse after {_GATE_SEEN_S:g} s; look at the "
                "status of the ValidatingAdmissionPolicies muster-*, and run `muster attach` again"
            )
        time.sleep(0.5)


def _write(api: KubeApi, made: Parts, names: Names) -> None:
    write_objects(made.namespace, api, lambda: api, apply=True)
    write_objects(made.definitions, api, lambda: api, apply=True)
    define(api, names, apply=True, enrolments=True)
    rest = [*made.rights, *made.config, *made.gate, *made.taint, *made.workloads, *made.monitoring]
    write_objects(rest, api, lambda: api, apply=True)
    for one in (*made.gate, *made.taint):
        _take_back(api, one)


def _take_back(api: KubeApi, one: Object) -> None:
    """Remove what somebody has added to an object of the gate, such as an exception, which applying it leaves."""
    found = api.find(path_of(one), f"read {shown_name(one)}")
    if found is not None and changed_at(found, one):
        said = {key: one[key] for key in SAYS if key in one}
        api.replace(path_of(one), {**found, **said}, f"put {shown_name(one)} back")


def _webhook(settings: Settings) -> bool:
    return settings.taints_by == WEBHOOK_TAINTS


def _authority(api: KubeApi, now: datetime) -> Mapping[str, str]:
    """The webhook's, as it is where it can stay."""
    found = (api.find(_SECRET, "read the webhook's authority") or {}).get("data") or {}
    try:
        texts = {key: base64.b64decode(found[key]).decode("ascii") for key in AUTHORITY_FILES}
    except (KeyError, binascii.Error, UnicodeDecodeError):
        texts = {}
    return authority(now, texts)


def _in_system(version: str, kind: str, name: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}}
