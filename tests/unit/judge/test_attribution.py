"""Which link or which GPU it is: made-up matrices of all GPUs, with noise, and what is judged of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_burnin.checks.nvlink.result import Matrix as P2pMatrix
from gpu_burnin.checks.nvlink.result import NvlinkCoverage, Pair, Transfer
from gpu_burnin.judge.attribution import blame, judge_links, slow_transfers
from gpu_burnin.judge.observations import Observations
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import CheckResult, Measurement, Notice, Reason, Verdict
from tests.support.engine_helpers import gpu
from tests.support.observed import observed

GOOD = 400e9
NOISE = 0.03


@dataclass(frozen=True)
class Matrix:
    """Rates by transfer; None: could not be made. `wrong` came in wrong."""

    count: int
    rates: dict[Transfer, float | None]
    wrong: frozenset[Transfer] = frozenset()
    expected: bool = True
    floor: float | None = None
    confidence: str = "vendor"
    # Class of a pair by the numbers of its GPUs.
    classes: Callable[[int, int], str] = lambda one, two: "nvswitch"

    def results(self) -> list[CheckResult]:
        """As the nvlink check gives them."""
        uuids = [f"GPU-{index}" for index in range(self.count)]
        return [self._result(uuid, [peer for peer in uuids if peer != uuid]) for uuid in uuids]

    def _result(self, uuid: str, peers: list[str]) -> CheckResult:
        pairs = tuple(
            Pair(
                peer=peer,
                kind=self.classes(int(uuid[4:]), int(peer[4:])),
                expected=self.expected,
                write_bytes_per_s=self.rates[uuid, peer, "write"],
                read_bytes_per_s=self.rates[uuid, peer, "read"],
                why=None if self.rates[uuid, peer, "write"] else "the platform does not allow it",
                # The receiver sees what is wrong: what the peer wrote, and what it read itself.
                transfers_wrong={
                    "write": int((peer, uuid, "write") in self.wrong),
                    "read": int((uuid, peer, "read") in self.wrong),
                },
            )
            for peer in peers
        )
        measured = Measurement("p2p", GOOD, "B/s", self.floor, "a source", self.confidence if self.floor else None)
        return CheckResult("nvlink", uuid, Verdict.PASS, 1.0, (measured,), coverage_of(*pairs))


def coverage_of(*pairs: Pair) -> NvlinkCoverage:
    """The coverage of a GPU with these pairs."""
    return NvlinkCoverage(p2p=pairs, pairs_total=len(pairs), pairs_covered=len(pairs))


def _healthy(count: int, draw: random.Random, noise: float = NOISE) -> dict[Transfer, float | None]:
    pairs = [(f"GPU-{a}", f"GPU-{b}") for a in range(count) for b in range(count) if a != b]
    found: dict[Transfer, float | None] = {}
    for a, b in pairs:
        found[a, b, "write"] = GOOD * draw.gauss(1.0, noise)
        found[a, b, "read"] = 0.95 * GOOD * draw.gauss(1.0, noise)
    return found


def _link(one: str, two: str) -> list[Transfer]:
    return [(a, b, d) for a, b in ((one, two), (two, one)) for d in ("write", "read")]  # type: ignore[misc]


def _gpu(rates: Mapping[Transfer, float | None], uuid: str, way: str) -> list[Transfer]:
    sends = [t for t in rates if (t[0] == uuid and t[2] == "write") or (t[1] == uuid and t[2] == "read")]
    receives = [t for t in rates if (t[1] == uuid and t[2] == "write") or (t[0] == uuid and t[2] == "read")]
    return {"send": sends, "receive": receives, "both": sends + receives}[way]


def _seen(matrix: Matrix, simulated: bool = False) -> Observations:
    return observed(matrix.results(), [gpu(index) for index in range(matrix.count)], simulated=simulated)


def _told(matrix: Matrix) -> tuple[list[Any], list[Any]]:
    reasons, notices = judge_links(_seen(matrix))
    return [_named(reason) for reason in reasons], [_named(notice) for notice in notices]


def _named(said: Reason | Notice) -> tuple[str, str, tuple[str, ...]]:
    blame: Any = said.details["attributed"]
    return said.code, blame["kind"], tuple(blame["gpus"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20_251, pytest.param(7, marks=pytest.mark.soak)])
def test_of_1000_noisy_matrices_nearly_all_are_attributed_right_and_no_healthy_one_fails(seed: int) -> None:
    draw = random.Random(seed)
    classes = ("healthy", "slow link", "dead link", "wrong link", "slow GPU", "dead GPU", "wrong GPU")
    right = dict.fromkeys(classes, 0)
    total = dict.fromkeys(right, 0)
    for number in range(1000):
        case = list(right)[number % len(right)]
        rates = _healthy(8, draw)
        one, two = sorted(draw.sample([f"GPU-{index}" for index in range(8)], 2))
        factor = draw.uniform(0.35, 0.72)
        wrong: list[Transfer] = []
        want: tuple[list[Any], list[Any]] = ([], [])
        if case == "slow link":
            way = draw.choice([_link(one, two), [(one, two, "write"), (two, one, "read")]])
            for transfer in way:
                rates[transfer] = (rates[transfer] or 0) * factor
            want = ([], [("P2P_LINK_SLOW", "link", (one, two))])
        elif case == "dead link":
            for transfer in _link(one, two):
                rates[transfer] = None
            want = ([("P2P_UNAVAILABLE", "link", (one, two))], [])
        elif case == "wrong link":
            wrong = draw.choice([_link(one, two), [(one, two, "write"), (two, one, "read")], [(one, two, "write")]])
            want = ([("P2P_CORRUPTED", "link", (one, two))], [])
        elif case == "dead GPU":
            for transfer in _gpu(rates, one, "both"):
                rates[transfer] = None
            want = ([("P2P_UNAVAILABLE", "gpu", (one,))], [])
        elif case == "slow GPU":
            for transfer in _gpu(rates, one, draw.choice(["send", "receive", "both"])):
                rates[transfer] = (rates[transfer] or 0) * factor
            want = ([], [("P2P_GPU_SLOW", "gpu", (one,))])
        elif case == "wrong GPU":
            wrong = _gpu(rates, one, draw.choice(["send", "receive", "both"]))
            want = ([("P2P_CORRUPTED", "gpu", (one,))], [])
        got = _told(Matrix(8, rates, frozenset(wrong)))
        if case == "healthy":
            assert got[0] == []
        total[case] += 1
        right[case] += got == want
    assert right["healthy"] == total["healthy"] > 140
    assert sum(right.values()) >= 990, right
    assert all(right[case] >= 0.99 * total[case] for case in right), right


@pytest.mark.slow
@pytest.mark.parametrize("count", range(2, 17))
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.05])
def test_healthy_matrices_of_any_size_say_nothing(count: int, noise: float) -> None:
    draw = random.Random(count)
    for _ in range(10):
        assert _told(Matrix(count, _healthy(count, draw, noise))) == ([], [])


@pytest.mark.parametrize("count", range(3, 17))
@pytest.mark.parametrize("way", ["send", "receive", "both"])
def test_one_slow_gpu_is_found_among_three_to_sixteen(count: int, way: str) -> None:
    rates = _healthy(count, random.Random(count))
    for transfer in _gpu(rates, "GPU-1", way):
        rates[transfer] = GOOD * 0.5
    assert _told(Matrix(count, rates)) == ([], [("P2P_GPU_SLOW", "gpu", ("GPU-1",))])


@pytest.mark.parametrize(
    ("way", "words"),
    [("send", "in what it sends"), ("receive", "in what it receives"), ("both", "in both directions")],
)
def test_the_message_says_which_way(way: str, words: str) -> None:
    rates = _healthy(8, random.Random(1))
    for transfer in _gpu(rates, "GPU-1", way):
        rates[transfer] = GOOD * 0.5
    _, (notice,) = judge_links(_seen(Matrix(8, rates)))
    assert words in notice.message and "GPU-1" in notice.message and "7 of 7 other GPUs" in notice.message
    assert notice.gpu == "GPU-1"


def test_the_copy_engines_of_a_gpu_are_told_from_its_links() -> None:
    rates = _healthy(4, random.Random(1))
    bad = [t for t in rates if t[0] == "GPU-2"]
    (one,) = blame(bad, rates)
    assert (one.kind, one.gpus, one.way) == ("gpu", ("GPU-2",), "in the copies it makes itself")


def test_a_gpu_and_a_link_elsewhere_are_both_named() -> None:
    rates = _healthy(8, random.Random(2))
    for transfer in [*_gpu(rates, "GPU-1", "both"), *_link("GPU-4", "GPU-5")]:
        rates[transfer] = GOOD * 0.5
    reasons, notices = _told(Matrix(8, rates))
    assert reasons == []
    assert notices == [("P2P_GPU_SLOW", "gpu", ("GPU-1",)), ("P2P_LINK_SLOW", "link", ("GPU-4", "GPU-5"))]


def test_two_bad_gpus_are_both_named() -> None:
    rates = _healthy(8, random.Random(3))
    wrong = frozenset({*_gpu(rates, "GPU-1", "send"), *_gpu(rates, "GPU-6", "both")})
    reasons, _ = _told(Matrix(8, rates, wrong))
    assert sorted(reasons) == [("P2P_CORRUPTED", "gpu", ("GPU-1",)), ("P2P_CORRUPTED", "gpu", ("GPU-6",))]


def test_of_two_gpus_a_link_is_all_that_can_be_named() -> None:
    rates = _healthy(2, random.Random(1))
    wrong = frozenset({("GPU-0", "GPU-1", "write")})
    assert _told(Matrix(2, rates, wrong))[0] == [("P2P_CORRUPTED", "link", ("GPU-0", "GPU-1"))]
    slow = {t: rate * (0.3 if t[0] == "GPU-0" else 1.0) for t, rate in rates.items() if rate}
    assert _told(Matrix(2, dict(slow))) == ([], [])  # with nothing to compare none is slow


def test_a_gpu_that_reaches_no_other_is_named_and_not_its_links() -> None:
    rates = _healthy(8, random.Random(1))
    for transfer in _gpu(rates, "GPU-3", "both"):
        rates[transfer] = None
    assert _told(Matrix(8, rates))[0] == [("P2P_UNAVAILABLE", "gpu", ("GPU-3",))]


def test_when_nothing_works_it_is_the_node() -> None:
    rates: dict[Transfer, float | None] = dict.fromkeys(_healthy(4, random.Random(1)), None)
    reasons, notices = judge_links(_seen(Matrix(4, rates)))
    told: Any = reasons[0].details["attributed"]
    assert (len(reasons), notices, reasons[0].gpu, told["kind"], len(told["gpus"])) == (1, (), None, "node", 4)
    assert "each of the 4 GPUs cannot copy with all others, but should" in reasons[0].message


def test_pairs_that_need_not_reach_each_other_are_one_notice() -> None:
    rates: dict[Transfer, float | None] = dict.fromkeys(_healthy(4, random.Random(1)), None)
    reasons, (notice,) = judge_links(_seen(Matrix(4, rates, expected=False)))
    assert reasons == ()
    assert notice.code == "P2P_UNAVAILABLE" and len(list(notice.details["pairs"])) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("floor", "confidence", "fails"),
    [(335e9, "vendor", True), (335e9, "measured", True), (335e9, "derived", False), (150e9, "vendor", False)],
)
def test_what_is_slow_fails_only_under_a_floor_somebody_reached(floor: float, confidence: str, fails: bool) -> None:
    rates = _healthy(8, random.Random(1))
    for transfer in _link("GPU-2", "GPU-7"):
        rates[transfer] = GOOD * 0.5
    told = _told(Matrix(8, rates, floor=floor, confidence=confidence))
    want = [("P2P_LINK_SLOW", "link", ("GPU-2", "GPU-7"))]
    assert told == ((want, []) if fails else ([], want))


def test_pairs_of_another_class_are_not_compared() -> None:
    rates = _healthy(4, random.Random(1))
    across = [t for t in rates if {t[0], t[1]} & {"GPU-0", "GPU-1"} and {t[0], t[1]} & {"GPU-2", "GPU-3"}]
    for transfer in across:
        rates[transfer] = GOOD * 0.3
    assert slow_transfers(P2pMatrix.of(Matrix(4, rates).results()))

    def classes(one: int, two: int) -> str:
        apart = (f"GPU-{one}", f"GPU-{two}", "write") in across
        return "pcie/None/across NUMA nodes" if apart else "nvswitch"

    assert slow_transfers(P2pMatrix.of(Matrix(4, rates, classes=classes).results())) == {}


# --- nodes with more than one kind of way between their GPUs ---


def _bridged(one: int, two: int) -> str:
    """PCIe cards with NVLink bridges in pairs, half of them at each processor."""
    if one // 2 == two // 2:
        return "nvlink/12"
    return "pcie/one NUMA node" if one // 4 == two // 4 else "pcie/across sockets"


def _switched(one: int, two: int) -> str:
    """PCIe cards, two at each switch, half of them at each processor."""
    if one // 2 == two // 2:
        return "pcie/one PCIe switch"
    return "pcie/one NUMA node" if one // 4 == two // 4 else "pcie/across sockets"


_MIXED_RATES = {
    "nvlink/12": 280e9, "pcie/one PCIe switch": 26e9, "pcie/one NUMA node": 22e9, "pcie/across sockets": 13e9,
}  # fmt: skip


def _mixed(draw: random.Random, classes: Callable[[int, int], str], noise: float = NOISE) -> dict[Transfer, float]:
    return {
        (a, b, d): _MIXED_RATES[classes(int(a[4:]), int(b[4:]))] * (1.0 if d == "write" else 0.8) * draw.gauss(1, noise)
        for a, b, d in _healthy(8, draw)
    }


@pytest.mark.slow
@pytest.mark.parametrize("classes", [_bridged, _switched])
def test_mixed_nodes_are_attributed_by_what_is_alike(classes: Callable[[int, int], str]) -> None:
    draw = random.Random(11)
    right = total = 0
    for number in range(300):
        rates = _mixed(draw, classes)
        one, two = sorted(draw.sample(range(8), 2))
        want: list[Any] = []
        if number % 3 == 1:
            for transfer in _link(f"GPU-{one}", f"GPU-{two}"):
                rates[transfer] *= draw.uniform(0.3, 0.7)
            want = [("P2P_LINK_SLOW", "link", (f"GPU-{one}", f"GPU-{two}"))]
        elif number % 3 == 2:
            for transfer in _gpu(rates, f"GPU-{one}", draw.choice(["send", "receive", "both"])):
                if "nvlink" not in classes(int(transfer[0][4:]), int(transfer[1][4:])):
                    rates[transfer] *= draw.uniform(0.3, 0.7)
            want = [("P2P_GPU_SLOW", "gpu", (f"GPU-{one}",))]
        reasons, notices = _told(Matrix(8, dict(rates), classes=classes))
        assert reasons == []
        if not want:
            assert notices == []
        total += 1
        right += notices == want
    assert right >= 0.99 * total


@pytest.mark.parametrize("count", [4, 8])
def test_a_pcie_link_at_half_width_is_its_gpu_even_where_bridge_and_sockets_hide_it(count: int) -> None:
    rates = {t: r for t, r in _mixed(random.Random(4), _bridged).items() if max(int(t[0][4:]), int(t[1][4:])) < count}
    for transfer in _gpu(rates, "GPU-1", "both"):
        # Between sockets all have 13 GB/s, which half a link still gives.
        if _bridged(int(transfer[0][4:]), int(transfer[1][4:])) == "pcie/one NUMA node":
            rates[transfer] *= 0.5
    reasons, notices = _told(Matrix(count, dict(rates), classes=_bridged))
    want = "gpu" if count == 4 else "link"
    # Two of seven are too few to name a GPU: then the ways are named, all of which end at it.
    assert reasons == [] and {one[1] for one in notices} == {want}
    assert all("GPU-1" in one[2] for one in notices)


def test_a_way_between_sockets_is_not_held_against_one_within() -> None:
    rates = {t: r / (4 if _switched(int(t[0][4:]), int(t[1][4:])).endswith("sockets") else 1)
             for t, r in _mixed(random.Random(4), _switched).items()}  # fmt: skip
    assert _told(Matrix(8, dict(rates), classes=_switched)) == ([], [])


@pytest.mark.parametrize("role", ["its writes", "its reads", "writes to it", "reads from it"])
def test_a_gpu_bad_in_one_role_only_is_named(role: str) -> None:
    rates = _healthy(8, random.Random(6))
    own, direction = role.startswith("its"), "write" if "writes" in role else "read"
    for transfer in rates:
        if transfer[2] == direction and transfer[0 if own else 1] == "GPU-5":
            rates[transfer] = GOOD * 0.5
    _, (notice,) = judge_links(_seen(Matrix(8, rates)))
    assert (notice.code, notice.gpu) == ("P2P_GPU_SLOW", "GPU-5")
    assert f"in {role}" in notice.message


def test_one_direction_of_one_link_is_that_link() -> None:
    draw = random.Random(12)
    for number in range(200):
        rates = _healthy(8, draw)
        one, two = sorted(draw.sample([f"GPU-{index}" for index in range(8)], 2))
        source, target = (one, two) if number % 2 else (two, one)
        # Data from source to target: what the one writes, and what the other reads.
        for transfer in ((source, target, "write"), (target, source, "read")):
            rates[transfer] = (rates[transfer] or 0) * 0.6  # type: ignore[index]
        assert _told(Matrix(8, rates)) == ([], [("P2P_LINK_SLOW", "link", (one, two))])


def test_a_gpu_with_fewer_links_to_the_switches_is_compared_with_the_others() -> None:
    def kind(topology: PairTopology) -> str:
        return Pair.of("GPU-1", topology, topology.path, expected=True).kind

    switched = [kind(PairTopology("nvswitch", links, "across sockets")) for links in (18, 9)]
    assert switched[0] == switched[1]
    bridges = [kind(PairTopology("nvlink", links)) for links in (18, 9)]
    assert bridges[0] != bridges[1]
    levels = [kind(PairTopology("pcie", None, level)) for level in ("a", "b")]
    assert levels[0] != levels[1]


def test_noise_hides_no_link_that_is_far_slower() -> None:
    draw = random.Random(5)
    rates = {t: rate * draw.uniform(0.75, 1.3) for t, rate in _healthy(8, draw).items() if rate}
    for transfer in _link("GPU-2", "GPU-7"):
        rates[transfer] = GOOD / 8
    assert _told(Matrix(8, dict(rates))) == ([], [("P2P_LINK_SLOW", "link", ("GPU-2", "GPU-7"))])


def test_simulated_gpus_need_more_than_noise_to_be_slow() -> None:
    rates = _healthy(4, random.Random(1))
    for transfer in _link("GPU-0", "GPU-1"):
        rates[transfer] = GOOD * 0.2
    assert slow_transfers(P2pMatrix.of(Matrix(4, rates).results()))
    assert judge_links(_seen(Matrix(4, rates), simulated=True)) == ((), ())


def test_other_checks_are_left_alone() -> None:
    pair = Pair(peer="GPU-1", expected=True, why="the platform does not allow it")
    says_nothing = CheckResult("nvlink", "GPU-0", Verdict.PASS, 1.0)
    other = CheckResult("pcie", "GPU-0", Verdict.PASS, 1.0, coverage=coverage_of(pair))
    assert judge_links(observed([says_nothing, other], [gpu(0), gpu(1)], simulated=False)) == ((), ())
    found = judge_links(observed([replace(other, name="nvlink")], [gpu(0), gpu(1)], simulated=False))
    assert [reason.code for reason in found.reasons] == ["P2P_UNAVAILABLE"]
