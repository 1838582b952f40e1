"""Rates that prove a data path: every model at the rates that libraries reach, and every wrong path."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpu_burnin.checks.gemm.data_path import judge_path, own_peak, simulated_path
from gpu_burnin.checks.gemm.probe import BitProbe
from gpu_burnin.exact import operands
from gpu_burnin.hardware.skus import Sku, load_skus
from gpu_burnin.system.codec import to_json

SKUS = load_skus().skus
# What bits leave open on a GPU: probe.py; FP8 of Ada and Hopper is told by its short accumulator.
_RIVALS: dict[str, tuple[str, ...]] = {"bf16": ("tf32",), "fp16": ("tf32",), "int8": ("int8_vector",)}
# Published bests of BF16 and FP8 (T/s), stas00/ml-engineering @744d01e; FP16 as BF16, TF32 half, INT8 as FP8.
_PUBLISHED = {
    "a100-sxm4-80gb": (271.2, None), "a100-pcie-40gb": (252.9, None), "h100-sxm5-80gb": (794.5, 1402.6),
    "h200-sxm": (794.5, 1453.4), "gh200-480gb": (828.6, 1535), "b200-sxm": (1745, 3432.5), "b300-sxm": (1769, None),
    "gb200": (1822, 3615.6),
}  # fmt: skip
# Shares of their peaks that libraries are taken to reach.
_SHARES = (0.55, 0.7, 0.87)


def _probe(sku: Sku, precision: str) -> BitProbe:
    rivals = _RIVALS.get(precision, ())
    if precision == "fp8_e4m3" and sku.architecture == "blackwell":
        rivals = ("fp16", "bf16")
    # A unit that the model lacks made nothing: Volta and Turing have no TF32.
    rivals = tuple(rival for rival in rivals if rival in sku.peaks)
    return BitProbe(precision, "path", True, "bits", precision, rivals)


def _peak(sku: Sku, precision: str) -> float:
    peak = own_peak(precision, sku.peaks)
    assert peak is not None
    return peak


def _unproven(sku: Sku, rates: dict[str, float]) -> dict[str, str]:
    paths = {p: judge_path(_probe(sku, p), rates, sku.peaks) for p in sku.precisions}
    return {p: path.why for p, path in paths.items() if not path.proven}


@pytest.mark.parametrize("key", SKUS)
def test_a_healthy_gpu_of_any_model_proves_all_whatever_its_library_reaches(key: str) -> None:
    sku = SKUS[key]
    for shares in itertools.product(_SHARES, repeat=4):
        share = dict(zip(("tf32", "bf16", "int8", "fp8_e4m3"), shares, strict=True))
        rates = {p: share.get("bf16" if p == "fp16" else p, shares[0]) * _peak(sku, p) for p in sku.precisions}
        assert not _unproven(sku, rates), rates


@pytest.mark.parametrize("key", SKUS)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.55, 0.75, 1.0, 1.08])
def test_a_gpu_that_is_throttled_or_boosts_as_a_whole_proves_all(key: str, share: float) -> None:
    sku = SKUS[key]
    assert not _unproven(sku, {p: share * _peak(sku, p) for p in sku.precisions})


@pytest.mark.parametrize("key", _PUBLISHED)
def test_published_rates_prove(key: str) -> None:
    bf16, fp8 = _PUBLISHED[key]
    rates = {"bf16": bf16, "fp16": bf16, "tf32": bf16 / 2, "int8": fp8 or 1.7 * bf16, "fp8_e4m3": fp8 or 1.7 * bf16}
    assert not _unproven(SKUS[key], rates)


@pytest.mark.parametrize("key", SKUS)
def test_products_that_a_rival_made_have_its_rate_and_prove_nothing(key: str) -> None:
    sku = SKUS[key]
    healthy = {p: 0.75 * _peak(sku, p) for p in sku.precisions}
    for precision in sku.precisions:
        for rival in _probe(sku, precision).rivals:
            for share in (0.9, 1.0, 1.1):  # other operands, other power
                rate = share * healthy[rival] if rival in healthy else min(1.0, share) * sku.peaks[rival]
                path = judge_path(_probe(sku, precision), {**healthy, precision: rate}, sku.peaks)
                assert not path.proven, (precision, rival)
                assert any(name in path.why for name in _probe(sku, precision).rivals)
                assert path.rate_floor is not None and path.rate_floor >= rate


@pytest.mark.parametrize("key", SKUS)
def test_each_precision_that_a_model_is_asked_for_can_be_told(key: str) -> None:
    """A pair of tensor-core paths that are less than 1.9 times apart could hold healthy GPUs for ever: such a precision
    is left out of the model's peaks, with the reason in `source`, as INT8 is for the B300."""
    sku = SKUS[key]
    for precision in sku.precisions:
        for rival in _probe(sku, precision).rivals:
            least = 1.9 if rival in operands.PRECISIONS else 1.8
            assert _peak(sku, precision) >= least * sku.peaks[rival], (precision, rival)


def test_a_precision_that_the_model_s_data_do_not_ask_for_holds_nothing() -> None:
    b300 = SKUS["b300-sxm"]
    path = judge_path(_probe(b300, "int8"), {"int8": 140.0}, b300.peaks)
    assert (path.proven, path.asked) == (False, False) and "not required of this model" in path.why
    assert to_json(path)["asked"] is False


@pytest.mark.parametrize("key", [key for key, sku in SKUS.items() if "int8" in sku.precisions])
@pytest.mark.parametrize("clocks", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("share", _SHARES)
def test_int8_by_vector_units_of_a_throttled_gpu_proves_nothing(key: str, clocks: float, share: float) -> None:
    sku = SKUS[key]
    rates = {p: clocks * share * _peak(sku, p) for p in sku.precisions} | {"int8": clocks * sku.peaks["int8_vector"]}
    path = judge_path(_probe(sku, "int8"), rates, sku.peaks)
    assert not path.proven
    assert ("held back" in path.why) == (clocks * share < 0.55)


def test_what_is_told_by_bits_needs_no_rate() -> None:
    h200 = SKUS["h200-sxm"]
    for precision in ("fp64", "fp32", "tf32", "fp8_e4m3"):
        path = judge_path(_probe(h200, precision), {}, h200.peaks)
        assert (path.proven, path.rate_floor, path.compared_with) == (True, None, None)
    for precision in ("bf16", "int8"):
        assert "no rate was measured" in judge_path(_probe(h200, precision), {}, h200.peaks).why


def test_the_report_says_the_rate_the_floor_and_what_was_compared() -> None:
    h200 = SKUS["h200-sxm"]
    told = judge_path(_probe(h200, "bf16"), {"bf16": 700.0, "tf32": 400.0}, h200.peaks)
    assert (told.rate, told.rate_floor) == (700.0, 500.0)
    assert told.compared_with == "1.25 times the tf32 rate measured here"
    assert told.why == "bits; 700 T/s is above 1.25 times the tf32 rate measured here (500 T/s)"
    unmeasured = judge_path(_probe(h200, "bf16"), {"bf16": 700.0}, h200.peaks)
    assert (unmeasured.proven, unmeasured.compared_with) == (True, "the peak of tf32")


def test_a_rate_beyond_the_own_peak_is_that_of_another_unit() -> None:
    b200 = SKUS["b200-sxm"]
    for precision in ("fp64", "fp32"):  # emulated on tensor cores
        path = judge_path(_probe(b200, precision), {precision: 3 * _peak(b200, precision)}, b200.peaks)
        assert not path.proven and "above the path's own peak" in path.why


def test_bits_that_speak_against_a_path_beat_any_rate() -> None:
    against = BitProbe("fp32", "tf32", False, "operands truncated to 11 bits", "tf32")
    assert not judge_path(against, {"fp32": 60.0}, SKUS["h200-sxm"].peaks).proven


def test_nothing_is_proven_of_an_unknown_model() -> None:
    path = judge_path(BitProbe("fp32", "native fp32", True, "bits", "fp32"), {"fp32": 50.0}, None)
    assert not path.proven and path.asked


def test_a_simulation_proves_no_data_path() -> None:
    told = to_json(simulated_path("bf16", 1.0))
    assert told["proven"] is False
    assert set(told) == {"path", "proven", "why", "rate", "rate_floor", "compared_with", "asked"}


def test_shares_cover_what_is_published() -> None:
    reached = [rate / SKUS[key].peaks["bf16"] for key, (rate, _) in _PUBLISHED.items()]
    assert np.min(reached) > _SHARES[0] and np.max(reached) < _SHARES[-1]
