"""The gemm check and its self-test, right and wrong, on the CPU device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.gemm import check as gemm
from gpu_burnin.checks.gemm import phases as gemm_phases
from gpu_burnin.checks.gemm.tally import Rate
from gpu_burnin.device.port import read_matrix
from gpu_burnin.device.storage import values_from_raw
from gpu_burnin.exact import operands
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.exact.port import Collected
from gpu_burnin.types import Verdict
from tests.support import clocks
from tests.support.devices import ComputingDevice
from tests.support.engine_helpers import context, gpu

_ALL_RANGES = {p: tuple(sorted(r.name for r in operands.ranges_for(p))) for p in operands.PRECISIONS}


@pytest.fixture(autouse=True)
def _few_plain_products_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates here are made up: 16 products, the least whose time is more than a nanosecond, tell them as 1024 do."""
    monkeypatch.setattr(gemm_phases, "_PLAIN_S", 16e-6)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of light load, noted instead of waited for."""
    made: list[float] = []
    monkeypatch.setattr(gemm_phases.time, "sleep", made.append)
    return made


def test_gemm_passes_and_says_what_it_covered() -> None:
    result = gemm.Check().run(context())
    assert (result.verdict, result.reasons, result.errors) == (Verdict.PASS, (), ())
    coverage = result.coverage
    assert coverage.simulated is True and coverage.precisions_not_covered == ()
    assert coverage.ranges == _ALL_RANGES
    assert coverage.scaled == tuple(sorted(p for p in operands.PRECISIONS if operands.can_scale(p)))
    loads = sum(len(operands.ranges_for(p)) * (2 if operands.can_scale(p) else 1) for p in operands.PRECISIONS)
    light = 4 * len(operands.PRECISIONS)
    assert coverage.phases["cold"] >= 4 * loads
    assert coverage.verified_by["golden"] == 4 * loads + light + coverage.phases.get("exact", 0)
    assert coverage.verified_by["freivalds"] >= 4 * len(operands.PRECISIONS)
    assert coverage.phases["light"] == light and coverage.phases["random"] == 4 * len(operands.PRECISIONS)
    assert sum(coverage.phases.values()) == sum(coverage.products.values())
    assert coverage.bytes_moved > sum(coverage.products.values()) * 3 * 64 * 64
    assert {m.name for m in result.measurements} == {f"gemm_{p}_throughput" for p in operands.PRECISIONS}
    assert all(m.value > 0 for m in result.measurements)
    assert {s.name for s in result.series} == {m.name for m in result.measurements}
    assert all(len(s.t_s) == len(s.values) and list(s.t_s) == sorted(s.t_s) for s in result.series)
    assert set(coverage.data_path) == set(coverage.algorithms) == set(operands.PRECISIONS)
    assert all(len(set(digests)) == 2 for digests in coverage.random_digests.values())


def test_the_light_phase_pauses_before_each_product(pauses: list[float]) -> None:
    result = gemm.Check().run(context())
    assert len(pauses) == result.coverage.phases["light"] and min(pauses) > 0


def test_gemm_without_golden_digests_verifies_by_freivalds_and_by_the_host() -> None:
    result = gemm.Check().run(context(gemm_m=48, gemm_n=80, gemm_k=32))
    assert result.verdict is Verdict.PASS
    coverage = result.coverage
    linear = sum(r.rounds_to is None for p in operands.PRECISIONS for r in operands.ranges_for(p))
    assert coverage.verified_by["freivalds"] >= 4 * linear
    assert coverage.verified_by["host"] == 4 * 2 * 2  # FP32 and FP64, with and without powers of two
    assert coverage.ranges == _ALL_RANGES
    assert {m.name for m in result.measurements} == {f"gemm_{p}_throughput" for p in operands.PRECISIONS}


@pytest.mark.slow
def test_gemm_uses_the_time_it_is_given_for_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.01), gemm_phases)
    monkeypatch.setattr(gemm_phases, "_BATCH_S", 0.01)
    monkeypatch.setattr(gemm_phases, "_PROGRESS_EVERY_S", 0.05)
    sent: list[Any] = []
    result = gemm.Check().run(replace(context(budget_s=10.0), progress=sent.append))
    assert 10.0 <= result.seconds < 11.0
    assert set(result.coverage.phases) == {"probe", "cold", "exact", "random", "hot", "light"}
    assert sent and all(message["errors"] == 0 and 0 <= message["done"] <= 1 for message in sent)
    assert any(message.get("rate", 0) > 0 and message["rate_unit"] in ("TFLOP/s", "TOP/s") for message in sent)


def test_random_products_and_fresh_seeds_depend_on_the_seed_only() -> None:
    first, second, other = (
        gemm.Check().run(replace(context(), seed=seed)).coverage.random_digests for seed in (7, 7, 8)
    )
    assert first == second
    assert all(first[p] != other[p] for p in operands.PRECISIONS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", CHECKS["gemm"].faults)
def test_gemm_fails_on_every_injected_fault(fault: str) -> None:
    sent: list[Any] = []
    device = ComputingDevice()
    device.precisions = ("bf16", "fp64")  # the rest would only take time
    result = gemm.Check().run(replace(context(inject=(fault,)), device=device, progress=sent.append))
    assert result.verdict is Verdict.FAIL
    (reason,) = result.reasons
    assert reason.code == ("GEMM_NONFINITE" if fault in ("nan", "inf") else "GEMM_MISMATCH")
    assert reason.gpu == "GPU-0"
    assert "a repeat came out right" in reason.message
    assert result.errors[0]["repeat"] == "right" and "row" in result.errors[0]
    assert result.coverage.wrong_products == 1
    assert any(message["errors"] == 1 for message in sent), "said at once"


@pytest.mark.parametrize("fault", ["bitflip", "stale", "skipped_launch", "operand_b"])
def test_gemm_fails_without_golden_digests_too(fault: str) -> None:
    result = gemm.Check().run(context(inject=(fault,), gemm_m=48, gemm_n=80, gemm_k=32))
    assert [r.code for r in result.reasons] == ["GEMM_MISMATCH"]


class _BrokenDevice(ComputingDevice):
    """Computes element 100 of FP32 products wrong by one, always or from product `after` on."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.after = after

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        self.after -= precision == "fp32"
        if precision == "fp32" and self.after < 0:
            c.data.view(np.float32).reshape(-1)[100] *= 1.5


def test_gemm_says_when_a_repeat_is_wrong_in_the_same_way_and_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.001), gemm_phases)
    result = gemm.Check().run(replace(context(budget_s=60.0), device=_BrokenDevice()))
    assert result.verdict is Verdict.FAIL and result.seconds < 30
    assert len(result.reasons) == gemm_phases.MAX_LOCATED
    assert "wrong in the same way" in result.reasons[0].message
    assert (result.errors[0]["row"], result.errors[0]["col"]) == (1, 36)
    assert result.coverage.wrong_products >= 4


@pytest.mark.slow
def test_a_fault_that_begins_late_is_found_in_the_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.001), gemm_phases)
    clean = gemm.Check().run(context()).coverage.products["fp32"]
    result = gemm.Check().run(replace(context(budget_s=60.0), device=_BrokenDevice(after=clean + 50)))
    assert result.verdict is Verdict.FAIL and result.seconds < 30


# --- random products ---


class _Drifts(ComputingDevice):
    """Flips the lowest bit of an element of every `every`-th BF16 product of random operands."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.seen, self.random = every, 0, False

    def fill(self, buffer: Any, operand: Any) -> None:
        super().fill(buffer, operand)
        self.random = False

    def fill_random(self, buffer: Any, key: int, positive: bool = False) -> None:
        super().fill_random(buffer, key, positive)
        if buffer.transposed:  # B, and not a C that is cleared
            self.random = not positive

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        if precision == "bf16" and self.random:
            self.seen += 1
            if self.seen % self.every == 0:
                c.data[3, 5] ^= 1


def test_a_random_product_that_changes_is_a_failure_with_its_place() -> None:
    result = gemm.Check().run(replace(context(), device=_Drifts(4)))
    (reason,) = result.reasons
    assert (reason.code, result.verdict) == ("GEMM_UNSTABLE", Verdict.FAIL)
    (error,) = result.errors
    assert (error["precision"], error["row"], error["col"], error["flipped_bits"]) == ("bf16", 3, 5, [0])
    assert error["repeat"] == "right"


def test_a_random_product_that_changes_between_cycles_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.001), gemm_phases)
    monkeypatch.setattr(gemm_phases, "_BATCH_S", 0.0)  # four products a time: the seventh comes in a later cycle
    monkeypatch.setattr(gemm_phases, "_CYCLE_S", 0.2)
    result = gemm.Check().run(replace(context(budget_s=60.0), device=_Drifts(7)))
    assert {r.code for r in result.reasons} == {"GEMM_UNSTABLE"}


def test_random_products_that_are_never_written_are_seen() -> None:
    class Idle(_Drifts):
        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            before = c.data.copy()
            CpuProducts.gemm(self, precision, a, b, c)
            if self.random:
                c.data[...] = before

    result = gemm.Check().run(replace(context(), device=Idle(1)))
    assert {r.code for r in result.reasons} == {"GEMM_UNSTABLE"}


def test_a_tile_that_random_products_never_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bits are those of the cleared C, the same with every repeat; only another cycle clears to other bits."""
    clocks.use(monkeypatch, clocks.LookClock(0.001), gemm_phases)
    monkeypatch.setattr(gemm_phases, "_BATCH_S", 0.0)
    monkeypatch.setattr(gemm_phases, "_CYCLE_S", 0.2)

    class Skips(_Drifts):
        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            before = c.data[:8, :8].copy()
            CpuProducts.gemm(self, precision, a, b, c)
            if self.random and precision == "bf16":
                c.data[:8, :8] = before

    result = gemm.Check().run(replace(context(budget_s=10.0), device=Skips(1)))
    assert {r.code for r in result.reasons} == {"GEMM_UNSTABLE"}


# --- time ---


def test_the_gpu_does_not_wait_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no fresh set is ready the rotation goes on, and the fresh ones come when they are."""

    class Slow(gemm_phases.FreshSupply):
        asked = 0

        def take(self, wait: bool = False) -> Any:
            assert not wait
            Slow.asked += 1
            return None if Slow.asked <= 6 else super().take(wait=True)

    monkeypatch.setattr(gemm_phases, "FreshSupply", Slow)
    coverage = gemm.Check().run(context()).coverage
    assert coverage.phases["exact"] == 6 * 4
    assert coverage.verified_by["freivalds"] >= 4 * len(operands.PRECISIONS)


def test_a_slow_precision_leaves_the_rest_of_its_ranges_to_the_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_phases, "_COLD_S", 0.0)
    result = gemm.Check().run(context())
    coverage = result.coverage
    assert (result.verdict, coverage.precisions_not_covered) == (Verdict.PASS, ())
    cold = coverage.phases["cold"] - coverage.verified_by["freivalds"] - coverage.verified_by["repeated"]
    assert cold == 4 * len(operands.PRECISIONS), "one range each"


# --- data paths and coverage on a real device ---


class _Hopper(ComputingDevice):
    """Gives the bits of the right data paths, with rates that are made up: it stands for a real GPU."""

    simulated = False
    name = "cuda"

    def __init__(self, rates: dict[str, float] | None = None) -> None:
        super().__init__()
        made_up = {"fp64": 60, "fp32": 50, "tf32": 400, "bf16": 700, "fp16": 700, "int8": 1300, "fp8_e4m3": 1300}
        self.rates, self.work_s = {**made_up, **(rates or {})}, 0.0

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        if precision in ("tf32", "bf16", "fp16", "fp8_e4m3"):
            left, right = (values_from_raw(read_matrix(self, x), x.storage.name).astype(np.float64) for x in (a, b))
            if precision == "tf32":
                left, right = self._cut(left, 11), self._cut(right, 11)
            total = self._cut(left @ right, 24)
            c.data[...] = total.astype(np.float32).view(np.uint32)
        self.work_s += 2 * c.elements * a.cols / (self.rates[precision] * 1e12)

    def _cut(self, values: np.ndarray, bits: int) -> np.ndarray:
        mantissa, exponent = np.frexp(values)
        return np.ldexp(np.trunc(mantissa * 2.0**bits), exponent - bits)

    def collect(self) -> Collected:
        collected = super().collect()
        seconds, self.work_s = self.work_s, 0.0
        return replace(collected, seconds=seconds)


def _on_hopper(device: ComputingDevice, sku: str = "h200-sxm") -> Any:
    return gemm.Check().run(replace(context(), device=device, gpu=replace(gpu(), sku=sku)))


def test_gemm_on_a_good_device_proves_every_data_path() -> None:
    result = _on_hopper(_Hopper())
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    paths = result.coverage.data_path
    assert all(path.proven for path in paths.values()), paths
    assert paths["tf32"].path == "tf32" and paths["bf16"].path == "tensor core"
    assert result.coverage.simulated is False


def test_gemm_admits_a_missing_precision_and_an_unknown_model() -> None:
    device = _Hopper()
    device.precisions = operands.PRECISIONS[:-1]
    result = _on_hopper(device)
    assert [r.code for r in result.reasons] == ["COVERAGE_LOW"] and result.verdict is Verdict.INCONCLUSIVE
    assert "fp8_e4m3 was not covered" in result.reasons[0].message
    assert result.coverage.precisions_not_covered == ("fp8_e4m3",)
    unknown = _on_hopper(_Hopper(), sku="no such model")
    assert unknown.reasons[0].details["not_proven"] == list(operands.PRECISIONS)


def test_a_precision_that_was_only_probed_is_not_covered() -> None:
    class Ends(_Hopper):
        """Computes everything wrong, so that the check ends at its probes."""

        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(precision, a, b, c)
            c.data[5, 6] ^= 1

    missing = _on_hopper(Ends()).coverage.precisions_not_covered
    assert missing == operands.PRECISIONS


def test_a_fault_is_not_followed_by_what_it_kept_from_being_done() -> None:
    """The check ended early: no COVERAGE_LOW beside the fault, and no rate of batches that were looked into."""

    class Wrong(_Hopper):
        """FP32 and slower: every product is wrong, and to look into one takes a second."""

        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(precision, a, b, c)
            if precision == "fp32":
                c.data[5, 6] ^= 1
                self.work_s += 1.0

    result = _on_hopper(Wrong())
    assert {reason.code for reason in result.reasons} == {"GEMM_MISMATCH"}
    assert "gemm_fp32_throughput" not in {measurement.name for measurement in result.measurements}


def test_a_model_without_fp8_does_not_miss_it() -> None:
    device = _Hopper({"fp64": 15, "fp32": 15, "tf32": 120, "bf16": 250, "fp16": 250, "int8": 450})
    device.precisions = operands.PRECISIONS[:-1]
    assert _on_hopper(device, "a100-sxm4-80gb").coverage.precisions_not_covered == ()


def test_gemm_says_when_a_rate_is_that_of_another_path() -> None:
    result = _on_hopper(_Hopper({"bf16": 300.0}))
    (reason,) = result.reasons
    assert reason.code == "COVERAGE_LOW" and reason.details["not_proven"] == ["bf16"]


def test_a_library_that_reaches_little_of_a_data_sheet_proves_its_paths() -> None:
    slow = {"fp64": 30.0, "fp32": 30.0, "tf32": 280.0, "bf16": 560.0, "fp16": 560.0, "int8": 1100.0, "fp8_e4m3": 1100.0}
    result = _on_hopper(_Hopper(slow))
    assert result.verdict is Verdict.PASS, result.reasons
    told = result.coverage.data_path["bf16"]
    assert (round(told.rate), round(told.rate_floor)) == (560, 350)
    assert told.compared_with == "1.25 times the tf32 rate measured here"


def test_plain_products_are_timed_and_counted_as_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(_Hopper):
        made = 0

        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(precision, a, b, c)
            Counts.made += 1

    monkeypatch.setattr(gemm_phases, "_PLAIN_S", 0.0)  # one product a batch
    coverage = _on_hopper(Counts()).coverage
    assert Counts.made == sum(coverage.products.values()) + 2 * 5, "all but FP64 and FP32, which bits tell"
    assert all(path.rate > 0 for path in coverage.data_path.values())


def test_int8_of_a_model_whose_data_do_not_ask_for_it_holds_nothing() -> None:
    rates = {
        "fp64": 1.0,
        "fp32": 60.0,
        "tf32": 880.0,
        "bf16": 1760.0,
        "fp16": 1760.0,
        "int8": 120.0,
        "fp8_e4m3": 3400.0,
    }
    result = _on_hopper(_Hopper(rates), "b300-sxm")
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    told = result.coverage.data_path["int8"]
    assert (told.proven, told.asked) == (False, False) and "not required of this model" in told.why


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_a_wrong_element_of_a_probe_fails_with_its_place(precision: str) -> None:
    class Once(_Hopper):
        """Flips the last bit of an element in the first product of a precision: its probe."""

        changed = False

        def gemm(self, name: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(name, a, b, c)
            if name == precision and not self.changed:
                self.changed = True
                c.data[5, 6] ^= 1

    result = _on_hopper(Once())
    (reason,) = result.reasons
    assert (reason.code, result.verdict) == ("GEMM_MISMATCH", Verdict.FAIL)
    assert f"{precision} probe holds 1 elements" in reason.message and "a repeat came out right" in reason.message
    (error,) = result.errors
    assert (error["row"], error["col"], error["flipped_bits"], error["repeat"]) == (5, 6, [0], "right")
    told = result.coverage.data_path[precision]
    assert told.path == f"native {precision}" and told.proven, "the fault is one thing, the path another"


def test_tf32_under_the_name_of_fp32_is_low_coverage_and_no_mismatch() -> None:
    class Reduced(_Hopper):
        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm("tf32" if precision == "fp32" else precision, a, b, c)

    result = _on_hopper(Reduced())
    assert [r.code for r in result.reasons] == ["COVERAGE_LOW"]
    assert "fp32 did not prove its data path" in result.reasons[0].message
    assert result.coverage.ranges["fp32"] == tuple(sorted(r.name for r in operands.ranges_for("tf32")))


def test_rates_over_time_are_joined_when_they_grow_long() -> None:
    rate = Rate()
    for _ in range(9000):
        rate.add(1e12, 0.5)
    assert len(rate.points) <= 2000
    assert (rate.mean, rate.best, rate.last) == (2.0, 2.0, 2.0)
    assert sum(p[1] for p in rate.points) == 9000e12
