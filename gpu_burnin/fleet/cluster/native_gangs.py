"""What Kubernetes' own gangs have made in a cluster: objects of one version of their API, which one minor serves."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_burnin.admission.client import METADATA_PAGE, KubeApi, NotFound

GANGS_API = "scheduling.k8s.io/v1alpha2"
_KINDS = {"PodGroup": "podgroups", "Workload": "workloads"}
_NAMED = 3


def gangs_left(api: KubeApi) -> str:
    """How many objects there are of each kind, and the names of a few (NAMESPACE/NAME).

    Empty where there are none, and where no server serves them. Raises ApiError.
    """
    found = {kind: _names(api, plural) for kind, plural in _KINDS.items()}
    return " and ".join(_in_words(kind, names) for kind, names in found.items() if names)


def _names(api: KubeApi, plural: str) -> list[str]:
    try:
        items = [*api.items(f"/apis/{GANGS_API}/{plural}", f"list the {plural} of {GANGS_API}", answer=METADATA_PAGE)]
    except NotFound:
        return []
    return sorted(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in items)


def _in_words(kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{len(names):,} {kind}{'s' if len(names) > 1 else ''} ({', '.join(names[:_NAMED])}{more})"
