"""Objects written again as they are, so that the API server stores them as it would store new ones.

The API server leaves out a write that changes nothing, but not where the stored bytes are under a key that does not
write any more (apiserver/pkg/storage/etcd3/store.go, GuaranteedUpdate: `stale`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from gpu_burnin.admission.client import METADATA_PAGE, ApiError, Conflict, Gone, KubeApi, NotFound, Object


@dataclass(frozen=True)
class Rewritten:
    """How many objects of a kind were written, and how many were left to who changed or removed them meanwhile."""

    written: int
    left: int


def count(api: KubeApi, resource: str) -> int:
    """About how many objects of a kind there are. Raises ApiError, also for a user who may not read them."""
    name, _, group = resource.partition(".")
    page = api.get(f"{_base(api, group)}/{name}?limit=1", f"list {resource}")
    return len(page.get("items") or []) + int((page.get("metadata") or {}).get("remainingItemCount", 0))


def rewrite(api: KubeApi, resource: str, on_done: Callable[[int], None] = lambda more: None) -> Rewritten:
    """Write each object of a kind (`secrets`, `widgets.example.com`) back in the version that was read.

    One that has changed or gone meanwhile is left to whoever did that. `on_done` is told of each. Raises ApiError.
    """
    name, _, group = resource.partition(".")
    base = _base(api, group)
    written = left = 0
    for path in _paths(api, base, name, resource):
        what = f"{resource}/{path.rpartition('/')[2]}"
        try:
            api.replace(path, api.get(path, f"read {what}"), f"write {what}")
            written += 1
        except (Conflict, NotFound):
            left += 1
        on_done(1)
    return Rewritten(written, left)


def _paths(api: KubeApi, base: str, name: str, resource: str) -> list[str]:
    """Where every object is. All pages are read before the first write: a page's successor is asked for within seconds.

    Who lists while etcd is compacted lists anew. An object that comes later is under the new key.
    """

    def listed() -> list[str]:
        found = api.items(f"{base}/{name}", f"list {resource}", answer=METADATA_PAGE)
        return [_path(base, name, one) for one in found]

    try:
        return listed()
    except Gone:
        return listed()
    except NotFound as error:
        fix = "correct kube_apiserver_encrypted_resources in the inventory"
        raise ApiError(f"{api.server}: there is no resource {resource}; {fix}") from error


def _base(api: KubeApi, group: str) -> str:
    if not group:
        return "/api/v1"
    served = api.get(f"/apis/{quote(group)}", f"look up the API group {group}")
    return f"/apis/{served['preferredVersion']['groupVersion']}"


def _path(base: str, name: str, one: Object) -> str:
    metadata = one["metadata"]
    where = f"{base}/namespaces/{quote(metadata['namespace'])}" if metadata.get("namespace") else base
    return f"{where}/{name}/{quote(metadata['name'], safe='')}"
