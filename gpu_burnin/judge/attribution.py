"""Which link or which GPU is it? From the copies between all GPUs of a node (the nvlink check). Pure.

A transfer is (copier, other, direction): `copier` writes to `other` or reads from it, so that each ordered pair of
GPUs has two. In peace each has a rate. A transfer is bad when it could not be made (dead), delivered wrong data
(wrong), or was slower than SLOW_SHARE of what transfers of its kind reach here, and by more than noise (slow). Kinds
are compared with themselves only: direction and class (path, number of NVLinks, level on PCIe). "What they reach" is
the upper quartile, which one GPU that is slow in everything cannot pull down even among three.

What can be told from that:
- A GPU whose transfers in one role (its writes, its reads, writes to it, reads from it) are nearly all bad, two or more
  of them, is to blame, and the roles say which way: its writes and the reads from it both send its data out; writes to
  it and its own reads both bring data in; its writes and its reads are made by its own copy engines. Nearly all of one
  class suffice where they are not few of the role: a PCIe link at half its width shows neither over an NVLink bridge
  nor between sockets, where all are slower.
- What is left over is a link: the two ends are named, and neither is accused.
- When all transfers among three or more GPUs are bad, it is the node: a setting, the fabric, the driver.
- With two GPUs there is one link and nothing to compare: a bad transfer is the link's, and none is slow.
- Behind an NVSwitch there is no wire between two GPUs. One bad pair there is a way through the switches or a route; a
  GPU that is bad with all others is the GPU or its links to the switches, and the matrix cannot tell these two apart.
- Two bad links that share a GPU look like that GPU when it has only two or three: then the GPU is named. Two GPUs that
  both are bad name both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from gpu_burnin.checks.nvlink.result import NAME as CHECK
from gpu_burnin.checks.nvlink.result import Matrix, Transfer
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.floors import FAILING
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import JSON, CheckResult, CopyDirection, Notice, Reason

# Good GPUs spread by 5 to 8 % (stas00/ml-engineering, accelerator README): a fifth less is no noise.
SLOW_SHARE = 0.8
# Simulated GPUs share the memory and processors of one host, whose noise is far larger.
SLOW_SHARE_SIMULATED = 0.08
# Part of the transfers in one role that must be bad for the GPU to be blamed, and how many at least.
_ROLE_SHARE, _LEAST_IN_ROLE = 0.75, 2
# Or of those of one class in one role, when they are at least this part of the role.
_LEAST_OF_ROLE = 0.4
_QUARTILE = 0.75
# Standard deviations of the good rates of this node that a slow one has to be below them: 480 rates of 16 GPUs and
# many runs leave nothing to chance.
_NOISE_TIMES = 6.0
# What is slower than this is slow whatever the noise: a link that fell back to PCIe reaches an eighth.
_CLEAR_SHARE = 0.5
_LEAST_TO_COMPARE = 4
_ONE_PAIR = 2

_WORDS = {
    frozenset({"its writes", "reads from it"}): "in what it sends",
    frozenset({"writes to it", "its reads"}): "in what it receives",
    frozenset({"its writes", "its reads"}): "in the copies it makes itself",
    frozenset({"writes to it", "reads from it"}): "in the copies that others make with it",
}


@dataclass(frozen=True)
class Blame:
    """A link (two GPUs), a GPU (one) or the node (all) that explains the bad `transfers`; `way` says in which copies
    of a GPU."""

    kind: Literal["link", "gpu", "node"]
    gpus: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    way: str = ""


def roles(copier: str, other: str, direction: CopyDirection) -> tuple[tuple[str, str], tuple[str, str]]:
    """The role that a transfer is for each of its GPUs: (UUID, role) of the copier, and of the other."""
    own = "its writes" if direction == "write" else "its reads"
    return (copier, own), (other, "writes to it" if direction == "write" else "reads from it")


def blame(
    bad: Iterable[Transfer], made: Iterable[Transfer], classes: Mapping[Transfer, str] | None = None
) -> tuple[Blame, ...]:
    """The fewest GPUs and links, or the node, that explain the `bad` among all transfers `made`, of some `classes`."""
    left = set(bad)
    of_role: dict[tuple[str, str], set[Transfer]] = defaultdict(set)
    for transfer in {*made, *left}:
        for holder in roles(*transfer):
            of_role[holder].add(transfer)
    everybody = sorted({uuid for transfer in {*made, *left} for uuid in transfer[:2]})
    if len(everybody) > _ONE_PAIR and left == {*made, *left}:
        return (Blame("node", tuple(everybody), tuple(sorted(left))),)
    found: list[Blame] = []
    while True:
        explained: dict[str, set[Transfer]] = defaultdict(set)
        named: dict[str, set[str]] = defaultdict(set)
        blamed = {one.gpus[0] for one in found}
        for (uuid, role), transfers in of_role.items():
            # Transfers with a GPU that is to blame already say nothing of this one.
            own = {t for t in transfers if not blamed & {t[0], t[1]}}
            bad_here = own & left
            if uuid not in blamed and _nearly_all(bad_here, own, classes or {}):
                explained[uuid] |= bad_here
                named[uuid].add(role)
        if not explained:
            break
        uuid = max(sorted(explained), key=lambda one: len(explained[one]))
        # All that is bad with it is its: a role in which fewer were bad enough is no second fault.
        own = {t for t in left if uuid in t[:2]}
        found.append(Blame("gpu", (uuid,), tuple(sorted(own)), _way(named[uuid])))
        left -= own
    links: dict[tuple[str, ...], list[Transfer]] = defaultdict(list)
    for transfer in sorted(left):
        links[tuple(sorted(transfer[:2]))].append(transfer)
    return (*found, *(Blame("link", ends, tuple(transfers)) for ends, transfers in links.items()))


def _nearly_all(bad: Set[Transfer], own: Set[Transfer], classes: Mapping[Transfer, str]) -> bool:
    """Whether the bad ones are nearly all of a GPU's `own` transfers in one role, or of those of one class."""
    if len(bad) >= max(_LEAST_IN_ROLE, _ROLE_SHARE * len(own)):
        return True
    if len(bad) < max(_LEAST_IN_ROLE, _LEAST_OF_ROLE * len(own)):
        return False
    affected = {classes.get(transfer, "") for transfer in bad}
    return len(bad) >= _ROLE_SHARE * sum(classes.get(transfer, "") in affected for transfer in own)


def _way(named: set[str]) -> str:
    if len(named) == 4:
        return "in both directions"
    return _WORDS.get(frozenset(named), "in " + " and ".join(sorted(named)))


def slow_transfers(matrix: Matrix, share: float = SLOW_SHARE) -> dict[Transfer, float]:
    """The slow ones, with what transfers of their kind reach here (bytes per second)."""
    rate_of = {t: rate for t in matrix.transfers if (rate := matrix.rate(t)) is not None and not matrix.wrong(t)}
    kinds: dict[tuple[str, str], list[Transfer]] = defaultdict(list)
    for transfer in rate_of:
        kinds[transfer[2], matrix.pair(transfer).kind].append(transfer)
    found: dict[Transfer, float] = {}
    for alike in kinds.values():
        if len(alike) < _LEAST_TO_COMPARE:
            continue
        rates = sorted(rate_of[t] for t in alike)
        place = int(_QUARTILE * (len(rates) - 1) + 0.5)
        usual, above = rates[place], rates[place + 1 :]
        limit = max(min(share * usual, usual - _NOISE_TIMES * _noise(usual, above)), min(share, _CLEAR_SHARE) * usual)
        found |= {t: usual for t in alike if rate_of[t] < limit}
    return found


def _noise(usual: float, above: Sequence[float]) -> float:
    """Standard deviation of good rates by those above the upper quartile, where no slow one is: for a normal
    distribution they lie 0.597 standard deviations above it on average (1.271 - 0.674)."""
    return sum(rate - usual for rate in above) / len(above) / 0.597 if above else 0.0


def judge_links(seen: Observations) -> Findings:
    """What the copies between all GPUs say against links and GPUs.

    Wrong data and missing peer access where there must be some are FAIL. What is slow is a FAIL only under a floor that
    was measured or that a vendor gives, else a notice; missing peer access that nobody promised is a notice.
    """
    listed = [result for result in seen.results if result.name == CHECK]
    matrix, labels = Matrix.of(listed), {gpu.uuid: gpu.label for gpu in seen.gpus}
    classes = {transfer: matrix.pair(transfer).kind for transfer in matrix.transfers}
    floors = _floors(listed)
    reasons: list[Reason] = []
    notices: list[Notice] = []

    wrong = [t for t in matrix.transfers if matrix.wrong(t)]
    copied = [t for t in matrix.transfers if matrix.rate(t) is not None or matrix.wrong(t)]
    for one in blame(wrong, copied, classes):
        count = sum(matrix.wrong(t) for t in one.transfers)
        message = f"{_who(one, labels)} delivered wrong data in {count} transfers{_with(one, labels)}"
        reasons.append(_reason("P2P_CORRUPTED", one, "wrong", message, {"wrong_transfers": count}))

    dead = [t for t in matrix.transfers if matrix.rate(t) is None and matrix.pair(t).fault_of_link]
    needed = [t for t in dead if matrix.pair(t).expected]
    for one in blame(needed, [*copied, *needed], classes):
        why = matrix.pair(one.transfers[0]).fault_of_link
        message = f"{_who(one, labels)} cannot copy{_with(one, labels)}, but should: {why}"
        reasons.append(_reason("P2P_UNAVAILABLE", one, "dead", message, {"why": why}))
    notices += _not_promised([t for t in dead if not matrix.pair(t).expected], matrix, labels)

    usual = slow_transfers(matrix, SLOW_SHARE_SIMULATED if seen.simulated else SLOW_SHARE)
    for one in blame(usual, [t for t in copied if not matrix.wrong(t)], classes):
        rate, reached = min((matrix.rate(t) or 0.0, usual[t]) for t in one.transfers)
        message = (
            f"{_who(one, labels)} is slow{_with(one, labels)}: {rate / 1e9:.4g} GB/s, "
            f"where such copies reach {reached / 1e9:.4g} GB/s on this node"
        )
        code = "P2P_LINK_SLOW" if one.kind == "link" else "P2P_GPU_SLOW"
        facts: dict[str, JSON] = {"bytes_per_s": rate, "usual_bytes_per_s": reached}
        floor = max((floors.get(uuid, 0.0) for uuid in one.gpus), default=0.0)
        if rate < floor:
            facts["floor_bytes_per_s"] = floor
            reasons.append(_reason(code, one, "slow", message, facts))
        else:
            details = {"attributed": {**_attributed(one, "slow"), **facts}}
            notices.append(Notice(code, CHECK, message, one.gpus[0] if one.kind == "gpu" else None, details))
    return Findings(tuple(reasons), tuple(notices))


def _not_promised(dead: Sequence[Transfer], matrix: Matrix, labels: Mapping[str, str]) -> Iterator[Notice]:
    """One notice for each reason why pairs cannot copy that need not."""
    by_why: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for transfer in dead:
        one, other = sorted(transfer[:2])
        alike = by_why[matrix.pair(transfer).fault_of_link]
        if (one, other) not in alike:
            alike.append((one, other))
    for why, pairs in by_why.items():
        first = " and ".join(labels.get(uuid, uuid) for uuid in pairs[0])
        more = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        message = f"{first}{more} cannot copy between each other, and need not here: {why}"
        yield Notice("P2P_UNAVAILABLE", CHECK, message, None, {"pairs": [[*pair] for pair in pairs], "why": why})


def _floors(results: Iterable[CheckResult]) -> dict[str, float]:
    """Floor of a copy, in bytes per second, of each GPU that has one that may FAIL it."""
    return {
        result.gpu: measurement.floor
        for result in results
        for measurement in result.measurements
        if result.gpu and measurement.name == "p2p" and measurement.floor and measurement.floor_confidence in FAILING
    }


def _who(one: Blame, labels: Mapping[str, str]) -> str:
    if one.kind == "gpu":
        return labels.get(one.gpus[0], one.gpus[0])
    if one.kind == "node":
        return f"each of the {len(one.gpus)} GPUs"
    # In the order in which the node counts its GPUs, not in that of their UUIDs.
    ends = [label for uuid, label in labels.items() if uuid in one.gpus] or [*one.gpus]
    return f"the link between {' and '.join(ends)}"


def _with(one: Blame, labels: Mapping[str, str]) -> str:
    if one.kind == "link":
        return ""
    if one.kind == "node":
        return " with all others"
    others = {uuid for transfer in one.transfers for uuid in transfer[:2]} - set(one.gpus)
    return f" with {len(others)} of {len(labels) - 1} other GPUs, {one.way}"


def _reason(code: str, one: Blame, problem: str, message: str, facts: Mapping[str, JSON]) -> Reason:
    details: dict[str, JSON] = {"attributed": {**_attributed(one, problem), **facts}}
    return make_reason(code, CHECK, message, gpu=one.gpus[0] if one.kind == "gpu" else None, details=details)


def _attributed(one: Blame, problem: str) -> dict[str, JSON]:
    return {
        "kind": one.kind,
        "gpus": [*one.gpus],
        "problem": problem,
        "way": one.way or None,
        "transfers": [[*transfer] for transfer in one.transfers],
    }
