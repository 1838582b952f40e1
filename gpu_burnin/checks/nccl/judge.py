"""What the ranks of a collective have found, judged: versions, transports, wrong elements, missing ranks. Pure.

Every rank judges the same gathered facts, so all say the same of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.checks.nccl.port import Transports
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.hardware.skus import Sku
from gpu_burnin.telemetry.node_links import NodeLinks
from gpu_burnin.types import JSON, Action, Gpu, Reason, Verdict

CHECK = "nccl"
# NVSwitches that add (NVLink SHARP): the third generation, with Hopper, and later; NCCL knows them from 2.17 on and
# takes them for more than two GPUs.
_ADDING_SWITCHES = frozenset({"hopper", "blackwell"})
_LEAST_MULTICAST_RANKS = 3
# Kinds of path that NCCL's log knows within a GPU, over NVLink, and over NVLink by way of a third GPU.
_NVLINK_PATHS = ("LOC", "NVL", "NVB")
# Floors are those of nccl-tests with 8 GPUs at 8 GiB or more (skus.yaml, sources): fewer and less are slower.
_FLOOR_RANKS, _FLOOR_BYTES = 8, 8 << 30
_LOOK = (
    "look at the nvlink and state checks, at IOMMU and ACS settings, at /etc/nccl.conf, and in a container at "
    "/dev/shm and --ipc=host"
)


@dataclass(frozen=True)
class Hello:
    """What a rank says before the first operation; `missing` is the sentence of a library that cannot be used."""

    version: str | None
    expected: str | None
    missing: str | None


def library_reasons(gpu: str, hellos: Mapping[str, Hello], expected: str | None) -> Iterator[Reason]:
    """NCCL_MISSING and NCCL_VERSION. `expected` is the version that the configuration asks for, if any."""
    missing = {uuid: hello.missing for uuid, hello in hellos.items() if hello.missing}
    if missing:
        where = "this GPU's worker" if gpu in missing else f"the worker of {', '.join(missing)}"
        message = f"no collective could be run, because {where} has no NCCL: {next(iter(missing.values()))}"
        yield make_reason("NCCL_MISSING", CHECK, message, gpu=gpu, details={"missing": [*missing]})
        return
    versions = {uuid: hello.version for uuid, hello in hellos.items()}
    details: dict[str, JSON] = {"versions": dict(versions)}
    if len(set(versions.values())) > 1:
        message = f"the workers have different versions of NCCL ({', '.join(sorted(set(map(str, versions.values()))))})"
        message += ": install one for all, and look for another libnccl.so.2 in LD_LIBRARY_PATH"
        yield make_reason("NCCL_VERSION", CHECK, message, gpu=gpu, details=details)
        return
    # Each rank judges all of them, so that all go on or none does.
    others = {
        uuid: str(wanted)
        for uuid, hello in hellos.items()
        if (wanted := expected or hello.expected) and hello.version != wanted
    }
    if others:
        uuid, wanted = next(iter(others.items()))
        why = "the configuration asks for" if expected else "its package is"
        where = "" if len(others) == len(hellos) else f" on {uuid}"
        message = (
            f"NCCL is {hellos[uuid].version}{where} and {why} {wanted}: install the version of the lock file, or set "
            "expect.nccl to the version you want"
        )
        yield make_reason("NCCL_VERSION", CHECK, message, gpu=gpu, details={**details, "expected": dict(others)})


# --- transports ---


def why_no_floor(ranks: int, largest_bytes: int) -> str | None:
    """Why the floors of the model cannot judge the bus bandwidth; None where they can."""
    if ranks == _FLOOR_RANKS and largest_bytes >= _FLOOR_BYTES:
        return None
    return f"the floors are those of {_FLOOR_RANKS} GPUs with messages of {_FLOOR_BYTES >> 30} GiB"


def multicast_expected(gpus: Mapping[str, Sku | None], links: NodeLinks) -> bool:
    """Whether the switches between these GPUs (UUID and model) should add."""
    return (
        links.joined(gpus)
        and all(
            sku and sku.architecture in _ADDING_SWITCHES and links.of(uuid, sku).switched for uuid, sku in gpus.items()
        )
        and len(gpus) >= _LEAST_MULTICAST_RANKS
    )


def vias(transports: Transports) -> tuple[str, ...]:
    """Kinds of transport in use, in words such as "P2P/CUMEM" and "SHM/direct"; numbers of devices left out."""
    found = dict.fromkeys("/".join(part for part in route.via.split("/")[:2]) for route in transports.routes)
    return tuple(found)


def transport_reasons(
    gpu: str, algorithm: str, transports: Transports, *, ranks: int, nvlink: bool, multicast: bool
) -> Iterator[Reason]:
    """NCCL_FALLBACK: a way around NVLink where there should be NVLink, or ways that could not be read back.

    Over the network a node does not talk to itself, whatever the model; shared host memory is right only where
    there is no NVLink. P2P through a third GPU ("indirect") is a fallback too.
    """
    if ranks < 2:
        return
    details: dict[str, JSON] = {"algorithm": algorithm, "transports": [*vias(transports)]}
    # From 2.22 on rings are connected when they are used, which a communicator for NVLS does not do.
    if not transports.routes and not (algorithm == "nvls" and transports.multicast):
        message = f"NCCL did not report how the GPUs are connected ({algorithm}), so it is unknown what was tested"
        yield make_reason("NCCL_FALLBACK", CHECK, message, gpu=gpu, details=details)
        return
    wrong = [
        route
        for route in transports.routes
        if route.via.startswith(("NET", "COLLNET")) or (nvlink and not _direct(route.via))
    ]
    if wrong:
        first = wrong[0]
        listed: list[JSON] = [f"{route.rank} -> {route.peer} via {route.via}" for route in wrong[:8]]
        should = "NVLink" if nvlink else "PCIe or shared memory"
        message = f"NCCL goes from rank {first.rank} to {first.peer} via {first.via} and not over {should}: {_LOOK}"
        yield make_reason("NCCL_FALLBACK", CHECK, message, gpu=gpu, details={**details, "routes": listed})
    if nvlink and not wrong and transports.ring_path not in (None, *_NVLINK_PATHS):
        message = f"NCCL's rings go over PCIe or the host ({transports.ring_path}) and not over NVLink: {_LOOK}"
        path: dict[str, JSON] = {**details, "ring_path": transports.ring_path}
        yield make_reason("NCCL_FALLBACK", CHECK, message, gpu=gpu, details=path)
    if multicast and transports.multicast is not True:
        said = "did not say whether" if transports.multicast is None else "says that"
        message = (
            f"NCCL {said} NVLS multicast is {'there' if transports.multicast is None else 'not there'}, which this "
            "model has: check the fabric manager, and that all GPUs of the board are in this machine"
        )
        yield make_reason("NCCL_FALLBACK", CHECK, message, gpu=gpu, details={**details, "multicast": None})


def algorithm_reasons(gpu: str, algorithm: str, transports: Transports) -> Iterator[Reason]:
    """NCCL_FALLBACK: a communicator that was to use one algorithm used another, so its curve is not what it says.

    Only the first rank's library tells; "default" may use any.
    """
    used = sorted({name for names in transports.algorithms.values() for name in names})
    if algorithm == "default" or not used or used == [algorithm]:
        return
    message = (
        f"NCCL was to use the algorithm {algorithm} and used {', '.join(used)}: look for NCCL_ALGO in /etc/nccl.conf "
        "and for a tuner plugin"
    )
    details: dict[str, JSON] = {"algorithm": algorithm, "used": [*used]}
    yield make_reason("NCCL_FALLBACK", CHECK, message, gpu=gpu, details=details)


def _direct(via: str) -> bool:
    return via.startswith(("P2P", "NVLS")) and not via.startswith("P2P/indirect")


# --- wrong elements ---


@dataclass(frozen=True)
class Blame:
    """Who gave or got wrong elements. `kind`: "gpu" (one or more), "way" (between two), "unknown" (all are named)."""

    kind: str
    gpus: tuple[str, ...]


def blame(wrong: Mapping[str, int], sources: Mapping[str, Sequence[str]]) -> Blame | None:
    """Who is at fault, by the number of wrong elements on each GPU and the GPUs that those came from.

    One GPU that gets wrong elements from several, or of unknown origin, is itself at fault (or its side of the
    links); from one, the way between the two is. Several that get wrong elements from the same one: that one. Else
    all that got any are named.
    """
    receivers = [gpu for gpu, count in wrong.items() if count]
    if not receivers:
        return None
    if len(receivers) == 1:
        others = [gpu for gpu in dict.fromkeys(sources.get(receivers[0], ())) if gpu != receivers[0]]
        if len(others) == 1:
            return Blame("way", (receivers[0], others[0]))
        return Blame("gpu", (receivers[0],))
    common = set(sources.get(receivers[0], ()))
    for receiver in receivers:
        common &= set(sources.get(receiver, ()))
    if len(common) == 1:
        return Blame("gpu", tuple(common))
    return Blame("unknown", tuple(receivers))


def data_reasons(
    gpu: Gpu, names: Mapping[str, str], wrong: Mapping[str, int], found: Blame | None, first: Mapping[str, JSON] | None
) -> Iterator[Reason]:
    """NCCL_DATA of one GPU: that it got wrong elements, or that others did and it is why. `names` are for people."""
    if found is None or not (wrong.get(gpu.uuid) or gpu.uuid in found.gpus):
        return
    at_fault = " and ".join(names.get(uuid, uuid) for uuid in found.gpus)
    verdict = {
        "gpu": f"the fault lies with {at_fault}",
        "way": f"the fault lies on the way between {at_fault}",
        "unknown": f"it is unknown which GPU is at fault; wrong results are on {at_fault}",
    }[found.kind]
    count = wrong.get(gpu.uuid, 0)
    if count:
        example = (
            f", first in {first['collective']} ({first['type']}) at element {first['element']}: expected "
            f"{first['expected']}, got {first['got']} ({first['kind']})"
            if first
            else ""
        )
        message = f"{count} element{'s' if count > 1 else ''} came back wrong{example}; {verdict}"
    else:
        message = f"elements from this GPU were wrong on {', '.join(g for g, n in wrong.items() if n)}; {verdict}"
    details: dict[str, JSON] = {
        **(first or {}),
        "wrong_elements": count,
        "attributed": {"kind": found.kind, "gpus": [*found.gpus]},
    }
    if gpu.uuid in found.gpus:
        yield make_reason("NCCL_DATA", CHECK, message, gpu=gpu.uuid, details=details)
        return
    # The data arrived wrong from another GPU, so nothing is known of this one.
    yield make_reason(
        "NCCL_DATA", CHECK, message, gpu=gpu.uuid, details=details, action=Action.RETEST,
        severity=Verdict.INCONCLUSIVE,
    )  # fmt: skip


# --- ranks that went missing ---


@dataclass(frozen=True)
class Report:
    """How a rank came out of a step: operations it has finished, and why it stopped, if it did."""

    done: int
    why: str | None = None
    timed_out: bool = False


def broken_reason(
    gpu: str, names: Mapping[str, str], lost: Sequence[str], reports: Mapping[str, Report], what: str
) -> Reason | None:
    """NCCL_TIMEOUT, or CHECK_ERROR where the library failed; None when all ranks are here and well."""
    stopped = {uuid: report for uuid, report in reports.items() if report.why is not None}
    if not lost and not stopped:
        return None
    details: dict[str, JSON] = {
        "lost": [*lost],
        "stopped": {uuid: report.why for uuid, report in stopped.items()},
        "operations_done": {uuid: report.done for uuid, report in reports.items()},
    }
    if lost:
        missing = " and ".join(names.get(uuid, uuid) for uuid in lost)
        message = f"{missing} did not return from {what}: the others gave up and go on without the check"
        return make_reason("NCCL_TIMEOUT", CHECK, message, gpu=gpu, details={**details, "missing": [*lost]})
    failed = {uuid: report for uuid, report in stopped.items() if not report.timed_out}
    if failed:
        uuid, report = next(iter(failed.items()))
        message = f"{what} failed on {names.get(uuid, uuid)}: {report.why}"
        return make_reason("CHECK_ERROR", CHECK, message, gpu=gpu, details=details, severity=Verdict.INCONCLUSIVE)
    least = min(report.done for report in reports.values())
    behind = [uuid for uuid, report in reports.items() if report.done == least]
    if len(behind) == len(reports):
        who = "no rank is behind the others, so it is unknown which one holds it up"
    else:
        who = f"{' and '.join(names.get(uuid, uuid) for uuid in behind)} finished the fewest operations"
    message = f"{what} did not end in time and was given up: {who}"
    behind_json: list[JSON] = [*(behind if len(behind) < len(reports) else ())]
    return make_reason("NCCL_TIMEOUT", CHECK, message, gpu=gpu, details={**details, "behind": behind_json})


def late_rank(durations: Sequence[Mapping[str, float]]) -> str | None:
    """The GPU that comes late to most operations: who comes last waits least, so its own time is far the shortest.

    `durations` are seconds of one operation by GPU. Less than half of the median, in more than half of the operations.
    """
    votes: dict[str, int] = {}
    for times in durations:
        if len(times) < 2:
            continue
        ordered = sorted(times.values())
        first = min(times, key=lambda uuid: times[uuid])
        if ordered[0] < 0.5 * ordered[len(ordered) // 2]:
            votes[first] = votes.get(first, 0) + 1
    best = max(votes, key=lambda uuid: votes[uuid], default=None)
    return best if best is not None and votes[best] * 2 > len(durations) else None
