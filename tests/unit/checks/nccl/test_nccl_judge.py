"""What the ranks of a collective found, judged: versions, transports, who is at fault, who is missing; NCCL's log."""

from __future__ import annotations

import pytest

from gpu_burnin.checks.nccl.judge import (
    Blame,
    Hello,
    Report,
    algorithm_reasons,
    blame,
    broken_reason,
    data_reasons,
    late_rank,
    library_reasons,
    multicast_expected,
    transport_reasons,
    vias,
    why_no_floor,
)
from gpu_burnin.checks.nccl.log import read_log
from gpu_burnin.checks.nccl.port import Route, Transports
from gpu_burnin.hardware.skus import Sku, load_skus
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.telemetry.node_links import GpuLinks, NodeLinks
from gpu_burnin.types import Action, Reason, Verdict
from tests.support.engine_helpers import gpu

A, B, C = "GPU-0", "GPU-1", "GPU-2"
NAMES = {A: "GPU 0", B: "GPU 1", C: "GPU 2"}

# --- the log: lines as NCCL writes them, from its issues (host names shortened) ---

_HOPPER = """\
node:5669:5807 [6] NCCL INFO NVLS multicast support is available on dev 6
node:5669:5807 [6] NCCL INFO comm 0x5639e9f0e8c0 rank 6 nRanks 8 nNodes 1 localRanks 8 localRank 6 MNNVL 0
node:5669:5807 [6] NCCL INFO Channel 00/16 :    0   3   1   2   4   7   5   6
node:5669:5807 [6] NCCL INFO Channel 00/0 : 6[6] -> 5[5] via P2P/CUMEM
node:5669:5807 [6] NCCL INFO Channel 01/0 : 6[6] -> 5[5] via P2P/CUMEM
node:5669:5807 [6] NCCL INFO Channel 00/1 : 6[6] -> 0[0] via P2P/CUMEM/read
node:5669:5807 [6] NCCL INFO Connected all rings
node:5669:5807 [6] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node:5669:5807 [6] NCCL INFO AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
node:5669:5807 [6] NCCL INFO AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""
_HOST = """\
node:3884652:3884740 [7] NCCL INFO NVLS multicast support is not available on dev 7
node:3884652:3884740 [7] NCCL INFO Channel 01 : 7[7] -> 2[2] via SHM/direct/direct
node:3884652:3884740 [7] NCCL INFO Channel 00 : 7[7] -> 3[3] via SHM/direct/direct
"""
_NETWORK = """\
node:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA
node:9621:9692 [7] NCCL INFO Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0
"""
_OLD = """\
h100-worker-1:497888:497888 [0] NCCL INFO 262144 Bytes -> Algo 0 proto 1 time 54.707825
h100-worker-1:497888:497888 [0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594
h100-worker-1:497888:497888 [0] NCCL INFO Channel 00/0 : 0[1a000] -> 1[1b000] via P2P/IPC/read
h100-worker-1:497888:497888 [0] NCCL INFO Channel 02/0 : 0[1a000] -> 3[3b000] via P2P/indirect/2[2b000]
"""


def _read(text: str) -> Transports:
    return read_log(text.splitlines())


def test_routes_multicast_and_algorithms_are_read() -> None:
    found = _read(_HOPPER)
    assert found.routes == (Route(6, 5, "P2P/CUMEM"), Route(6, 0, "P2P/CUMEM/read"))
    assert found.multicast is True
    assert found.algorithms == {"AllReduce": ("tree", "nvls")}
    assert vias(found) == ("P2P/CUMEM",)


def test_the_other_transports_are_read() -> None:
    assert _read(_HOST) == Transports(
        (Route(7, 2, "SHM/direct/direct"), Route(7, 3, "SHM/direct/direct")), False, {}, True
    )
    assert _read(_NETWORK).routes == (Route(0, 2, "NET/IB/3/GDRDMA"), Route(15, 0, "NET/Socket/0"))
    assert _read(_OLD).algorithms == {"any": ("tree", "ring")}
    assert _read(_OLD).routes == (Route(0, 1, "P2P/IPC/read"), Route(0, 3, "P2P/indirect/2[2b000]"))


@pytest.mark.parametrize("text", ["", "something else\nvia SHM/direct\n"])
def test_what_is_no_log_says_nothing(text: str) -> None:
    assert _read(text) == Transports()


def test_the_newest_multicast_line_is_read() -> None:
    line = (
        "h:1:1 [0] NCCL INFO NVLS multicast support is {}available on dev 0, transport enabled, symmetric multimem on"
    )
    assert _read(line.format("")).multicast is True
    assert _read(line.format("not ")).multicast is False


# --- transports ---


def _codes(reasons: object) -> list[tuple[str, Verdict]]:
    assert isinstance(reasons, list)
    return [(reason.code, reason.severity) for reason in reasons]


def _transport(transports: Transports, ranks: int = 8, nvlink: bool = True, multicast: bool = True) -> list[Reason]:
    return [*transport_reasons(A, "default", transports, ranks=ranks, nvlink=nvlink, multicast=multicast)]


def test_nvlink_and_multicast_as_they_should_be_pass() -> None:
    assert _transport(_read(_HOPPER)) == []


@pytest.mark.parametrize("text", [_HOST, _NETWORK, _OLD, ""])
def test_a_way_around_nvlink_is_a_fallback_with_what_to_look_at(text: str) -> None:
    (reason,) = _transport(_read(text), multicast=False)
    assert (reason.code, reason.severity) == ("NCCL_FALLBACK", Verdict.INCONCLUSIVE)
    assert "not over NVLink" in reason.message or "is unknown what was tested" in reason.message


def test_without_nvlink_shared_memory_is_right_and_the_network_is_not() -> None:
    assert _transport(_read(_HOST), nvlink=False, multicast=False) == []
    (reason,) = _transport(_read(_NETWORK), nvlink=False, multicast=False)
    assert "via NET/IB/3/GDRDMA" in reason.message


def test_a_switch_that_should_add_and_does_not_is_a_fallback() -> None:
    without = _read(_HOPPER.replace("is available", "is not available"))
    assert "fabric manager" in _transport(without)[0].message
    assert _codes(_transport(without, multicast=False)) == []
    silent = _read("\n".join(_HOPPER.splitlines()[1:]))
    assert "did not say" in _transport(silent)[0].message


def test_another_algorithm_than_the_one_asked_for_is_a_fallback() -> None:
    found = _read(_HOPPER)
    assert [*algorithm_reasons(A, "default", found)] == []
    (reason,) = algorithm_reasons(A, "ring", found)
    assert (reason.code, reason.severity) == ("NCCL_FALLBACK", Verdict.INCONCLUSIVE)
    assert "was to use the algorithm ring and used nvls, tree" in reason.message
    only = _read(_HOPPER.replace("Algo TREE", "Algo NVLS"))
    assert [*algorithm_reasons(A, "nvls", only)] == [*algorithm_reasons(A, "nvls", _read(_HOST))] == []


_RING = "n:1:2 [6] NCCL INFO Pattern 4, crossNic 0, nChannels 16, bw 20.000000/20.000000, type {}/PIX, sameChannels 1\n"


@pytest.mark.parametrize(("path", "fallbacks"), [("NVL", 0), ("NVB", 0), ("PIX", 1), ("PHB", 1), ("SYS", 1)])
def test_peer_to_peer_over_pcie_is_no_nvlink(path: str, fallbacks: int) -> None:
    tree = "n:1:2 [6] NCCL INFO Pattern 1, crossNic 0, nChannels 16, bw 1.0/1.0, type SYS/PIX, sameChannels 1\n"
    found = _read(_HOPPER + _RING.format(path) + tree)
    assert found.ring_path == path
    assert _codes(_transport(found)) == [("NCCL_FALLBACK", Verdict.INCONCLUSIVE)] * fallbacks
    assert all(f"({path}) and not over NVLink" in reason.message for reason in _transport(found))
    assert _transport(found, nvlink=False, multicast=False) == []


def test_a_communicator_that_only_adds_in_the_switch_connects_no_rings() -> None:
    found = Transports(multicast=True, algorithms={"AllReduce": ("nvls",)}, read=True)
    assert [*transport_reasons(A, "nvls", found, ranks=8, nvlink=True, multicast=False)] == []
    for algorithm, silent in (("ring", found), ("nvls", Transports(read=True))):
        (reason,) = transport_reasons(A, algorithm, silent, ranks=8, nvlink=True, multicast=False)
        assert "is unknown what was tested" in reason.message


@pytest.mark.parametrize(
    ("ranks", "size_bytes", "held"),
    [(8, 8 << 30, True), (8, 1 << 30, False), (4, 8 << 30, False), (16, 8 << 30, False)],
)
def test_floors_of_8_gpus_and_large_messages_judge_only_such(ranks: int, size_bytes: int, held: bool) -> None:
    assert (why_no_floor(ranks, size_bytes) is None) is held


def test_one_rank_has_no_transport_to_judge() -> None:
    assert _transport(Transports(), ranks=1) == []


def test_expectations_follow_the_model_and_the_machine() -> None:
    skus = load_skus().skus
    sxm, bridged, ampere = (skus[key] for key in ("h100-sxm5-80gb", "h100-nvl", "a100-sxm4-80gb"))

    def ranks(sku: Sku | None, count: int) -> dict[str, Sku | None]:
        return {f"GPU-{index}": sku for index in range(count)}

    of_model, none = NodeLinks(), NodeLinks(dict.fromkeys(ranks(None, 8), GpuLinks()))
    direct = NodeLinks(dict.fromkeys(ranks(None, 8), GpuLinks(18, to_all=True)))
    assert of_model.joined(ranks(sxm, 8)) and not none.joined(ranks(sxm, 8)) and direct.joined(ranks(sxm, 4))
    assert of_model.joined(ranks(bridged, 2)) and not of_model.joined(ranks(bridged, 4)), "bridges connect two"
    assert not none.joined(ranks(bridged, 2)) and not of_model.joined(ranks(None, 8)) and not of_model.joined({})
    bridges = NodeLinks(dict.fromkeys(ranks(None, 4), GpuLinks(12)))
    assert not bridges.joined(ranks(bridged, 2)), "these two of four need not be the ends of one bridge"
    assert multicast_expected(ranks(sxm, 8), of_model) and not multicast_expected(ranks(sxm, 2), of_model)
    assert not multicast_expected(ranks(sxm, 8), none) and not multicast_expected(ranks(sxm, 4), direct)
    assert not multicast_expected(ranks(ampere, 8), of_model) and not multicast_expected(ranks(bridged, 2), of_model)


# --- versions ---


def test_the_same_expected_version_on_all_passes() -> None:
    hellos = {uuid: Hello("2.32.3", "2.32.3", None) for uuid in (A, B)}
    assert [*library_reasons(A, hellos, None)] == [*library_reasons(A, hellos, "2.32.3")] == []
    assert [*library_reasons(A, {A: Hello("2.27.5", None, None)}, None)] == [], "of a system library nothing is known"


@pytest.mark.parametrize(("second", "expected", "code", "text"), [
    (Hello("2.30.1", "2.30.1", None), None, "NCCL_VERSION", "different versions"),
    (Hello("2.32.3", "2.31.0", None), None, "NCCL_VERSION", "its package is 2.31.0"),
    (Hello("2.32.3", "2.32.3", None), "2.28.3", "NCCL_VERSION", "the configuration asks for 2.28.3"),
    (Hello(None, None, "install it"), None, "NCCL_MISSING", "install it"),
])  # fmt: skip
def test_all_ranks_say_the_same_of_a_library(second: Hello, expected: str | None, code: str, text: str) -> None:
    hellos = {A: Hello("2.32.3", "2.32.3", None), B: second}
    for uuid in (A, B):
        (reason,) = library_reasons(uuid, {u: from_json(Hello, to_json(h)) for u, h in hellos.items()}, expected)
        assert (reason.code, reason.severity, reason.gpu) == (code, Verdict.INCONCLUSIVE, uuid)
        assert text in reason.message


# --- who is at fault ---


@pytest.mark.parametrize(("wrong", "sources", "expected"), [
    ({A: 0, B: 0}, {}, None),
    ({A: 3, B: 0, C: 0}, {A: [B]}, Blame("way", (A, B))),
    ({A: 3, B: 0, C: 0}, {A: [B, C]}, Blame("gpu", (A,))),
    ({A: 3, B: 0, C: 0}, {A: []}, Blame("gpu", (A,))),
    ({A: 3, B: 0, C: 0}, {A: [A]}, Blame("gpu", (A,))),
    ({A: 3, B: 2, C: 0}, {A: [C], B: [C]}, Blame("gpu", (C,))),
    ({A: 3, B: 2, C: 9}, {A: [B], B: [B], C: [A, B]}, Blame("gpu", (B,))),
    ({A: 3, B: 2, C: 0}, {A: [B], B: [A]}, Blame("unknown", (A, B))),
    ({A: 3, B: 2, C: 0}, {}, Blame("unknown", (A, B))),
])  # fmt: skip
def test_blame(wrong: dict[str, int], sources: dict[str, list[str]], expected: Blame | None) -> None:
    assert blame(wrong, sources) == expected


def test_who_gave_wrong_elements_fails_and_who_got_them_is_inconclusive() -> None:
    wrong, found = {A: 3, B: 2, C: 0}, Blame("gpu", (C,))
    reasons = [*(r for i in range(3) for r in data_reasons(gpu(i), NAMES, wrong, found, None))]
    assert [(r.gpu, r.severity, r.action) for r in reasons] == [
        (A, Verdict.INCONCLUSIVE, Action.RETEST),
        (B, Verdict.INCONCLUSIVE, Action.RETEST),
        (C, Verdict.FAIL, Action.REPAIR),
    ]
    assert "from this GPU were wrong on GPU-0, GPU-1" in reasons[2].message
    assert [*data_reasons(gpu(0), NAMES, {A: 0}, None, None)] == []


# --- who is missing ---


def _broken(lost: tuple[str, ...], reports: dict[str, Report]) -> Reason | None:
    return broken_reason(A, NAMES, lost, reports, "all_reduce")


def test_all_here_and_well_is_no_reason() -> None:
    assert _broken((), {A: Report(5), B: Report(5)}) is None


def test_the_missing_rank_is_named() -> None:
    reason = _broken((B,), {A: Report(5, "too late", True)})
    assert reason is not None and (reason.code, reason.severity) == ("NCCL_TIMEOUT", Verdict.INCONCLUSIVE)
    assert reason.message.startswith("GPU 1 did not return from all_reduce")


def test_the_rank_that_is_behind_is_named_when_none_is_missing() -> None:
    late = {A: Report(5, "too late", True), B: Report(4, "too late", True), C: Report(5, "too late", True)}
    reason = _broken((), late)
    assert reason is not None and reason.details["behind"] == [B]
    even = _broken((), {A: Report(5, "too late", True), B: Report(5, "too late", True)})
    assert even is not None and "it is unknown which one" in even.message and even.details["behind"] == []


def test_an_error_of_the_library_is_told_in_its_own_words() -> None:
    reason = _broken((), {A: Report(5, "too late", True), B: Report(4, "ncclAllReduce: status 1", False)})
    assert reason is not None and (reason.code, reason.severity) == ("CHECK_ERROR", Verdict.INCONCLUSIVE)
    assert "failed on GPU 1: ncclAllReduce: status 1" in reason.message


def test_the_late_rank_is_the_one_that_waits_least() -> None:
    assert late_rank([{A: 1.0, B: 0.1, C: 1.1}] * 3 + [{A: 1.0, B: 1.0, C: 1.0}]) == B
    assert late_rank([{A: 1.0, B: 0.9, C: 1.1}] * 4) is None
    assert late_rank([{A: 1.0, B: 0.1, C: 1.1}, {A: 0.1, B: 1.0, C: 1.1}]) is None
    assert late_rank([{A: 1.0}]) is None and late_rank([]) is None
