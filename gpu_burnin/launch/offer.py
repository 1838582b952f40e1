"""What a team can have, by Kueue's objects: models of GPU, how many of each, and the levels that nodes stand in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_burnin.api.jobs import GPUS, HOSTNAME, whole
from gpu_burnin.api.names import GPU_LABEL, LABEL_PREFIX, Names
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.system.quantities import count

_Object = Mapping[str, Any]


@dataclass(frozen=True)
class Offer:
    """`own` and `borrowed` are GPUs by model: the team's quota, and what it can borrow at most while all others idle.

    `levels` are labels of nodes, from the widest to the narrowest, the host itself left out. `sizes` are GPUs of each
    node by model, where all of its nodes have as many.
    """

    team: str
    own: Mapping[str, int]
    borrowed: Mapping[str, int]
    levels: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def most(self, model: str) -> int:
        """GPUs of a model that the team can ever have at once."""
        return self.own[model] + self.borrowed[model]


def offer_of(
    queue: _Object,
    flavors: Sequence[_Object],
    levels: Iterable[str],
    peers: Iterable[_Object],
    cohort: _Object | None,
    names: Names,
) -> Offer:
    """What a team's ClusterQueue offers. `peers` are all ClusterQueues, `cohort` the Cohort's object, if any."""
    name = queue["metadata"]["name"]
    models = {flavor["metadata"]["name"]: model for flavor in flavors if (model := model_of_flavor(flavor))}
    own: dict[str, int] = {}
    borrowed: dict[str, int] = {}
    cohort_name = queue["spec"].get("cohortName")
    lenders = [
        *(
            other
            for other in peers
            if cohort_name and other["spec"].get("cohortName") == cohort_name and other["metadata"]["name"] != name
        ),
        *([cohort] if cohort else []),
    ]
    for flavor, quota in _quotas(queue):
        if flavor not in models:
            continue
        model = models[flavor]
        own[model] = own.get(model, 0) + whole(quota["nominalQuota"])
        lent = sum(_lent(lender, flavor) for lender in lenders)
        limit = quota.get("borrowingLimit")
        lent = lent if limit is None else min(lent, whole(limit))
        borrowed[model] = borrowed.get(model, 0) + lent
    sizes = dict(_sizes(flavors, names))
    return Offer(name, own, borrowed, tuple(level for level in levels if level != HOSTNAME), sizes)


def flavors_of(queue: _Object) -> list[str]:
    """Names of the flavors of GPUs that a ClusterQueue has, each once."""
    return list(dict.fromkeys(flavor for flavor, _ in _quotas(queue)))


def model_of_flavor(flavor: _Object) -> str | None:
    """The model of GPU that a ResourceFlavor stands for."""
    found = (flavor["spec"].get("nodeLabels") or {}).get(GPU_LABEL)
    return None if found is None else str(found)


def _sizes(flavors: Iterable[_Object], names: Names) -> Iterable[tuple[str, int]]:
    for flavor in flavors:
        model, size = model_of_flavor(flavor), (flavor["metadata"].get("labels") or {}).get(names.gpus_per_node, "")
        if model and size.isdigit() and int(size) > 0:
            yield model, int(size)


def _quotas(of: _Object) -> Iterable[tuple[str, _Object]]:
    for group in of["spec"].get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                if resource["name"] == GPUS:
                    yield flavor["name"], resource


def _lent(of: _Object, flavor: str) -> int:
    found = 0
    for name, quota in _quotas(of):
        if name == flavor:
            most = quota.get("lendingLimit")
            found += whole(quota["nominalQuota"]) if most is None else whole(most)
    return found


def choose_model(offer: Offer, kind: str | None) -> str:
    """The model that a kind names: in full, or by a beginning that only one has. Raises LaunchError."""
    known = sorted(offer.own)
    if not known:
        raise LaunchError(f"the team {offer.team} has no GPUs: its ClusterQueue has no quota of them; ask for some")
    listed = ", ".join(known)
    if kind is None:
        if len(known) > 1:
            raise LaunchError(f"the team {offer.team} has several kinds of GPU; name one: {listed}")
        return known[0]
    if kind in offer.own:
        return kind
    found = [model for model in known if model.startswith(kind.lower())] if kind else []
    if len(found) == 1:
        return found[0]
    if found:
        raise LaunchError(f"the kind {kind} can be {' or '.join(found)}; give it in full")
    raise LaunchError(f"the team {offer.team} has no GPUs of the kind {kind!r}; those it has: {listed}")


def choose_level(offer: Offer, near: str | None) -> str | None:
    """The label of the level that all nodes have to share. Raises LaunchError."""
    if near is None:
        return None
    known = {level.removeprefix(LABEL_PREFIX): level for level in offer.levels}
    if near not in known:
        there = f"those that there are: {', '.join(known)}" if known else "nodes have none here: fleet_place says where"
        raise LaunchError(f"near is {near!r}, which is no level of this fleet; {there}")
    return known[near]


def check_quota(offer: Offer, model: str, nodes: int, gpus_per_node: int) -> None:
    """Refuse what the team cannot have even while everybody else idles. Raises LaunchError."""
    wanted, most = nodes * gpus_per_node, offer.most(model)
    if wanted > most:
        raise LaunchError(
            f"{count(nodes, 'node')} of {count(gpus_per_node, 'GPU')} are {wanted:,} GPUs of {model}, and the team "
            f"{offer.team} can have {most:,} at most ({offer.own[model]:,} of its own, {offer.borrowed[model]:,} "
            f"borrowed); ask for {most // gpus_per_node:,} nodes or fewer, or for a larger quota"
        )
