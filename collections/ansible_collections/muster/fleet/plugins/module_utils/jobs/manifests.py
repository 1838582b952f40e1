"""What comes with Kueue and JobSet for the cluster: webhooks on the API servers' disks, and rights.

Both are made of the objects in the mirror's NAME-manifests.json (gpu_burnin.fleet.mirror.manifests). Pure; for the
controller.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

Object = Mapping[str, Any]
# An API server takes objects of this ending from its disk alone, and from its disk no others.
_STATIC = ".static.k8s.io"
# The admission plugin whose folder each kind is for.
PLUGINS: Mapping[str, str] = {
    "MutatingWebhookConfiguration": "MutatingAdmissionWebhook",
    "ValidatingWebhookConfiguration": "ValidatingAdmissionWebhook",
}
_PODS = "/pods"
# Verbs and resources that make everything reachable.
_TO_NOBODY = frozenset({"*", "impersonate", "bind", "escalate"})


def static_webhooks(
    objects: Sequence[Object],
    name: str,
    url: str,
    ca: str,
    *,
    team_label: str = "",
    of_teams: Collection[str] = (),
    groups: Collection[str] = (),
    pod_label: str = "",
) -> dict[str, str]:
    """For each admission plugin the file for its folder on an API server's disk, as JSON.

    A program beside the API server answers at `url`, with a certificate of `ca` (PEM). It is asked about the resources
    `of_teams` (group/resource, such as batch/jobs) in namespaces with `team_label`, about all of the API groups
    `groups`, and about pods with `pod_label`; its other webhooks are left out. Raises FleetError for one of these that
    it has no webhook of: another version of the program may name it differently.
    """
    bundle = base64.b64encode(ca.encode()).decode()
    found: set[str] = set()

    def kept(webhook: Object) -> dict[str, Any] | None:
        resources = set(_resources(webhook))
        if resources <= set(of_teams):
            selector = {"namespaceSelector": _with_label(team_label)}
        elif resources == {_PODS} and pod_label:
            selector = {"objectSelector": _with_label(pod_label)}
        elif all(one.partition("/")[0] in groups for one in resources):
            selector = {}
        else:
            return None
        found.update(resources, (one.partition("/")[0] for one in resources))
        path = webhook["clientConfig"]["service"]["path"]
        return {**webhook, **selector, "clientConfig": {"url": f"{url}{path}", "caBundle": bundle}}

    files = {
        PLUGINS[item["kind"]]: _text(
            {
                "apiVersion": item["apiVersion"],
                "kind": item["kind"],
                "metadata": {"name": f"muster-{name}{_STATIC}"},
                "webhooks": [one for one in map(kept, item["webhooks"]) if one is not None],
            }
        )
        for item in objects
        if item["kind"] in PLUGINS
    }
    if lacking := sorted({*of_teams, *groups, *([_PODS] if pod_label else [])} - found):
        raise FleetError(
            f"the manifests of {name} have no webhook of {', '.join(lacking)}; choose a version of {name} that Muster "
            "knows (docs/operations/kueue.md)"
        )
    return files


def module_rights(
    objects: Sequence[Object], groups: Collection[str], without: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The rules of a program's own ClusterRole that are of these API groups.

    Less the resources `without` (group/resource).

    Raises FleetError without a ClusterRole, and for one that may impersonate, bind, escalate, or anything (a `*`).
    """
    roles = [item for item in objects if item["kind"] == "ClusterRole"]
    if not roles:
        raise FleetError("the manifests have no ClusterRole; fill the mirror again")
    rules = [rule for role in roles for rule in _granted(role["rules"], groups, without)]
    for rule in rules:
        if asked := sorted(_TO_NOBODY & {*rule["verbs"], *rule["resources"]}):
            raise FleetError(
                f"the manifests ask for {', '.join(asked)} on {', '.join(rule['resources'])}, which would make the "
                "program as good as an admin; choose another version"
            )
    return rules


def _with_label(label: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": label, "operator": "Exists"}]}


def _text(item: Object) -> str:
    return json.dumps(item, indent=1, sort_keys=True) + "\n"


def _resources(webhook: Object) -> Iterator[str]:
    """Group/resource of all that it is asked about; a subresource counts as its resource."""
    for rule in webhook["rules"]:
        yield from (f"{group}/{one.partition('/')[0]}" for group in rule["apiGroups"] for one in rule["resources"])


def _granted(rules: Sequence[Object], groups: Collection[str], without: Collection[str]) -> Iterator[dict[str, Any]]:
    for rule in rules:
        of = [group for group in rule.get("apiGroups", ()) if group in groups]
        resources = [one for one in rule.get("resources", ()) if not {f"{group}/{one}" for group in of} & set(without)]
        if of and resources:
            yield {**rule, "apiGroups": of, "resources": resources}
