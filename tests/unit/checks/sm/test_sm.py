"""The SM kernels' definition against exact arithmetic, the simulated SMs against it, and the judge of their rows."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks.sm import cpu as sm_cpu
from gpu_burnin.checks.sm import golden as sm_golden
from gpu_burnin.checks.sm import kernels as sm
from gpu_burnin.checks.sm import special as sm_special
from gpu_burnin.checks.sm.expected import Bounded, Exact
from gpu_burnin.checks.sm.faults import FAULT_NAMES, make_fault
from gpu_burnin.checks.sm.golden import expected
from gpu_burnin.checks.sm.judge import describe, judge, repeat_word
from gpu_burnin.checks.sm.kernels import ATOMIC_WORDS, FUNCTIONS, KERNELS, MOVED, THREADS, UNWRITTEN, SmRun
from gpu_burnin.exact.operands import random_words

ROUNDS = {"fp32": 2, "fp64": 2, "int": 3, "special": 2, "shuffle": 3, "shared": 2, "atomic": 2}
SEED = 0xC0FFEE


# --- arithmetic ---


def _nearest(value: Fraction, precision: int) -> Fraction:
    """Round to nearest, ties to even, with unlimited exponents."""
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - precision
    while abs(value) / Fraction(2) ** exponent >= 1 << precision:
        exponent += 1
    while abs(value) / Fraction(2) ** exponent < 1 << (precision - 1):
        exponent -= 1
    return round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent  # Fraction rounds half to even


def _operands(count: int, dtype: Any, seed: int) -> list[np.ndarray[Any, Any]]:
    """a, x and b as in the chains, among them sums that cancel and sums next to a tie."""
    rng = np.random.default_rng(seed)
    p = np.finfo(dtype).nmant + 1
    a = (rng.integers(1 << (p - 1), 1 << p, count) * 2.0**-p * rng.choice([-1, 1], count)).astype(dtype)
    x = (rng.integers(1 << (p - 1), 1 << p, count) * 2.0 ** (1 - p) * rng.choice([-1, 1], count)).astype(dtype)
    b = np.ldexp(rng.integers(1 << (p - 1), 1 << p, count).astype(dtype), rng.integers(-16, 16, count) + 1 - p)
    b[: count // 4] = -(a * x)[: count // 4]  # what is left is the rounding error of the product
    tie = slice(count // 4, count // 2)  # products halfway between two floats, and addends far below them
    odd = rng.integers(0, 1 << 10, (2, count // 2 - count // 4)) * 2 + 1
    a[tie], x[tie] = 1 + odd[0] * 2.0 ** -(p // 2), 1 + odd[1] * 2.0 ** (p // 2 - p)
    b[tie] = np.ldexp(b[tie], -80)
    return [np.asarray(v, dtype=dtype) for v in (a, x, b)]


@pytest.mark.parametrize(
    ("fma", "dtype", "precision"), [(sm_golden.fma32, np.float32, 24), (sm_golden.fma64, np.float64, 53)]
)
def test_the_fused_multiply_add_is_rounded_once(fma: Any, dtype: Any, precision: int) -> None:
    a, x, b = _operands(4000, dtype, 1)
    got = fma(a, x, b)
    exact = [Fraction(float(i)) * Fraction(float(j)) + Fraction(float(k)) for i, j, k in zip(a, x, b, strict=True)]
    assert [Fraction(float(v)) for v in got] == [_nearest(v, precision) for v in exact]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_roundings_would_be_seen(dtype: Any) -> None:
    """The operands of the test above tell a fused multiply-add from a product and a sum rounded one by one."""
    a, x, b = _operands(4000, dtype, 1)
    fma = sm_golden.fma32 if dtype is np.float32 else sm_golden.fma64
    assert (fma(a, x, b) != a * x + b).sum() > 500


def test_rounding_fp64_sums_to_fp32_alone_would_be_wrong() -> None:
    """Why fma32 rounds to odd first: plain FP64 rounds twice, and some operands show it."""
    a, x, b = _operands(4000, np.float32, 1)
    plain = (a.astype(np.float64) * x + b).astype(np.float32)
    assert (plain != sm_golden.fma32(a, x, b)).sum() > 200


# --- the definition and the simulated SMs ---


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", [0, SEED, (1 << 64) - 1])
def test_simulated_sms_agree_with_the_host_by_other_means(kernel: str, seed: int) -> None:
    rounds = ROUNDS[kernel]
    run, golden = sm_cpu.run(kernel, seed, rounds), expected(kernel, seed, rounds)
    assert run.rows.shape == (2 * sm_cpu.SIMULATED_MULTIPROCESSORS, sm.words(kernel, rounds))
    assert not any(golden.wrong(row).any() for row in run.rows)
    assert sorted(run.smid) == sorted(list(range(16)) * 2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_seeds_and_rounds_change_every_kernel(kernel: str) -> None:
    rounds = ROUNDS[kernel]
    row = sm_cpu.run(kernel, SEED, rounds).rows[0]
    assert expected(kernel, SEED + 1, rounds).wrong(row).sum() > row.size // 4
    if kernel != "special":  # its rounds stand side by side
        assert expected(kernel, SEED, rounds + 1).wrong(row).sum() > row.size // 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_flipped_bit_anywhere_is_wrong(kernel: str) -> None:
    rounds = ROUNDS[kernel]
    golden = expected(kernel, SEED, rounds)
    row = sm_cpu.run(kernel, SEED, rounds).rows[0]
    rng = np.random.default_rng(3)
    for _ in range(200):
        word, bit = int(rng.integers(row.size)), int(rng.integers(64))
        if kernel == "special" and bit % 32 < 12:
            continue  # within the documented error: found among the SMs, see below
        row[word] ^= np.uint64(1) << np.uint64(bit)
        if kernel == "special":
            assert _outside(golden, row, word, bit)
        else:
            assert np.flatnonzero(golden.wrong(row)).tolist() == [word]
        row[word] ^= np.uint64(1) << np.uint64(bit)


def _outside(golden: Any, row: Any, word: int, bit: int) -> bool:
    """A flip of a high bit leaves the bounds, except where tanh is known to 11 bits only."""
    function = FUNCTIONS[2 * (word // THREADS % sm.SPECIAL_WORDS) + bit // 32]
    if function in ("tanh", "sin", "cos", "lg2"):  # their bounds are absolute, or wide
        return bool(golden.wrong(row)[word]) or bit % 32 < 23
    return np.flatnonzero(golden.wrong(row)).tolist() == [word]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bounds_of_special_functions_hold_the_documented_error_and_no_more(name: str) -> None:
    start = random_words(5, 0, THREADS * 8).reshape(THREADS, 8)
    at = sm_special.arguments(start, 0)
    exact, error = sm_special.reference(name, at[name], at["over"])
    x, size = at[name].astype(np.float64), np.abs(exact)
    ulp = np.spacing(size.astype(np.float32)).astype(np.float64)
    documented = {
        "ex2": 2 * ulp, "lg2": np.where((x > 0.5) & (x < 2), 2.0**-22, 2.0**-22 * size), "sin": 2.0**-20.5 + 0 * x,
        "cos": 2.0**-20.5 + 0 * x, "rsqrt": 2.0**-22.9 * size, "rcp": ulp, "sqrt": 2.0**-23 * size,
        "tanh": 2.0**-11 * size, "sqrt_rn": 0 * x, "div_rn": 0 * x,
    }[name]  # fmt: skip
    if not name.endswith("_rn"):
        documented = documented + ulp / 2  # from the correctly rounded result
    assert np.isfinite(exact).all() and (size > 2.0**-125).all()
    assert ((error >= documented) & (error <= documented + 2.0**-49 * size)).all()
    if name in ("sin", "cos"):
        assert (np.abs(x) <= 2 * np.pi).all()


@pytest.mark.parametrize(("name", "ulps"), [("rcp", 1), ("ex2", 2)])
def test_what_is_as_far_from_the_rounded_result_as_documented_is_right(name: str, ulps: int) -> None:
    start = random_words(5, 0, THREADS * 8).reshape(THREADS, 8)
    at = sm_special.arguments(start, 0)
    exact, error = sm_special.reference(name, at[name], at["over"])
    rounded = exact.astype(np.float32)

    def inside(steps: int) -> np.ndarray:
        result = (rounded.view(np.int32) + np.int32(steps)).view(np.float32).astype(np.float64)
        return np.abs(result - exact) <= error

    assert inside(ulps).all() and inside(-ulps).all()
    assert not inside(ulps + 1).all() and not inside(ulps + 2).any() and not inside(-ulps - 2).any()


def test_bounds_refuse_nan_and_the_next_value_outside() -> None:
    golden = Bounded(low=np.array([[1.0, -2.0]]), high=np.array([[1.0, -1.0]]))

    def wrong(first: float, second: float) -> bool:
        return bool(golden.wrong(np.array([first, second], dtype=np.float32).view(np.uint64))[0])

    assert not wrong(1.0, -1.5)
    assert wrong(np.nextafter(np.float32(1), np.float32(2)), -1.5)
    assert wrong(1.0, np.nan) and wrong(1.0, -0.5) and wrong(np.inf, -1.5)
    assert golden.word(0) == "1.0 to 1.0 and -2.0 to -1.0"


def test_unknown_kernels_and_faults_are_named() -> None:
    with pytest.raises(KeyError, match="choose from fp32"):
        sm.words("fp16", 1)
    with pytest.raises(KeyError, match="choose from stuck_bit"):
        make_fault("no_such_fault", 1)
    with pytest.raises(KeyError, match="does not go with the kernel int"):
        make_fault("lost_atomic", 1, "int")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_word_has_a_place(kernel: str) -> None:
    places = [tuple(sorted((k, str(v)) for k, v in sm.place(kernel, w).items())) for w in range(sm.words(kernel, 2))]
    assert len(set(places)) == len(places)


def test_places_of_words() -> None:
    assert sm.place("int", THREADS + 37) == {"thread": 37, "lane": 5, "value": "digest of all steps"}
    assert sm.place("special", (5 + 1) * THREADS) == {
        "thread": 0, "lane": 0, "round": 1, "functions": ["sin", "cos"],
    }  # fmt: skip
    assert sm.place("atomic", ATOMIC_WORDS - 1) == {"space": "global", "operation": "order", "cell": 31}


# --- the judge ---


def _run(kernel: str) -> tuple[SmRun, Any]:
    return sm_cpu.run(kernel, SEED, ROUNDS[kernel]), expected(kernel, SEED, ROUNDS[kernel])


def _flip(run: SmRun, blocks: Any, word: int, bit: int) -> SmRun:
    values = run.rows.copy()
    values[blocks, word] ^= np.uint64(1) << np.uint64(bit)
    return replace(run, rows=values)


@pytest.mark.parametrize("kernel", KERNELS)
def test_healthy_runs_are_clean(kernel: str) -> None:
    verdicts = judge(*_run(kernel))
    assert verdicts.clean
    assert verdicts.covered == frozenset(range(16))


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_bit_on_one_sm_names_the_sm_and_the_word(kernel: str) -> None:
    run, golden = _run(kernel)
    (block, _) = np.flatnonzero(run.smid == 11)
    verdicts = judge(_flip(run, block, 33, 0), golden)
    (wrong,) = verdicts.wrong
    assert (wrong.sm, wrong.blocks, wrong.first, wrong.words.tolist()) == (11, 1, 33, [33])
    assert wrong.got ^ int(run.rows[block, 33]) == 1
    entry = describe(kernel, wrong)
    assert entry["compared_with"] == ("peers" if kernel == "special" else "expected")
    assert entry["expected"] == f"{int(run.rows[block, 33]):#018x}"


def test_special_values_within_bounds_follow_the_majority_of_sms() -> None:
    run, golden = _run("special")
    minority = np.isin(run.smid, (2, 3, 5))
    verdicts = judge(_flip(run, minority, 7, 0), golden)
    assert [(w.sm, w.blocks, w.against) for w in verdicts.wrong] == [(2, 2, "peers"), (3, 2, "peers"), (5, 2, "peers")]
    assert not verdicts.divided


def test_without_a_majority_no_sm_is_named() -> None:
    run, golden = _run("special")
    verdicts = judge(_flip(run, run.smid < 8, 7, 0), golden)
    assert verdicts.divided and not verdicts.wrong and not verdicts.clean


def test_special_values_out_of_bounds_are_wrong_even_with_a_majority() -> None:
    run, golden = _run("special")
    verdicts = judge(_flip(run, run.smid < 12, 7, 22), golden)
    assert [w.sm for w in verdicts.wrong] == list(range(12))
    assert all(w.against == "expected" for w in verdicts.wrong)


@pytest.mark.parametrize("kernel", ["special", "int"])
def test_the_same_wrong_word_on_all_sms_names_none(kernel: str) -> None:
    run, golden = _run(kernel)
    verdicts = judge(_flip(run, slice(None), 7, 22), golden)
    assert not verdicts.wrong
    assert verdicts.common is not None and (verdicts.common.sm, verdicts.common.first) == (None, 7)


def test_ids_that_cannot_be_and_blocks_that_never_wrote() -> None:
    run, golden = _run("int")
    smid = run.smid.copy()
    smid[smid == 4] = 99
    smid[0 if run.smid[0] != 4 else 1] = UNWRITTEN
    verdicts = judge(replace(run, smid=smid), golden)
    assert (verdicts.unknown_ids, verdicts.silent) == ((99,), 1)
    assert 4 not in verdicts.covered and not verdicts.clean


def test_a_block_that_moved_counts_for_no_sm_but_is_verified() -> None:
    run, golden = _run("int")
    block = int(np.flatnonzero(run.smid == 4)[0])
    smid = np.where(run.smid == 4, np.int32(MOVED), run.smid)
    moved = replace(run, smid=smid)
    verdicts = judge(moved, golden)
    assert verdicts.clean and verdicts.covered == frozenset(range(16)) - {4}
    (wrong,) = judge(_flip(moved, block, 5, 5), golden).wrong
    assert (wrong.sm, wrong.blocks) == (None, 1)


def test_many_different_rows_do_not_stop_the_judge() -> None:
    run, golden = _run("int")
    values = run.rows[np.arange(200) % 32].copy()
    values[:, 9] ^= np.arange(1, 201, dtype=np.uint64)
    verdicts = judge(SmRun(np.arange(200, dtype=np.int32), values, 200), golden)
    assert [w.sm for w in verdicts.wrong] == list(range(200))


def test_a_repeat_is_right_the_same_other_or_did_not_reach_the_sm() -> None:
    run, golden = _run("int")
    hit = run.smid == 6
    before = judge(_flip(run, hit, 3, 3), golden).wrong[0]
    assert repeat_word(before, judge(run, golden)) == "right"
    assert repeat_word(before, judge(_flip(run, hit, 3, 3), golden)) == "same"
    assert repeat_word(before, judge(_flip(run, hit, 3, 4), golden)) == "other"
    gone = replace(run, smid=np.where(hit, np.int32(7), run.smid))
    assert repeat_word(before, judge(gone, golden)) == "not reached"


# --- faults below the detector ---


@pytest.mark.parametrize("name", [n for n in FAULT_NAMES if n not in ("absent_sm", "skipped_launch")])
@pytest.mark.parametrize("seed", range(4))
def test_every_fault_of_a_simulated_sm_is_seen(name: str, seed: int) -> None:
    fault = make_fault(name, seed)
    kernel = fault.kernel or "fp64"
    run = sm_cpu.run(kernel, SEED, ROUNDS[kernel], fault)
    verdicts = judge(run, expected(kernel, SEED, ROUNDS[kernel]))
    assert not verdicts.clean
    if name not in ("special_everywhere", "bad_smid"):
        assert [w.sm for w in verdicts.wrong] == [fault.sm % 16]


def test_a_fault_is_in_its_own_kernel_only() -> None:
    fault = make_fault("lost_atomic", 1)
    assert judge(sm_cpu.run("int", SEED, 2, fault), expected("int", SEED, 2)).clean


def test_an_absent_sm_and_a_skipped_launch() -> None:
    run = sm_cpu.run("int", SEED, 2, make_fault("absent_sm", 9))
    verdicts = judge(run, expected("int", SEED, 2))
    assert verdicts.clean and len(verdicts.covered) == 15
    run = sm_cpu.run("int", SEED, 2, make_fault("skipped_launch", 9))
    assert judge(run, expected("int", SEED, 2)).silent == 32
    assert run.launches == 0


def test_exact_rows_show_what_was_expected() -> None:
    assert Exact(np.array([255], dtype=np.uint64)).word(0) == "0x00000000000000ff"
