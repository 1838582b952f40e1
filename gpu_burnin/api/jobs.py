"""Jobs of teams: the names and numbers of Kueue's API, and what `muster run` and its pods agree on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

GROUP = "kueue.x-k8s.io"
API_VERSION = f"{GROUP}/v1beta2"
API = f"/apis/{API_VERSION}"
QUEUE_NAME = f"{GROUP}/queue-name"
JOB_UID = f"{GROUP}/job-uid"
JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_API_VERSION = f"{JOBSET_GROUP}/v1alpha2"
JOBSET_API = f"/apis/{JOBSET_API_VERSION}"
# The last level of a Topology.
HOSTNAME = "kubernetes.io/hostname"
# The resource of which queues have a quota.
GPUS = "nvidia.com/gpu"
# Exit code of a process that has saved its work and asks to be started again.
START_AGAIN = 42
# What a pod's annotation DOMAIN/hold-until says in the place of a time: until it has saved its work.
CHECKPOINT = "checkpoint"
_QUANTITY = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([mkMG]?)")
_SUFFIXES: Mapping[str, Decimal] = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
}  # fmt: skip


def kueue_path(plural: str, namespace: str = "", name: str = "") -> str:
    """Where Kueue's objects of a kind are, or one of them."""
    place = f"{API}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else f"{API}/{plural}"
    return f"{place}/{quote(name, safe='')}" if name else place


def domains_of(topology: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What a TopologyAssignment chose at its lowest level, each with its pods.

    Kueue writes it in slices, with what the names have in common apart. Raises KeyError, IndexError, TypeError and
    ValueError for what is none.
    """
    for part in topology.get("slices") or []:
        lowest, pods = part["valuesPerLevel"][-1], part.get("podCounts") or {}
        if (same := lowest.get("universal")) is not None:
            names = [str(same)]
        else:
            values = lowest["individual"]
            before, after = values.get("prefix") or "", values.get("suffix") or ""
            names = [f"{before}{root}{after}" for root in values["roots"]]
        counts = pods.get("individual") or [pods.get("universal") or 0] * len(names)
        yield from zip(names, map(int, counts), strict=True)


def number_of(quantity: object) -> Decimal:
    """A quantity as Kubernetes writes it: 1k is 1000, 1500m is 1.5; 0 for none. Raises ValueError for another form."""
    found = _QUANTITY.fullmatch("0" if quantity is None else str(quantity))
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def whole(quantity: object) -> int:
    """A whole number as Kubernetes writes it; 0 for none. Raises ValueError for another one."""
    number = number_of(quantity)
    if number != int(number):
        raise ValueError(f"{quantity!r} is no whole number")
    return int(number)
