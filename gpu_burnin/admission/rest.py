"""What stands beside a node's entry in the ledger, its enrolment and its heartbeat, and goes with it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpu_burnin.admission.client import Conflict, KubeApi, NotFound, Object
from gpu_burnin.api.enrolment import enrolments_path
from gpu_burnin.api.heartbeat import heartbeats_path
from gpu_burnin.api.names import ENROLMENT_KIND, HEARTBEAT_KIND, Names


@dataclass(frozen=True)
class Left:
    """An enrolment or a heartbeat, as it was read. `life`: of a heartbeat the boot, and the start of the process."""

    path: str
    version: str
    life: tuple[object, ...] = ()

    @classmethod
    def of(cls, path: str, found: Object) -> Left:
        """What was read from there."""
        spec = found.get("spec") or {}
        life = tuple(spec[key] for key in ("bootID", "startedAt") if key in spec)
        return cls(path, str(found["metadata"].get("resourceVersion", "")), life)


Rest = tuple[Left, ...]


def rest_of(api: KubeApi, names: Names, nodes: Collection[str], *, enrolments: bool) -> Mapping[str, Rest]:
    """What goes with the entries of these nodes. A token without its enrolment lets nobody in. Raises ApiError."""
    found: dict[str, Rest] = dict.fromkeys(nodes, ())
    kinds = [(enrolments_path, ENROLMENT_KIND)] * enrolments + [(heartbeats_path, HEARTBEAT_KIND)]
    for path_of, kind in kinds if nodes else ():
        for one in api.items(path_of(names), f"list the {kind}s"):
            if (name := str(one["metadata"]["name"])) in found:
                found[name] += (Left.of(path_of(names, name), one),)
    return found


def remove_rest(api: KubeApi, rest: Rest, what: str) -> Rest:
    """Remove what goes with an entry that is removed, each only as it was read; those that stay. Raises ApiError.

    One that has changed, or was made anew, is of a machine that says anew who it is; but see renewed().
    """
    stay = list[Left]()
    for one in rest:
        try:
            with contextlib.suppress(NotFound):
                api.delete(one.path, what, version=one.version)
        except Conflict:
            stay.append(one)
    return tuple(stay)


def renewed(api: KubeApi, names: Names, node: str, stay: Rest) -> Rest:
    """The heartbeat of those, as it is now, where the process that had it has only renewed it, as each minute.

    By a list, which the provisioner may make. Raises ApiError.
    """
    lives = [one.life for one in stay if one.life]
    path, what = heartbeats_path(names), f"list the {HEARTBEAT_KIND} of {node}"
    found = api.items(path, what, fieldSelector=f"metadata.name={node}") if lives else ()
    return tuple(now for one in found if (now := Left.of(heartbeats_path(names, node), one)).life in lives)
