"""What the user of a kubeconfig may do, asked of the API server before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.admission.client import ApiError, KubeApi, Object
from gpu_burnin.admission.objects import path_of
from gpu_burnin.errors import EXIT_FAIL, GpuBurninError

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_RBAC = "rbac.authorization.k8s.io"
_ROLES = {"ClusterRole": "clusterroles", "Role": "roles"}


class Refused(GpuBurninError):
    """The cluster is not one that can be attached so, and nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_FAIL)


@dataclass(frozen=True)
class Need:
    """A verb on a resource: everywhere or in one namespace, of all names or of one."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def attributes(self) -> dict[str, str]:
        """As a SelfSubjectAccessReview has them."""
        resource, _, sub = self.resource.partition("/")
        of = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": sub}
        return {key: text for key, text in {**of, "namespace": self.namespace, "name": self.name}.items() if text}


def on(objects: Iterable[Object], *verbs: str) -> list[Need]:
    """These verbs on each of these objects. Pure."""
    found = []
    for one in objects:
        parts, metadata = path_of(one).split("/"), one["metadata"]
        group = one["apiVersion"].rpartition("/")[0]
        of = Need("", group, parts[-2], metadata.get("namespace", ""), metadata["name"])
        found += [replace(of, verb=verb) for verb in verbs]
    return found


def handed_out(roles: Iterable[Object]) -> Iterator[tuple[Object, list[Need]]]:
    """Each role with what its holder may do: nobody gives away by RBAC what he may not himself. Pure."""
    for role in roles:
        if role["kind"] in _ROLES:
            namespace = role["metadata"].get("namespace", "")
            yield (
                role,
                [
                    Need(verb, group, resource, namespace, name)
                    for rule in role["rules"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                    for name in rule.get("resourceNames", [""])
                ],
            )


def refuse_unable(api: KubeApi, needs: Sequence[Need], *, roles: Sequence[Object] = (), instead: str) -> None:
    """Raise Refused where the user may not do one of these, or hand out these roles; each lacking right is named.

    `instead` ends the sentence. Raises ApiError where it cannot be asked.
    """
    if found := lacking(api, needs, roles):
        who = _user(api)
        raise Refused(
            f"{api.server}: you ({who}) may not {words(found)}, so nothing was written; have an admin's role, by "
            f"`kubectl create clusterrolebinding {_word(who)} --clusterrole=cluster-admin --user={who}`, {instead}"
        )


def lacking(api: KubeApi, needs: Sequence[Need], roles: Sequence[Object] = ()) -> list[Need]:
    """What the user may not of these, or of handing out these roles. Raises ApiError where it cannot be asked."""
    allowed: dict[Need, bool] = {}

    def may(need: Need) -> bool:
        # Of all names first, which is the answer for most; a right of one name is one too.
        wider = replace(need, name="")
        return _may(api, wider, allowed) or (bool(need.name) and _may(api, need, allowed))

    found = [need for need in needs if not may(need)]
    for role, held in handed_out(roles):
        if not all(map(may, held)):
            of = Need("", _RBAC, _ROLES[role["kind"]], role["metadata"].get("namespace", ""), role["metadata"]["name"])
            found += [need for verb in ("escalate", "bind") if not may(need := replace(of, verb=verb))]
    return found


def _may(api: KubeApi, need: Need, known: dict[Need, bool]) -> bool:
    if need not in known:
        review: dict[str, Any] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": need.attributes()},
        }
        answer = api.create(_REVIEWS, review, "ask what you may do")
        known[need] = bool((answer.get("status") or {}).get("allowed"))
    return known[need]


def _user(api: KubeApi) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = api.create(_WHO, review, "ask who this is")
    except ApiError:
        return "USER"
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username", "USER"))


def _word(user: str) -> str:
    """A part of the name of an object."""
    return "".join(one if one.isalnum() and one.isascii() else "-" for one in user.lower()).strip("-") or "muster"


def words(needs: Sequence[Need]) -> str:
    """By resource, so that one that is wholly forbidden is one word. Pure."""
    by: dict[tuple[str, str], dict[str, None]] = {}
    for need in needs:
        named = f"{need.resource}.{need.group}" if need.group else need.resource
        by.setdefault((named, need.namespace), {})[need.verb] = None
    parts = [
        f"{'/'.join(verbs)} {named}{f' in {namespace}' if namespace else ''}"
        for (named, namespace), verbs in sorted(by.items())
    ]
    return ", ".join(parts)
