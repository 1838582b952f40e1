"""Floors by confidence, and the action ladder: what may FAIL a node, what only warns, what comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.checks.pcie.result import HostSide, LinkUnderLoad, PcieCoverage
from gpu_burnin.hardware import Confidence, Floor, SkuTable, load_skus, make_reason
from gpu_burnin.judge.floors import at_lowered_power, judge_floors, judge_power_limit, with_floors
from gpu_burnin.judge.ladder import driver_decides, escalated, worst_action
from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import Action, CheckResult, Gpu, Measurement, Verdict
from tests.support.coverages import coverage
from tests.support.observed import observed

GPU = Gpu(0, "GPU-0", "1", "0000:1b:00.0", "NVIDIA H200", "h200-sxm", 150 << 30, "96.00")


def result(value: float, name: str = "gemm_bf16_throughput", unit: str = "TFLOP/s", **covered: bool) -> CheckResult:
    return CheckResult(
        "gemm", GPU.uuid, Verdict.PASS, 10.0, (Measurement(name, value, unit),), coverage("gemm", **covered)
    )


def table(confidence: Confidence) -> SkuTable:
    """The shipped table with a BF16 floor of 680 TFLOP/s of the given confidence."""
    skus = load_skus()
    floor = Floor("gemm_bf16", 680.0, "TFLOP/s", "somebody", confidence)
    sku = replace(skus.skus["h200-sxm"], floors={"gemm_bf16": floor})
    return replace(skus, skus={"h200-sxm": sku})


@pytest.mark.parametrize("confidence", [Confidence.MEASURED, Confidence.VENDOR])
def test_rate_under_a_measured_or_vendors_floor_is_slow(confidence: Confidence) -> None:
    reasons, notices = judge_floors(observed(with_floors([result(679.0)], [GPU], skus=table(confidence))))
    assert notices == ()
    assert [(r.code, r.severity, r.gpu, r.action) for r in reasons] == [("SLOW", Verdict.FAIL, "GPU-0", Action.HOLD)]
    assert "679" in reasons[0].message and "somebody" in reasons[0].message


def test_rate_under_a_derived_floor_only_warns() -> None:
    reasons, notices = judge_floors(observed(with_floors([result(679.0)], [GPU], skus=table(Confidence.DERIVED))))
    assert reasons == ()
    assert [(n.code, n.gpu, n.details["floor"]) for n in notices] == [("SLOW", "GPU-0", 680.0)]


@pytest.mark.parametrize("value", [680.0, 900.0])
def test_rate_at_or_over_the_floor_is_fine(value: float) -> None:
    filled = with_floors([result(value)], [GPU], skus=table(Confidence.MEASURED))
    assert judge_floors(observed(filled)) == ((), ())
    (measurement,) = filled[0].measurements
    assert (measurement.floor, measurement.floor_source, measurement.floor_confidence) == (680, "somebody", "measured")


def test_rates_of_a_check_that_found_a_fault_are_not_judged() -> None:
    """It ended early, and what it measured holds the time that it took to look into the fault."""
    found = replace(result(45.0), verdict=Verdict.FAIL)
    assert judge_floors(observed(with_floors([found], [GPU], skus=table(Confidence.MEASURED)))) == ((), ())


def test_rate_that_is_no_number_is_slow() -> None:
    filled = with_floors([result(float("nan"))], [GPU], skus=table(Confidence.MEASURED))
    reasons, _ = judge_floors(observed(filled))
    assert [reason.code for reason in reasons] == ["SLOW"]
    # What the page marks.
    assert filled[0].measurements[0].below_floor


def test_floor_is_turned_into_the_unit_of_the_measurement() -> None:
    skus = load_skus()
    vendor = with_floors([result(40e9, "h2d", "B/s")], [GPU], skus=skus)
    assert vendor[0].measurements[0].floor == pytest.approx(48e9)
    assert [reason.code for reason in judge_floors(observed(vendor))[0]] == ["SLOW"]
    with pytest.raises(ValueError, match="cannot be compared"):
        with_floors([result(1.0, "h2d", "TFLOP/s")], [GPU], skus=skus)
    with pytest.raises(ValueError, match="cannot be compared"):
        with_floors([result(1.0, "h2d", "furlongs")], [GPU], skus=skus)


@pytest.mark.parametrize(
    ("expected_w", "limits", "held"),
    [
        (500.0, {"power_limit_w": 500, "power_default_w": 700}, False),
        (500.0, {"power_limit_w": 420, "power_default_w": 700}, False),  # a module whose processor takes its share
        # Nobody asked for it, or it is not what was asked for, or it is no lower: the floors hold.
        (None, {"power_limit_w": 500, "power_default_w": 700}, True),
        (500.0, {"power_limit_w": 600, "power_default_w": 700}, True),
        (700.0, {"power_limit_w": 700, "power_default_w": 700}, True),
        (500.0, {"power_limit_w": 500}, True),
        (500.0, {}, True),
    ],
)
def test_floors_are_those_of_full_power(expected_w: float | None, limits: dict[str, int], held: bool) -> None:
    skus = table(Confidence.MEASURED)
    copies = replace(result(1e9, "h2d", "B/s"), name="pcie")
    series = GpuSeries(GPU.uuid, (), {}, limits=limits)
    lowered = observed([result(500.0), copies], [GPU], telemetry=TelemetryFindings(series=(series,)))
    lowered = replace(lowered, plan=replace(lowered.plan, options={"expect": {"power_limit_w": expected_w}}))
    results, notices = at_lowered_power(lowered), judge_power_limit(lowered).notices
    reasons, _ = judge_floors(observed(with_floors(results, [GPU], skus=skus)))
    assert [reason.code for reason in reasons] == ["SLOW"] * held
    assert [notice.code for notice in notices] == ["POWER_LIMIT"] * (not held)
    assert results[1].coverage.no_floor_why is None, "copies need no power"
    if not held:
        assert "1 of 1 GPUs run at a power limit of 500 W as expected, and their own is 700 W" in notices[0].message


# Of hosts: generation and lanes of the slot, the GPU's NUMA node, how many there are, whether it is a virtual machine.
@pytest.mark.parametrize(
    ("slot", "numa_node", "numa_nodes", "virtual", "floor", "fails"),
    [
        ((5, 16), 0, 2, False, 48e9, True),
        ((5, 16), None, 1, False, 48e9, True),  # one socket: all memory is as near
        ((None, None), 1, 2, True, 48e9, True),  # a virtual machine that shows its nodes
        ((4, 16), 0, 2, False, 24e9, False),
        ((5, 8), 0, 2, False, 24e9, False),
        ((3, 8), 0, 2, False, 6e9, False),
        ((6, 32), 0, 2, False, 48e9, True),
        ((5, 16), None, 2, False, 48e9, False),
        ((None, None), None, 1, True, 48e9, False),
    ],
)
def test_floors_of_copies_are_those_of_card_and_host(
    slot: tuple[int | None, int | None],
    numa_node: int | None,
    numa_nodes: int,
    virtual: bool,
    floor: float,
    fails: bool,
) -> None:
    coverage = PcieCoverage(
        link=LinkUnderLoad(host_max_generation=slot[0], host_max_width=slot[1]),
        host=HostSide(numa_nodes, virtual),
        copies_moved=2,
        copies_verified=2,
        numa_node=numa_node,
    )
    slow = replace(result(0.99 * floor, "h2d", "B/s"), name="pcie", coverage=coverage)
    reasons, notices = judge_floors(observed(with_floors([slow], [GPU])))
    assert [[item.code for item in found] for found in (reasons, notices)] == (
        [["SLOW"], []] if fails else [[], ["SLOW"]]
    )
    if not fails:
        assert "the model's own floor is 48 GB/s" in notices[0].message
    fast = replace(slow, measurements=(Measurement("h2d", floor, "B/s"),))
    assert judge_floors(observed(with_floors([fast], [GPU]))) == ((), ())


# What such GPUs reach, in the floors' units. H100 SXM and H200: verified products at the power limit, as one of each
# kept them (docs/verified-hardware.md). Others: what somebody saw them sustain, times what the H200 kept of its figure
# there; and copies of 8 H200s (stas00/ml-engineering @0359db8, compute/accelerator and network).
_KEPT, _KEPT_FP8 = 599.4 / 755, 1013.5 / 1354
REACHED: dict[str, dict[str, float]] = {
    "a100-pcie-80gb": {"gemm_bf16": 258 * _KEPT},
    "h100-sxm5-80gb": {"gemm_fp64": 60.3, "gemm_bf16": 612.1, "gemm_int8": 1018.3, "gemm_fp8_e4m3": 997.0},
    "h200-sxm": {
        "gemm_fp32": 49.9, "gemm_tf32": 368.8, "gemm_bf16": 599.4, "gemm_fp8_e4m3": 1013.5,
        "h2d": 55.43, "d2h": 55.06, "p2p": 396.4, "all_reduce_busbw": 482,
    },
    "b200-sxm": {"gemm_bf16": 1439 * _KEPT, "gemm_fp8_e4m3": 2788 * _KEPT_FP8},
    "b300-sxm": {"gemm_bf16": 1519 * _KEPT, "gemm_fp8_e4m3": 2969 * _KEPT_FP8},
}  # fmt: skip


@pytest.mark.parametrize(("sku", "name"), [(sku, name) for sku, rates in REACHED.items() for name in rates])
def test_gpu_at_the_rate_of_its_model_is_not_told_off_and_one_far_below_is(sku: str, name: str) -> None:
    """A tenth less is still a healthy GPU; a third less is told."""
    of_model, floor = replace(GPU, sku=sku), load_skus().skus[sku].floors[name]
    for share, told in ((1.0, 0), (0.9, 0), (0.65, 1)):
        rate = result(share * REACHED[sku][name], name, floor.unit)
        reasons, notices = judge_floors(observed(with_floors([rate], [of_model])))
        assert len(reasons) + len(notices) == told


def test_floors_of_products_only_warn() -> None:
    """What others reached with their own shapes and libraries is no acceptance limit."""
    floors = [floor for sku in load_skus().skus.values() for floor in sku.floors.values()]
    assert {floor.confidence for floor in floors if floor.name.startswith("gemm_")} == {Confidence.DERIVED}


@pytest.mark.parametrize("sku", ["a100-pcie-80gb", "h100-sxm5-80gb", "h200-sxm", "h200-nvl", "b200-sxm"])
def test_memory_far_slower_than_its_model_is_told_and_fails_nobody(sku: str) -> None:
    of_memory = replace(GPU, sku=sku)
    floor = load_skus().skus[sku].floors["hbm_rate"]
    for rate, told in ((0.99 * floor.value * 1e9, ["SLOW"]), (floor.value * 1e9, [])):
        reasons, notices = judge_floors(observed(with_floors([result(rate, "hbm_rate", "B/s")], [of_memory])))
        assert (reasons, [notice.code for notice in notices]) == ((), told)


def test_simulated_hardware_and_unknown_models_have_no_floors() -> None:
    slow = result(1.0)
    assert with_floors([slow], [GPU], simulated=True) == (slow,)
    on_cpu = result(1.0, simulated=True)
    assert with_floors([on_cpu], [GPU]) == (on_cpu,)
    assert with_floors([slow], [replace(GPU, sku="")]) == (slow,)
    of_node = replace(slow, gpu=None)
    assert with_floors([of_node], [GPU]) == (of_node,)


def test_a_rate_that_was_not_measured_as_its_floor_was_is_not_held_against_it() -> None:
    slow = replace(result(1.0), coverage=coverage("gemm", no_floor_why="the floors are those of 8 GPUs"))
    assert with_floors([slow], [GPU], skus=table(Confidence.VENDOR)) == (slow,)
    like_it = replace(slow, coverage=coverage("gemm", no_floor_why=None))
    assert judge_floors(observed(with_floors([like_it], [GPU], skus=table(Confidence.VENDOR))))[0]


def test_every_floor_of_the_gemm_check_is_in_the_unit_it_measures_in() -> None:
    for sku in load_skus().skus.values():
        for name, floor in sku.floors.items():
            if name.startswith("gemm_"):
                assert floor.unit == ("TOP/s" if name == "gemm_int8" else "TFLOP/s")
                assert name.removeprefix("gemm_") in sku.precisions


def test_ladder_is_in_order() -> None:
    assert [str(action) for action in sorted(Action, key=lambda action: action.rank)] == [
        "none", "retest", "reset_gpu", "reboot", "power_cycle", "repair", "hold",
    ]  # fmt: skip


def test_hardest_action_of_all_reasons_wins() -> None:
    reasons = [make_reason("GEMM_MISMATCH", "gemm", "x"), make_reason("GPU_LOST", "state", "x")]
    assert worst_action(reasons) is Action.REPAIR
    assert worst_action([]) is Action.NONE


@pytest.mark.parametrize(
    ("own", "demand", "wanted"),
    [
        (Action.RESET_GPU, None, Action.RESET_GPU),
        (Action.RETEST, Action.RESET_GPU, Action.RESET_GPU),
        (Action.REBOOT, Action.RESET_GPU, Action.RESET_GPU),
        (Action.POWER_CYCLE, Action.REBOOT, Action.POWER_CYCLE),
        (Action.REPAIR, Action.RESET_GPU, Action.REPAIR),
        (Action.HOLD, Action.REBOOT, Action.HOLD),
    ],
)
def test_driver_decides_up_to_a_reboot(own: Action, demand: Action | None, wanted: Action) -> None:
    assert driver_decides(own, demand) is wanted


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (Action.RETEST, Action.HOLD),
        (Action.RESET_GPU, Action.POWER_CYCLE),
        (Action.REBOOT, Action.POWER_CYCLE),
        (Action.POWER_CYCLE, Action.REPAIR),
        (Action.REPAIR, Action.REPAIR),
        (Action.HOLD, Action.HOLD),
    ],
)
def test_fault_that_a_restart_did_not_clear_goes_a_rung_up(action: Action, wanted: Action) -> None:
    now = make_reason("ECC_UNCORRECTED", "state", "3 errors", gpu="GPU-0", action=action)
    assert escalated(now, [replace(now, message="2 errors")], restarted=True).action is wanted


def test_each_restart_goes_further_up() -> None:
    now = make_reason("ECC_UNCORRECTED", "state", "3 errors", gpu="GPU-0")
    once = escalated(now, [now], restarted=True)
    assert (once.action, "again" in once.message) == (Action.POWER_CYCLE, True)
    assert escalated(now, [once], restarted=True).action is Action.REPAIR


def test_nothing_goes_up_without_the_same_fault_on_the_same_gpu_after_a_restart() -> None:
    now = make_reason("ECC_UNCORRECTED", "state", "3 errors", gpu="GPU-0")
    for last, restarted in (
        ([now], False),
        ([], True),
        ([replace(now, gpu="GPU-1")], True),
        ([replace(now, code="GPU_LOST")], True),
    ):
        assert escalated(now, last, restarted=restarted) is now
    # A busy GPU is busy again, which says nothing of the hardware; an XID that comes back does.
    busy, suspect = make_reason("GPU_BUSY", "state", "x"), make_reason("XID_SUSPECT", "kernel_log", "x")
    assert escalated(busy, [busy], restarted=True) is busy
    assert escalated(suspect, [suspect], restarted=True).action is Action.HOLD
