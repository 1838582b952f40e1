"""Compute: wrong products, SMs and memory under the real checks and the real verdict; one GPU is faulty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpu_burnin.checks import REGISTRY
from gpu_burnin.checks.hbm.rounds import CORE
from gpu_burnin.checks.sm.faults import FAULT_NAMES as SM_FAULTS
from gpu_burnin.device.port import Device
from gpu_burnin.exact import operands
from gpu_burnin.exact.faults import FAULTS
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import CheckResult, Gpu, Measurement, SelftestResult, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults.faulty_products import (
    AliasingDevice,
    FaultyProductsDevice,
    When,
    always,
    each,
    every_random,
    only_first,
    random_only,
)
from tests.campaign.model import MISSED, NOT_TESTED, SEEN, TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import SHAPES, clean, context_of, made_up_gpus, observe, plan_of, verdict
from tests.campaign.reference_tools import detection_rules as rules
from tests.campaign.reference_tools.products import products_view
from tests.support.coverages import coverage
from tests.support.faulty_hbm import FaultyHbm

INJECTED_SEEDS, FAULTY_SEEDS, SM_SEEDS, MEMORY_SEEDS = 3, 2, 3, 3
FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE
# Sizes with golden digests and without, square and not.
_SHAPES = ((64, 64, 64), (32, 48, 80), (64, 16, 128), (128, 128, 128))


def _shapes(*case: object) -> Mapping[str, int]:
    sizes = case_random("shape", *case).choice(_SHAPES)
    return {**SHAPES, **dict(zip(("gemm_m", "gemm_n", "gemm_k"), sizes, strict=True))}


def _place(*case: object) -> tuple[tuple[Gpu, ...], int]:
    """The GPUs of a case and the index of the faulty one."""
    source = case_random("place", *case)
    gpus = made_up_gpus(source.randint(2, 8))
    return gpus, source.randrange(len(gpus))


def _judge(
    check: str, gpus: tuple[Gpu, ...], faulty: int, result: CheckResult, precisions: tuple[str, ...] | None = None
) -> Judgement:
    """The verdict when the faulty GPU gave this result and the others are well; its self-test was well before."""
    found = [clean(check, gpu, precisions) for gpu in gpus]
    results = [result if index == faulty else own for index, (own, _) in enumerate(found)]
    return verdict(observe(plan_of(gpus, check), results, [test for _, tests in found for test in tests]))


def _gemm_codes(fault: str, precision: str) -> frozenset[str]:
    special = fault in ("nan", "inf") and precision != "int8"
    return frozenset({"GEMM_NONFINITE" if special else "GEMM_MISMATCH"})


@pytest.mark.parametrize("index", range(INJECTED_SEEDS))
@pytest.mark.parametrize("precision", operands.PRECISIONS)
@pytest.mark.parametrize("name", FAULTS)
def test_one_wrong_product(name: str, precision: str, index: int, record: Record) -> None:
    """A fault of one product, put in by the check itself as --inject does it."""
    seed = case_seed("compute", name, precision, index)
    gpus, faulty = _place(name, precision, index)
    shapes = _shapes(name, precision, index)
    context = context_of(gpus, faulty, seed=seed, precisions=(precision,), inject=(name,), shapes=shapes)
    judged = _judge("gemm", gpus, faulty, REGISTRY["gemm"].run(context), (precision,))
    seen_by = products_view(FAULTS[name], precision, seed, always=False)
    record(row("compute", f"gemm, once: {name}", seed, judged, variant=precision, tools=seen_by))
    expect = Expect(_gemm_codes(name, precision), FAIL, frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}, {precision}, shapes {dict(shapes)}, faulty GPU {faulty}")


_ALWAYS = dict.fromkeys(FAULTS, always)
# Bits and whole results; the rest of the table is injected always, once and in every precision.
_EACH = {name: each(7) for name in ("bitflip", "low_mantissa", "warp_run", "nan", "operand_b")}


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("precision", operands.PRECISIONS)
@pytest.mark.parametrize(
    ("kind", "name"), [*(("always", name) for name in _ALWAYS), *(("each 7th product", name) for name in _EACH)]
)
def test_faulty_products(kind: str, name: str, precision: str, index: int, record: Record) -> None:
    """Hardware that is wrong in every product, or in each seventh: injected below the check, in the device."""
    seed = case_seed("compute", kind, name, precision, index)
    when: When = _ALWAYS[name] if kind == "always" else _EACH[name]
    judged, gpus, faulty, shapes = _judge_faulty(
        FaultyProductsDevice(FAULTS[name], when, seed), seed, precision, kind, name, index
    )
    seen_by = products_view(FAULTS[name], precision, seed, always=kind == "always")
    record(row("compute", f"gemm, {kind}: {name}", seed, judged, variant=precision, tools=seen_by))
    # Random products of a faulty GPU differ too; NaN comes as such where it comes into exact products.
    also = frozenset({"GEMM_UNSTABLE", "GEMM_MISMATCH", "GEMM_NONFINITE"})
    expect = Expect(_gemm_codes(name, precision), FAIL, frozenset({faulty}), also=also)
    demand(expect, judged, gpus, f"seed {seed:#x}, {precision}, shapes {dict(shapes)}, faulty GPU {faulty}")


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("precision", operands.PRECISIONS)
@pytest.mark.parametrize("name", ["bitflip", "low_mantissa"])
def test_products_wrong_under_random_operands_only(name: str, precision: str, index: int, record: Record) -> None:
    """Nothing is wrong with exact products: the bits of a repeat tell."""
    seed = case_seed("compute", "random", name, precision, index)
    device = FaultyProductsDevice(FAULTS[name], random_only, seed)
    judged, gpus, faulty, shapes = _judge_faulty(device, seed, precision, "random", name, index)
    seen_by = products_view(FAULTS[name], precision, seed, always=False)
    record(row("compute", f"gemm, random operands: {name}", seed, judged, variant=precision, tools=seen_by))
    expect = Expect(frozenset({"GEMM_UNSTABLE"}), FAIL, frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}, {precision}, shapes {dict(shapes)}, faulty GPU {faulty}")


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("precision", operands.PRECISIONS)
def test_random_products_always_wrong_in_the_same_way(precision: str, index: int, record: Record) -> None:
    """Exact products are right and repeats agree: only the other GPUs of the node tell, and prove nothing."""
    name, seed = "low_mantissa", case_seed("compute", "rounding", precision, index)
    source = case_random("place", "rounding", precision, index)
    gpus = made_up_gpus(source.randint(3, 8))
    faulty, shapes = source.randrange(len(gpus)), _shapes(precision, "rounding", index)
    devices = (FaultyProductsDevice(FAULTS[name], every_random, seed), None)
    bad, good = (
        REGISTRY["gemm"].run(context_of(gpus, faulty, seed=seed, precisions=(precision,), device=device, shapes=shapes))
        for device in devices
    )
    results = [replace(bad if gpu.index == faulty else good, gpu=gpu.uuid) for gpu in gpus]
    tests = [test for gpu in gpus for test in clean("gemm", gpu, (precision,))[1]]
    judged = verdict(observe(plan_of(gpus, "gemm"), results, tests))
    seen_by = products_view(FAULTS[name], precision, seed, always=True)
    record(row("compute", f"gemm, all random: {name}", seed, judged, variant=precision, tools=seen_by))
    expect = Expect(frozenset({"GEMM_DISAGREE"}), INCONCLUSIVE, frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}, {precision}, shapes {dict(shapes)}, faulty GPU {faulty}")


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("precision", operands.PRECISIONS)
def test_operand_buffers_at_one_address(precision: str, index: int, record: Record) -> None:
    """An address line that is stuck. The tools keep equal data in all slots, so a wrong slot reads right."""
    seed = case_seed("compute", "alias", precision, index)
    judged, gpus, faulty, _ = _judge_faulty(AliasingDevice(), seed, precision, "alias", precision, index)
    looked = {"gpu-burn": rules.GPU_BURN_PRECISIONS, "dcgm": rules.DCGM_PRECISIONS}
    seen_by = {tool: MISSED if precision in tested else NOT_TESTED for tool, tested in looked.items()}
    record(row("compute", "gemm, always: address line", seed, judged, variant=precision, tools=seen_by))
    also = frozenset({"GEMM_UNSTABLE"})
    demand(Expect(frozenset({"GEMM_MISMATCH"}), FAIL, frozenset({faulty}), also=also), judged, gpus, f"seed {seed:#x}")


def _judge_faulty(
    device: Device, seed: int, precision: str, *case: object
) -> tuple[Judgement, tuple[Gpu, ...], int, Mapping[str, int]]:
    gpus, faulty = _place(precision, *case)
    shapes = _shapes(precision, *case)
    context = context_of(gpus, faulty, seed=seed, precisions=(precision,), device=device, shapes=shapes)
    return _judge("gemm", gpus, faulty, REGISTRY["gemm"].run(context), (precision,)), gpus, faulty, shapes


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("precision", ["fp64", "fp32", "int8"])
@pytest.mark.parametrize("name", ["bitflip", "low_mantissa", "warp_run", "nan", "skipped_launch"])
def test_a_probe_of_known_bits_that_is_wrong(name: str, precision: str, index: int, record: Record) -> None:
    """The first product of the check is wrong and nothing afterwards: the probe of its data path."""
    seed = case_seed("compute", "probe", name, precision, index)
    gpus, faulty = _place("probe", name, precision, index)
    device = FaultyProductsDevice(FAULTS[name], only_first, seed)
    context = context_of(gpus, faulty, seed=seed, precisions=(precision,), device=device)
    judged = _judge("gemm", gpus, faulty, REGISTRY["gemm"].run(context), (precision,))
    record(row("compute", f"gemm, probe only: {name}", seed, judged, variant=precision, tools=TOOLS_NOT_TESTED))
    expect = Expect(_gemm_codes(name, precision), FAIL, frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}, {precision}, faulty GPU {faulty}")


@pytest.mark.parametrize("index", range(FAULTY_SEEDS))
@pytest.mark.parametrize("name", ["bitflip", "nan", "wrong_value"])
@pytest.mark.parametrize("check", ["gemm", "power"])
def test_a_product_that_is_wrong_in_the_selftest_only(check: str, name: str, index: int, record: Record) -> None:
    """The first product of a cold GPU comes wrong and nothing afterwards: its right result was known."""
    seed = case_seed("compute", "first", check, name, index)
    gpus, faulty = _place("first", check, name, index)
    context = context_of(
        gpus, faulty, seed=seed, precisions=("bf16",), device=FaultyProductsDevice(FAULTS[name], only_first, seed)
    )
    found = {gpu.index: clean(check, gpu, ("bf16",)) for gpu in gpus}
    tests = [test for gpu in gpus if gpu.index != faulty for test in found[gpu.index][1]]
    tests += REGISTRY[check].selftest(context)
    judged = verdict(observe(plan_of(gpus, check), [result for result, _ in found.values()], tests))
    record(row("compute", f"{check}, self-test only: {name}", seed, judged, tools=TOOLS_NOT_TESTED))
    code = "POWER_MISMATCH" if check == "power" else min(_gemm_codes(name, "bf16"))
    demand(Expect(frozenset({code}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}, faulty GPU {faulty}")


# --- SMs ---

_SM_OUTCOME = {
    "absent_sm": ("COVERAGE_LOW", INCONCLUSIVE),
    # All SMs give the same value outside the documented error: a library or the chip, nobody can tell.
    "special_everywhere": ("SM_MISMATCH", INCONCLUSIVE),
}


@pytest.mark.parametrize("index", range(SM_SEEDS))
@pytest.mark.parametrize("name", SM_FAULTS)
def test_faulty_sm(name: str, index: int, record: Record) -> None:
    seed = case_seed("compute", "sm", name, index)
    gpus, faulty = _place("sm", name, index)
    judged = _judge("sm", gpus, faulty, REGISTRY["sm"].run(context_of(gpus, faulty, seed=seed, inject=(name,))))
    record(row("compute", f"sm: {name}", seed, judged, tools=TOOLS_NOT_TESTED))
    code, severity = _SM_OUTCOME.get(name, ("SM_MISMATCH", FAIL))
    expect = Expect(frozenset({code}), severity, frozenset({faulty}), also=frozenset({"COVERAGE_LOW"}))
    demand(expect, judged, gpus, f"seed {seed:#x}, faulty GPU {faulty}")


# --- memory ---


@pytest.mark.parametrize("index", range(MEMORY_SEEDS))
@pytest.mark.parametrize("name", ["inject bitflip", "inject stuck", *FaultyHbm.KINDS])
def test_faulty_memory(name: str, index: int, record: Record) -> None:
    seed = case_seed("compute", "hbm", name, index)
    gpus, faulty = _place("hbm", name, index)
    inject = (name.removeprefix("inject "),) if name.startswith("inject ") else ()
    device = None if inject else FaultyHbm(name, seed)
    context = context_of(gpus, faulty, seed=seed, inject=inject, device=device)
    judged = _judge("hbm", gpus, faulty, REGISTRY["hbm"].run(context))
    record(row("compute", f"hbm: {name}", seed, judged, tools=TOOLS_NOT_TESTED))
    demand(Expect(frozenset({"HBM_BIT_ERROR"}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}")


# --- rates ---


def _rates(gpus: tuple[Gpu, ...], faulty: int, name: str, unit: str, healthy: float, slow: float) -> Judgement:
    """A run on (for once) real hardware that covered what it must, with one rate on each GPU."""
    results: list[CheckResult] = []
    tests: list[SelftestResult] = []
    for gpu in gpus:
        result, own = clean("hbm", gpu)
        rate = Measurement(name, slow if gpu.index == faulty else healthy, unit)
        size_bytes = gpu.memory_bytes
        covered = coverage(
            "hbm", covered_bytes=size_bytes, gpu_memory_bytes=size_bytes, patterns=CORE, verified_s=result.seconds
        )
        results.append(replace(result, measurements=(rate,), coverage=covered))
        tests += own
    return verdict(observe(plan_of(gpus, "hbm"), results, tests, simulated=False))


@pytest.mark.parametrize("index", range(MEMORY_SEEDS))
def test_a_rate_under_a_vendors_floor(index: int, record: Record) -> None:
    """A GPU at a third of its rate. gpu-burn only prints rates; DCGM's tolerance is 0, so off, unless it is set."""
    seed = case_seed("compute", "slow", index)
    gpus, faulty = _place("slow", index)
    judged = _rates(gpus, faulty, "h2d", "GB/s", 55.0, 55.0 / 3)
    shares = [55.0 / 3 if gpu.index == faulty else 55.0 for gpu in gpus]
    dcgm = SEEN if rules.dcgm_too_slow(shares) else MISSED
    tools = {"gpu-burn": SEEN if rules.gpu_burn_says_faulty([0, 0]) else MISSED, "dcgm": dcgm}
    record(row("compute", "rate: a third of a vendor's floor", seed, judged, tools=tools))
    demand(Expect(frozenset({"SLOW"}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}")


def test_a_rate_under_a_derived_floor_is_told_only() -> None:
    gpus, faulty = _place("slow", "derived")
    judged = _rates(gpus, faulty, "gemm_bf16_throughput", "TFLOP/s", 700.0, 300.0)
    demand(Expect(frozenset(), Verdict.PASS), judged, gpus, "derived")
    assert {(notice.code, notice.gpu) for notice in judged.notices} == {("SLOW", gpus[faulty].uuid)}
