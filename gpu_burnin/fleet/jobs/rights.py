"""Who may do what in a namespace, from RBAC's objects, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpu_burnin.api.jobs import GROUP, JOBSET_GROUP

Object = Mapping[str, Any]
EVERYTHING = "everything"
_READ = frozenset({"get", "list", "watch"})
_WRITE = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_MAKE = frozenset({"create"})
_BATCH, _SETS, _APPS, _RBAC = "batch", JOBSET_GROUP, "apps", "rbac.authorization.k8s.io"
# Of Kubernetes and the fleet: what runs them, and no people.
_PARTS = ("system:", "muster:", "kube-apiserver")
_PEOPLE = ("system:masters", "system:authenticated", "system:unauthenticated", "system:serviceaccounts")


@dataclass(frozen=True)
class Ability:
    """A word for rules of these groups and resources with one of these verbs."""

    word: str
    groups: frozenset[str]
    resources: frozenset[str]
    verbs: frozenset[str]
    of_cluster: bool = False


def _ability(word: str, groups: str, resources: str, verbs: Iterable[str], *, of_cluster: bool = False) -> Ability:
    names = frozenset("" if group == "core" else group for group in groups.split())
    return Ability(word, names, frozenset(resources.split()), frozenset(verbs), of_cluster)


# In the order in which they are told. `of_cluster`: by a ClusterRoleBinding alone.
ABILITIES = (
    _ability("act as others", "core authentication.k8s.io", "users groups serviceaccounts uids", {"impersonate"}),
    _ability("give rights", _RBAC, "rolebindings roles clusterroles", {*_WRITE, "bind", "escalate"}),
    _ability("make tokens", "core", "serviceaccounts/token", _MAKE),
    _ability("reach pods by the kubelet", "core", "nodes/proxy", {"get", "create"}, of_cluster=True),
    _ability("exec", "core", "pods/exec pods/attach", {"get", "create"}),
    _ability("add containers", "core", "pods/ephemeralcontainers", {"update", "patch"}),
    _ability("port-forward", "core", "pods/portforward pods/proxy services/proxy", {"get", "create"}),
    _ability("read secrets", "core", "secrets", _READ),
    _ability("change secrets", "core", "secrets", _WRITE),
    _ability("run jobs", f"{_BATCH} {_SETS}", "jobs cronjobs jobsets", _MAKE),
    _ability("run pods", f"core {_APPS}", "pods deployments daemonsets replicasets statefulsets", _MAKE),
    _ability("end work", f"core {_BATCH} {_SETS}", "pods pods/eviction jobs jobsets", {"delete", "deletecollection"}),
    _ability("read logs", "core", "pods/log", {"get"}),
    _ability(
        "change",
        "core discovery.k8s.io networking.k8s.io",
        "configmaps endpoints endpointslices limitranges networkpolicies persistentvolumeclaims resourcequotas"
        " serviceaccounts services",
        _WRITE,
    ),
    _ability(
        "read",
        f"core {_APPS} {_BATCH} {_SETS} {GROUP} networking.k8s.io {_RBAC}",
        "configmaps daemonsets deployments events jobs jobsets localqueues networkpolicies persistentvolumeclaims pods"
        " replicasets rolebindings roles serviceaccounts services statefulsets workloads",
        _READ,
    ),
)


@dataclass(frozen=True)
class Grant:
    """What one binding gives a subject."""

    binding: str
    role: str
    can: tuple[str, ...]
    everywhere: bool


@dataclass(frozen=True)
class Holder:
    """A subject with rights in the namespace. `members`: of a group, None where they are not known here.

    `part`: of Kubernetes or the fleet itself.
    """

    kind: Literal["user", "group", "service account"]
    name: str
    grants: tuple[Grant, ...]
    members: tuple[str, ...] | None = None
    part: bool = False

    @property
    def can(self) -> tuple[str, ...]:
        """All of its words, each once; `everything` stands for all."""
        held = {word for grant in self.grants for word in grant.can}
        return (EVERYTHING,) if EVERYTHING in held else tuple(word for word in ORDER if word in held)


ORDER = (EVERYTHING, *(f"{one.word}{suffix}" for one in ABILITIES for suffix in ("", " (some, by name)")))


@dataclass(frozen=True)
class Rbac:
    """The objects: those of the namespace, and those of the cluster."""

    roles: Sequence[Object]
    role_bindings: Sequence[Object]
    cluster_roles: Sequence[Object]
    cluster_role_bindings: Sequence[Object]


def holders(rbac: Rbac, members: Mapping[str, Sequence[str]]) -> list[Holder]:
    """Who has rights in the namespace: people first, those with most before. `members`: names by group."""
    grants: dict[tuple[str, str], list[Grant]] = {}
    for binding, everywhere in [
        *((one, False) for one in rbac.role_bindings),
        *((one, True) for one in rbac.cluster_role_bindings),
    ]:
        grant = _grant(binding, rbac, everywhere=everywhere)
        for kind, name in _subjects(binding) if grant.can else ():
            grants.setdefault((kind, name), []).append(grant)
    found = [_holder(kind, name, tuple(held), members) for (kind, name), held in grants.items()]
    return sorted(found, key=lambda one: (one.part, _rank(one), one.kind, one.name))


def abilities(rules: Iterable[Object], *, everywhere: bool) -> tuple[str, ...]:
    """What rules allow in a namespace, in words; empty where they reach nothing in it."""
    rules = list(rules)
    if any(all("*" in (rule.get(key) or ()) for key in ("apiGroups", "resources", "verbs")) for rule in rules):
        return (EVERYTHING,)
    words = []
    for ability in ABILITIES:
        if ability.of_cluster and not everywhere:
            continue
        matching = [rule for rule in rules if _allows(rule, ability)]
        if matching:
            some = all(rule.get("resourceNames") for rule in matching)
            words.append(f"{ability.word} (some, by name)" if some else ability.word)
    return tuple(words)


def _allows(rule: Object, ability: Ability) -> bool:
    verbs, groups, resources = (frozenset(rule.get(key) or ()) for key in ("verbs", "apiGroups", "resources"))
    if not (verbs & ability.verbs or "*" in verbs) or not (groups & ability.groups or "*" in groups):
        return False
    subresources = {f"*/{name.partition('/')[2]}" for name in ability.resources if "/" in name}
    return bool(resources & ability.resources or resources & subresources or "*" in resources)


def _grant(binding: Object, rbac: Rbac, *, everywhere: bool) -> Grant:
    ref = binding.get("roleRef") or {}
    kind, name = str(ref.get("kind", "")), str(ref.get("name", ""))
    shown = f"{binding.get('kind') or ('ClusterRoleBinding' if everywhere else 'RoleBinding')} {_name(binding)}"
    roles = rbac.cluster_roles if kind == "ClusterRole" else rbac.roles
    role = next((one for one in roles if _name(one) == name), None)
    can = abilities(_rules(role, rbac.cluster_roles), everywhere=everywhere) if role else ()
    return Grant(shown, f"{kind} {name}", can, everywhere)


def _rules(role: Object, cluster_roles: Sequence[Object]) -> list[Object]:
    """Its rules; of one that gathers others, theirs, also before their controller has written them into it."""
    rules = list(role.get("rules") or ())
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
        wanted = (selector.get("matchLabels") or {}).items()
        for other in cluster_roles:
            labels = (other.get("metadata") or {}).get("labels") or {}
            if wanted and wanted <= labels.items():
                rules += other.get("rules") or ()
    return rules


def _subjects(binding: Object) -> Iterator[tuple[str, str]]:
    for subject in binding.get("subjects") or ():
        kind, name = str(subject.get("kind", "")), str(subject.get("name", ""))
        if kind == "ServiceAccount":
            namespace = subject.get("namespace") or (binding.get("metadata") or {}).get("namespace", "")
            yield "service account", f"{namespace}/{name}"
        elif kind in ("User", "Group"):
            yield kind.lower(), name


def _holder(kind: str, name: str, grants: tuple[Grant, ...], members: Mapping[str, Sequence[str]]) -> Holder:
    if kind == "user":
        return Holder("user", name, grants, part=name.startswith(_PARTS))
    if kind == "group":
        known = tuple(members[name]) if name in members else None
        return Holder("group", name, grants, known, part=name.startswith("system:") and not name.startswith(_PEOPLE))
    return replace(Holder("service account", name, grants), part=name.startswith(("kube-system/", "muster-system/")))


def _rank(holder: Holder) -> int:
    """Who may more comes first; what a name alone gives comes last."""
    return min((ORDER.index(word) for word in holder.can), default=len(ORDER))


def _name(item: Object) -> str:
    return str((item.get("metadata") or {}).get("name", ""))
