"""The power check on simulated GPUs: waves from a common start, mixed load, and each fault that it has to see."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.port import NvlinkUnavailable
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.power import check as power
from gpu_burnin.checks.power import mixed as power_mixed
from gpu_burnin.checks.power import waves as power_waves
from gpu_burnin.checks.power.check import Check
from gpu_burnin.checks.power.load import FALLING, RISING, Burst, Load
from gpu_burnin.checks.power.wave import Wave
from gpu_burnin.checks.together import Clock, Group
from gpu_burnin.device.port import DeviceError, DeviceFault
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import CheckResult, Verdict
from tests.support import coverages
from tests.support.engine_helpers import gpu
from tests.support.power_time import own_power_time
from tests.support.together_helpers import contexts, run_together

ALWAYS: Mapping[str, Any] = {"power_waves": "always"}
# Two short waves, so that a test takes no longer than it has to, and slow enough for a busy host.
SHORT = (Wave(5.0, 1), Wave(10.0, 2))


def run(count: int = 1, level: str = "standard", **changes: Any) -> dict[str, CheckResult]:
    """The check on made-up GPUs; nothing may be raised."""
    made = contexts(count, level=level, **{"options": ALWAYS, **changes})
    found = run_together(lambda ctx: Check().run(ctx), made)
    assert all(isinstance(result, CheckResult) for result in found.values()), found
    return {uuid: result for uuid, result in found.items() if isinstance(result, CheckResult)}


@pytest.fixture(autouse=True)
def _own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own_power_time(monkeypatch)


@pytest.fixture(autouse=True)
def _short_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = power.waves_for
    monkeypatch.setattr(power, "waves_for", lambda level, s, simulated: SHORT if wanted(level, s, simulated) else ())


def codes(result: CheckResult) -> list[str]:
    return [reason.code for reason in result.reasons]


def waves(result: CheckResult) -> dict[str, Any]:
    found: dict[str, Any] = to_json(coverages.power(result).waves)
    return found


def mixed(result: CheckResult) -> dict[str, Any]:
    found: dict[str, Any] = to_json(coverages.power(result).mixed)
    return found


# --- healthy ---


def test_healthy_gpus_pass_and_say_what_was_covered() -> None:
    found = run(3)
    for result in found.values():
        assert (result.verdict, result.errors) == (Verdict.PASS, ())
        assert waves(result)["run"] is True
        assert [one["frequency_hz"] for one in waves(result)["frequencies"]] == [5.0, 10.0]
        assert waves(result)["products_verified"] == waves(result)["products"] > 0
        assert mixed(result)["rounds"] >= 1
        # Copies are load: how few of them were looked at is said.
        assert mixed(result)["pcie"]["copies_moved"] >= mixed(result)["pcie"]["copies_verified"] > 0
        assert coverages.power(result).verified_s > 0
        assert mixed(result)["peer"]["copies_verified"] == 1
        assert coverages.power(result).pcie_bytes_moved > 0
        assert coverages.power(result).simulated is True
        json.dumps(to_json(result.coverage))
    starts = {waves(result)["started_s"] for result in found.values()}
    assert len(starts) == 1  # one start for all
    assert {waves(result)["start_skew_s"] for result in found.values()} != {None}


def test_a_quick_run_has_no_waves_and_still_the_mixed_load() -> None:
    result = run(level="quick")["GPU-0"]
    assert waves(result) == {"wanted": False, "run": False, "why": "the level quick has no waves"}
    assert mixed(result)["run"] is True
    assert result.series == ()


def test_the_series_is_load_and_rest_in_turn_within_the_waves() -> None:
    result = run()["GPU-0"]
    (series,) = result.series
    assert (series.name, series.unit) == ("wave load", "1")
    assert 2 <= len(series.values) <= 6
    assert series.values == (1.0, 0.0) * (len(series.values) // 2)
    assert list(series.t_s) == sorted(series.t_s)
    assert waves(result)["started_s"] - 0.001 <= series.t_s[0] <= series.t_s[-1] <= waves(result)["ended_s"] + 0.001


def test_the_mixed_load_takes_what_is_left_of_the_budget() -> None:
    assert mixed(run(level="quick", budget_s=0.0)["GPU-0"])["seconds"] < 1.0
    assert 0.3 < mixed(run(level="quick", budget_s=0.6)["GPU-0"])["seconds"] < 1.5
    assert power._mixed_s("standard", True, 20.0) == 1.0
    assert power._mixed_s("extended", True, 20.0) == 20.0
    assert power._mixed_s("standard", False, 20.0) == 20.0
    assert power._mixed_s("quick", False, -3.0) == 2.2


# --- faults that --inject knows ---


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "standard"])
@pytest.mark.parametrize(("fault", "said"), [("wrong_edge", "is wrong"), ("idle", "was not computed")])
def test_a_wrong_or_lost_product_is_named(level: str, fault: str, said: str) -> None:
    made = contexts(3, level=level, options=ALWAYS)
    made[1] = replace(made[1], inject=(fault,))
    found = run_together(lambda ctx: Check().run(ctx), made)
    faulty = found["GPU-1"]
    assert isinstance(faulty, CheckResult)
    assert (faulty.verdict, codes(faulty)) == (Verdict.FAIL, ["POWER_MISMATCH"])
    (reason,) = faulty.reasons
    assert said in reason.message
    assert reason.gpu == "GPU-1"
    where = "edge" if level == "standard" else "under mixed load"
    assert where in reason.message
    if level == "standard":
        assert reason.details["frequency_hz"] in (5.0, 10.0)
        assert reason.details["edge"] in (RISING, FALLING)
    assert faulty.errors
    others = [found[uuid] for uuid in ("GPU-0", "GPU-2")]
    assert all(isinstance(one, CheckResult) and one.verdict is Verdict.PASS for one in others)


def test_missed_edges_are_counted_and_no_wave_is_claimed() -> None:
    result = run(inject=("late",))["GPU-0"]
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, ["COVERAGE_LOW"])
    assert "5 Hz: 0 of 1 periods" in result.reasons[0].message
    assert waves(result)["edges_missed"] == 2 * (1 + 2)
    assert waves(result)["frequencies_hz"] == []


def test_products_never_come_behind_the_copies_of_their_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they waited for them, so that nothing was ever under mixed load."""
    seen: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            return real(*arguments, **named)

        return call

    for owner, name in ((CpuProducts, "gemm"), (CpuProducts, "collect"), (CpuPcie, "begin"), (CpuPcie, "finish")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    assert mixed(run(level="quick", budget_s=0.0)["GPU-0"])["rounds"] >= 1
    begin = seen.index("begin")
    assert (seen[begin - 1], seen[begin + 1], seen[begin + 2]) == ("gemm", "collect", "finish")


def test_a_wrong_copy_under_mixed_load_is_named() -> None:
    result = run(level="quick", inject=("wrong_transfer",))["GPU-0"]
    assert (result.verdict, codes(result)) == (Verdict.FAIL, ["PCIE_DATA"])
    assert {entry["kind"] for entry in result.errors} == {"corrupted"}


def test_a_wrong_copy_from_another_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = power_mixed.MixedLoad._attach

    def injected(load: power_mixed.MixedLoad, to: Any, came_from: Any) -> bool:
        done = attach(load, to, came_from)
        if load._group.uuid == "GPU-0":
            assert load._nvlink is not None and load._to is not None
            load._nvlink.inject(load._to, "corrupted")
        return done

    monkeypatch.setattr(power_mixed.MixedLoad, "_attach", injected)
    found = run(3, level="quick")
    assert [codes(found[f"GPU-{n}"]) for n in range(3)] == [[], ["TRANSFER_MISMATCH"], []]
    assert "what GPU GPU-0 wrote" in found["GPU-1"].reasons[0].message


def test_a_product_that_is_wrong_before_the_first_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = CpuProducts.gemm

    def broken(self: CpuProducts, precision: str, a: Any, b: Any, c: Any) -> None:
        gemm(self, precision, a, b, c)
        c.data.reshape(-1)[5] ^= 1 << 20

    monkeypatch.setattr(CpuProducts, "gemm", broken)
    result = run()["GPU-0"]
    assert result.verdict is Verdict.FAIL
    assert "while the load was measured" in result.reasons[0].message


# --- members that are lost, links that are missing ---


def test_a_gpu_that_dies_before_the_waves_does_not_keep_the_others() -> None:
    made = contexts(3, level="standard", options=ALWAYS)

    def check(ctx: CheckContext) -> CheckResult:
        if ctx.gpu is not None and ctx.gpu.uuid == "GPU-0":
            Group(ctx)
            raise RuntimeError("died")
        return Check().run(ctx)

    found = run_together(check, made)
    assert isinstance(found["GPU-0"], RuntimeError)
    for uuid in ("GPU-1", "GPU-2"):
        result = found[uuid]
        assert isinstance(result, CheckResult)
        assert result.verdict is Verdict.PASS
        assert mixed(result)["peer"]["copies_verified"] == 1  # the ring closed without it


def test_no_pinned_memory_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CpuPcie, size_bytes: int) -> None:
        raise DeviceError("raise the limit: ulimit -l unlimited")

    monkeypatch.setattr(CpuPcie, "open", refuse)
    result = run(level="quick")["GPU-0"]
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, ["COVERAGE_LOW"])
    assert "ulimit -l unlimited" in result.reasons[0].message
    assert mixed(result)["pcie"]["run"] is False


def test_gpus_without_a_way_to_each_other_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CpuNvlink, uuid: str, handle: Any) -> None:
        raise NvlinkUnavailable("no way between these GPUs", 217)

    monkeypatch.setattr(CpuNvlink, "attach", refuse)
    for result in run(2, level="quick").values():
        assert result.verdict is Verdict.PASS
        assert mixed(result)["peer"] == {
            "run": False, "why": "no way between these GPUs", "bytes_moved": 0, "bytes_per_s": None,
            "copies_moved": 0, "copies_verified": 0, "copies_wrong": 0,
        }  # fmt: skip


@pytest.mark.parametrize(("part", "call"), [(CpuPcie, "open"), (CpuNvlink, "export")])
def test_a_gpu_that_reports_its_own_damage_is_no_lack_of_copies(
    part: type, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: Any) -> None:
        raise DeviceFault("uncorrectable ECC error", "ECC_UNCORRECTED")

    monkeypatch.setattr(part, call, damaged)
    made = contexts(2, level="quick", options=ALWAYS)
    found = run_together(lambda ctx: Check().run(ctx), made)
    assert all(isinstance(one, DeviceFault) for one in found.values()), found


def test_memory_that_another_gpu_may_still_have_mapped_is_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error on the way nobody knows who has detached."""
    called: list[str] = []
    rounds = power_mixed.MixedLoad._rounds

    def fails(load: power_mixed.MixedLoad, until_s: float) -> None:
        if load._group.uuid == "GPU-0":
            raise DeviceError("the launch failed")
        rounds(load, until_s)

    def noted(name: str, own: Callable[[CpuNvlink], None]) -> Callable[[CpuNvlink], None]:
        def call(port: CpuNvlink) -> None:
            called.append(name)
            own(port)

        return call

    monkeypatch.setattr(power_mixed.MixedLoad, "_rounds", fails)
    for name in ("abandon", "close"):
        monkeypatch.setattr(CpuNvlink, name, noted(name, getattr(CpuNvlink, name)))
    found = run_together(lambda ctx: Check().run(ctx), contexts(2, level="quick", options=ALWAYS))
    assert isinstance(found["GPU-0"], DeviceError)
    assert isinstance(found["GPU-1"], CheckResult)
    assert called.count("abandon") == 1


def test_a_check_without_a_device_is_refused() -> None:
    (made,) = contexts(1)
    with pytest.raises(DeviceError, match="needs a device"):
        Check().run(replace(made, device=None))


def test_a_plan_that_does_not_say_makes_no_waves() -> None:
    result = run(options={})["GPU-0"]
    assert result.verdict is Verdict.PASS
    assert waves(result)["wanted"] is True
    assert "power_waves: never" in waves(result)["why"]
    assert mixed(result)["run"] is True


# --- waves on a device, by a clock of the test's own ---


class Hands:
    """A clock that stands still but for waiting and for work."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


class Device(Load):
    """Bursts that take their time on the clock, as on a real GPU; `extra_s` is lost after each, by its number."""

    device: Any = type("Real", (), {"simulated": False})()

    def __init__(self, hands: Hands, product_s: float, extra_s: Callable[[int], float] = lambda _: 0.0) -> None:
        self.hands, self.product_s, self.extra_s, self.bursts = hands, product_s, extra_s, 0

    def count_for(self, seconds: float) -> int:
        return max(2, int(seconds / self.product_s))

    def burst(
        self,
        products: int,
        faults: tuple[str, ...] = (),
        edge: str = FALLING,
        enqueued: Callable[[], None] | None = None,
    ) -> Burst:
        if enqueued is not None:
            enqueued()
        seconds = products * self.product_s
        self.hands.now_s += seconds
        return Burst(products, seconds, ())

    def burst_for(
        self, seconds: float, faults: tuple[str, ...] = (), now: Callable[[], float] = time.monotonic
    ) -> Burst:
        assert not gc.isenabled(), "the collector of garbage could take an edge"
        done = super().burst_for(seconds, faults, now)
        self.hands.now_s += self.extra_s(self.bursts)
        self.bursts += 1
        return done


def on_device(
    product_s: float, extra_s: Callable[[int], float] = lambda _: 0.0, **changes: Any
) -> tuple[power_waves.Waves, list[str]]:
    """Three seconds of waves on one made-up real GPU."""
    (made,) = contexts(1, exchange=lambda data: {gpu().uuid: data}, **changes)
    hands = Hands()
    # Small steps of the clock instead of a loop that waits for the last millisecond.
    clock = Clock(hands.now, lambda seconds: hands.pause(seconds + 0.001))
    group = Group(made)
    group.start_s = lambda lead_s: 10.0  # type: ignore[method-assign]
    device: Any = Device(hands, product_s, extra_s)
    done = power_waves.run_waves(made, group, device, (Wave(1.0, 2), Wave(10.0, 5), Wave(50.0, 10)), clock)
    real = replace(made, device=Device.device)
    return done, [reason.message for reason in power_waves.low(real, done)]


def test_a_fast_gpu_makes_all_waves() -> None:
    done, said = on_device(0.0005)
    assert (done.made_hz, said) == ([1.0, 10.0, 50.0], [])
    assert [record.made for record in done.records] == [2, 5, 10]
    loads = [record.result.load_share for record in done.records]
    assert all(0.85 <= float(str(load)) <= 0.9 for load in loads)
    assert gc.isenabled()


def test_a_gpu_that_is_too_slow_for_a_frequency_does_not_claim_it() -> None:
    done, said = on_device(0.008)  # two products take longer than half a period of 50 Hz
    assert done.made_hz == [1.0, 10.0]
    assert len(said) == 1
    assert "50 Hz: 0 of 10 periods (the GPU was still at work 6 ms after an edge down" in said[0]
    assert "1 Hz" not in said[0]


def test_a_host_that_stalls_loses_the_edges_of_that_time_and_no_later_ones() -> None:
    done, said = on_device(0.0005, lambda burst: 0.3 if burst == 2 else 0.0)  # in the first period of 10 Hz
    record = done.records[1]
    assert record.made == 5 - 1 - 3  # one overran, the edges up of three more had passed
    assert record.edges_missed == 1 + 2 * 3
    assert "10 Hz: 1 of 5 periods" in said[0]
    assert done.records[2].made == 10


def test_most_periods_are_enough() -> None:
    done, said = on_device(0.0005, lambda burst: 0.003 if burst == 9 else 0.0)  # one of 50 Hz
    assert done.records[2].made == 9
    assert said == []


def test_skew_is_between_gpus_at_the_same_edge() -> None:
    two = (Wave(1.0, 1), Wave(50.0, 1))
    assert power_waves.skews(two, {"a": [10.0, 11.0], "b": [10.002, 11.001]}) == {
        1.0: pytest.approx(0.002), 50.0: pytest.approx(0.001),
    }  # fmt: skip
    assert power_waves.skews(two, {"a": [10.0, None], "b": [10.0, 11.0]}) == {1.0: 0.0}
    # A GPU that began a period later missed edges, which is told elsewhere.
    assert power_waves.skews(two, {"a": [10.0, 11.0], "b": [10.0, 11.02]}) == {1.0: 0.0}
    assert power_waves.skews(two, {"a": [10.0, 11.0], "b": None}) == {}
