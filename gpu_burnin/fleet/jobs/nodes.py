"""Verified nodes: which take work, how many of them are free, and how many stand in one place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_burnin.admission.decide import gated
from gpu_burnin.admission.decide.nodes import amount, condition, labelled_ready, taints
from gpu_burnin.api.jobs import GPUS, HOSTNAME
from gpu_burnin.api.kueue import Object, Workload
from gpu_burnin.api.names import GPU_LABEL, Names
from gpu_burnin.fleet.jobs.teams import Free

UNKNOWN_MODEL = "unknown model"


def largest_domains(nodes: Iterable[Object]) -> dict[str, int]:
    """The most GPUs of nodes that share a value, by each label that may be a level of the Topology; all nodes count."""
    count: dict[tuple[str, str], int] = {}
    for node in nodes:
        for label, value in (node["metadata"].get("labels") or {}).items():
            if label != HOSTNAME:
                count[label, value] = count.get((label, value), 0) + gpus_of(node)
    found: dict[str, int] = {}
    for (label, _), number in count.items():
        found[label] = max(number, found.get(label, 0))
    return found


def takes_work(node: Object, names: Names) -> bool:
    """Whether a node is verified, and neither closed by the admitter nor by a person, and kubelet speaks well of it."""
    reported = (condition(node, "Ready") or {}).get("status")
    closed = gated(node, names) or bool((node.get("spec") or {}).get("unschedulable"))
    return labelled_ready(node) and reported == "True" and not closed and not _tainted(node, names)


def free_of(
    nodes: Iterable[Object], jobs: Iterable[Workload], models: Mapping[str, str], names: Names
) -> tuple[Free, ...]:
    """The verified nodes by model. Counted as taken is what jobs have, by the nodes that Kueue has chosen for them.

    `models` are those of flavors.
    """
    taken: dict[str, int] = {}
    unplaced: dict[str, int] = {}
    for job in jobs:
        if not job.reserved or job.finished:
            continue
        for node, number in job.nodes.items():
            taken[node] = taken.get(node, 0) + number
        if not job.nodes:
            for flavor, number in job.flavors.items():
                model = models.get(flavor, flavor)
                unplaced[model] = unplaced.get(model, 0) + number
    found: dict[str, Free] = {}
    for item in nodes:
        if not takes_work(item, names) or not (gpus := gpus_of(item)):
            continue
        model, mine = model_of(item), min(gpus, taken.get(str(item["metadata"]["name"]), 0))
        old = found.get(model, Free(model, 0, 0, 0, 0))
        found[model] = Free(
            model, old.nodes + 1, old.nodes_free + (mine == 0), old.gpus + gpus, old.gpus_free + gpus - mine
        )
    for model, number in unplaced.items():
        if model in found:
            found[model] = replace(found[model], gpus_free=max(0, found[model].gpus_free - number))
    return tuple(found[model] for model in sorted(found))


def gpus_of(node: Object) -> int:
    """The GPUs that pods can have on a node."""
    return amount(node, "allocatable", GPUS) or 0


def model_of(node: Object) -> str:
    """The model of a node's GPUs, by the admitter's label."""
    return str((node["metadata"].get("labels") or {}).get(GPU_LABEL) or UNKNOWN_MODEL)


def _tainted(node: Object, names: Names) -> bool:
    keys = {names.quarantine, names.testing, names.maintenance}
    return any(taint.get("key") in keys for taint in taints(node))
