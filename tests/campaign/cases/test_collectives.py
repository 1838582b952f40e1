"""Collectives: faulty ranks below the real nccl check; ranks that die or hang as real processes; NCCL's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.nccl import session as nccl_session
from gpu_burnin.checks.nccl.judge import transport_reasons
from gpu_burnin.checks.nccl.log import read_log
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import CheckResult, Gpu, Verdict, verdict_of
from tests.campaign.conftest import Record
from tests.campaign.faults import faulty_collectives
from tests.campaign.faults.disturbed_workers import DISTURBANCES, run_disturbed
from tests.campaign.faults.faulty_collectives import RING_FAULTS, FaultyCollectivesDevice
from tests.campaign.leftovers import Leftovers
from tests.campaign.model import MISSED, NOT_TESTED, SEEN, Expect, case_random, case_seed, demand, row
from tests.campaign.node import made_up_gpus
from tests.campaign.together import judge_group, node_of, run_group
from tests.support import coverages

SEEDS = 2
FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS
# nccl-tests compares one operation of each size, with new data and a receive buffer that was cleared
# (initData and CheckData in src/common.cu, NVIDIA/nccl-tests d2d40cc): what is wrong in that one it counts as #wrong,
# what is wrong in one of the timed ones it does not look at. What is slow passes unless NCCL_TESTS_MIN_BW is set, and a
# rank that hangs is waited for unless -T is given. DCGM's plugin runs it without arguments and above level 2 only.
_ALWAYS = {"nccl-tests": SEEN, "dcgm": NOT_TESTED, "gpu-burn": NOT_TESTED}
_ONCE = {"nccl-tests": MISSED, "dcgm": NOT_TESTED, "gpu-burn": NOT_TESTED}


def _attributed(judged: Judgement) -> set[str]:
    """UUIDs that the reasons name as at fault; all of them must name the same."""
    blamed: list[Any] = [reason.details["attributed"] for reason in judged.reasons]
    named = {tuple(blame["gpus"]) for blame in blamed}
    assert len(named) == 1, f"not of one mind: {named}"
    return set(next(iter(named)))


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", RING_FAULTS)
def test_faulty_rank(name: str, index: int, record: Record) -> None:
    fault, seed = RING_FAULTS[name], case_seed("collectives", name, index)
    gpus, faulty = node_of("nccl", name, index, least=3, most=5)
    ring = fault.make(seed, fault.once)
    results = run_group("nccl", gpus, seed, devices={faulty: FaultyCollectivesDevice(ring)})
    judged = judge_group("nccl", gpus, seed, results)
    record(row("collectives", name, seed, judged, variant=f"{len(gpus)} GPUs", tools=_ONCE if fault.once else _ALWAYS))
    note = f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, injected {ring.injected} times"
    assert judged.verdict is FAIL, note
    assert {reason.code for reason in judged.reasons} == {"NCCL_DATA"}, note
    own = gpus[faulty].uuid
    assert own in _attributed(judged), f"{note}: {[reason.message for reason in judged.reasons]}"
    if fault.alone:
        demand(Expect(frozenset({"NCCL_DATA"}), FAIL, frozenset({faulty})), judged, gpus, note)
    elif _attributed(judged) == {own}:
        failed = {uuid for uuid, verdict in judged.gpus.items() if verdict is FAIL}
        assert failed == {own}, f"{note}: {failed} are FAIL"


@pytest.mark.parametrize("index", range(SEEDS))
def test_one_wrong_result_in_a_timed_row(index: int, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """nccl-tests looks at an operation of its own, and at none of those that it times."""
    name = "wrong element within a row, once"
    seed = case_seed("collectives", name, index)
    gpus, faulty = node_of("nccl", name, index)
    ring = faulty_collectives.WrongInRow(seed)
    monkeypatch.setattr(nccl_session, "_CURVES_SHARE", 1e12)  # rows as long as they may be, whatever the host
    results = run_group("nccl", gpus, seed, devices={faulty: FaultyCollectivesDevice(ring)}, budget_s=1e-9)
    judged = judge_group("nccl", gpus, seed, results)
    record(row("collectives", name, seed, judged, variant=f"{len(gpus)} GPUs", tools=_ONCE))
    note = f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, injected {ring.injected} times"
    assert ring.injected == 1, note
    demand(Expect(frozenset({"NCCL_DATA"}), FAIL, frozenset({faulty})), judged, gpus, note)


@pytest.mark.parametrize(
    "name", ["slow rank", *(f"injected: {name}" for name in ("wrong_element", "stale", "slow_rank"))]
)
def test_rank_named_by_the_check(name: str, record: Record) -> None:
    """A slow rank is no fault of data: it is named, and passes; faults of --inject are found like real ones."""
    seed = case_seed("collectives", name)
    gpus, faulty = node_of("nccl", name, least=3, most=4)
    inject = {faulty: (name.removeprefix("injected: "),)} if name.startswith("injected") else None
    rings = {} if inject else {gpu.index: faulty_collectives.ToldTimes(late=gpu.index == faulty) for gpu in gpus}
    devices = {index: FaultyCollectivesDevice(ring) for index, ring in rings.items()}
    results = run_group("nccl", gpus, seed, devices=devices, inject=inject)
    judged = judge_group("nccl", gpus, seed, results)
    slow = "slow" in name
    record(row("collectives", name, seed, judged, tools=_ONCE))
    codes = frozenset() if slow else frozenset({"NCCL_DATA"})
    expect = Expect(codes, PASS if slow else FAIL, frozenset() if slow else frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}, faulty GPU {faulty}")
    if slow:
        assert {coverages.nccl(result).latest_gpu for result in results} == {gpus[faulty].uuid}


_LIBRARIES = {
    "library missing in one worker": (faulty_collectives.NoLibrary, "NCCL_MISSING"),
    "another version in one worker": (faulty_collectives.OtherVersion, "NCCL_VERSION"),
    "not the version of its package": (faulty_collectives.OldPackage, "NCCL_VERSION"),
}


@pytest.mark.parametrize("name", _LIBRARIES)
def test_library_is_not_the_right_one(name: str, record: Record) -> None:
    """No GPU's fault, and no PASS: all say which worker has what."""
    (make, code), seed = _LIBRARIES[name], case_seed("collectives", name)
    gpus, faulty = node_of("nccl", name, least=2, most=4)
    results = run_group("nccl", gpus, seed, devices={faulty: FaultyCollectivesDevice(make(seed))})
    judged = judge_group("nccl", gpus, seed, results)
    record(row("collectives", name, seed, judged))
    assert judged.verdict is INCONCLUSIVE
    assert {reason.code for reason in judged.reasons} == {code}
    assert {reason.gpu for reason in judged.reasons} == {gpu.uuid for gpu in gpus}


# --- what NCCL says of its ways ---

_INFO = "node:1:1 [0] NCCL INFO "
_FALLBACKS = {
    "over the network": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",),
    "over host memory": ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",),
    "around by a third GPU": ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]",),
    "one of many over host memory": (
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 02 : 0[0] -> 7[7] via SHM/direct/direct",
    ),
    "not in the log": ("comm 0x1 rank 0 nRanks 8 - Init COMPLETE",),
    "without multicast": (
        "NVLS multicast support is not available on dev 0",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ),
}


def _result(gpu: Gpu, lines: tuple[str, ...]) -> CheckResult:
    reasons = tuple(
        transport_reasons(
            gpu.uuid, "default", read_log(_INFO + line for line in lines), ranks=8, nvlink=True, multicast=True
        )
    )
    return CheckResult("nccl", gpu.uuid, verdict_of(reasons), 1.0, reasons=reasons)


_GOOD = ("NVLS multicast support is available on dev 0", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")


@pytest.mark.parametrize("name", _FALLBACKS)
def test_fallback_is_refused(name: str, record: Record) -> None:
    """Recorded lines of one worker's library; the others go over NVLink."""
    seed = case_seed("collectives", "fallback", name)
    gpus = made_up_gpus(8)
    faulty = case_random("collectives", "fallback", name).randrange(8)
    results = [_result(gpu, _FALLBACKS[name] if gpu.index == faulty else _GOOD) for gpu in gpus]
    judged = judge_group("nccl", gpus, seed, results)
    record(row("collectives", f"fallback {name}", seed, judged, tools=_ONCE))
    demand(Expect(frozenset({"NCCL_FALLBACK"}), INCONCLUSIVE, frozenset({faulty})), judged, gpus, name)


# --- real workers ---


@pytest.mark.parametrize("name", DISTURBANCES)
def test_disturbed_worker(name: str, tmp_path: Path, record: Record) -> None:
    """A real worker is killed, stopped or written into while it works with others; nothing blocks, nothing is left."""
    disturbance, seed = DISTURBANCES[name], case_seed("collectives", name)
    gpus, faulty = node_of("disturbed", name, least=3, most=3)
    with Leftovers(tmp_path) as leftovers:
        judged, plan = run_disturbed(disturbance, gpus, faulty, seed, leftovers.variables)
        assert leftovers.left() == []
    tools = {"gpu-burn": NOT_TESTED, "dcgm": NOT_TESTED, "nccl-tests": disturbance.nccl_tests}
    record(row("collectives" if disturbance.check == "nccl" else "transfers", name, seed, judged, tools=tools))
    codes = {reason.code for reason in judged.reasons if reason.gpu == gpus[faulty].uuid}
    note = f"{[(r.code, r.gpu, r.message) for r in judged.reasons]}"
    assert judged.verdict is disturbance.verdict, note
    assert disturbance.code in codes, note
    assert {reason.code for reason in judged.reasons} <= {disturbance.code, *disturbance.also}, note
    for gpu in plan.gpus:
        if gpu.index != faulty and not disturbance.spreads:
            assert judged.gpus[gpu.uuid] is not FAIL, note


def test_faults_of_inject_are_all_in_the_campaign() -> None:
    """Those that end a worker are in test_command.py and above as real ones."""
    assert set(CHECKS["nccl"].faults) == {"wrong_element", "stale", "slow_rank", "hang_rank", "dead_rank"}
