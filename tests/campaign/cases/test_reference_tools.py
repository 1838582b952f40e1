"""The reference tools' rules on results whose outcome is known, blind spots and what they do see."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign.reference_tools import detection_rules as rules
from tests.campaign.reference_tools.detection_rules import DcgmCounts


def _slots(dtype: type, *changes: float | None) -> list[np.ndarray]:
    """Slots of 205000.0 (the mean of the tools' results); a change is put into element 5 of its slot."""
    out = []
    for change in changes:
        slot: np.ndarray = np.full((4, 4), 1000.0 if dtype is np.float16 else 205000.0, dtype=dtype)
        if change is not None:
            slot.reshape(-1)[5] = change
        out.append(slot)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_slots_have_no_errors(dtype: type) -> None:
    slots = _slots(dtype, None, None, None)
    assert rules.gpu_burn_errors(slots) == 0
    assert rules.dcgm_counts(slots) == DcgmCounts(0, 0)


def test_fp32_sees_the_smallest_change_at_the_tools_own_values() -> None:
    """One unit in the last place of 205000 is 0.0156, above the tolerance."""
    step = float(np.nextafter(np.float32(205000.0), np.float32(np.inf)))
    slots = _slots(np.float32, None, step, None, step)
    assert rules.gpu_burn_errors(slots) == 2
    assert rules.dcgm_counts(slots) == DcgmCounts(2, 0)


def test_fp64_does_not_see_the_lowest_bits() -> None:
    """3436 units in the last place of 205000 fit into the tolerance of 1e-7."""
    slots = _slots(np.float64, None, 205000.0 + 0.9e-7, 205000.0 + 2e-7)
    assert rules.gpu_burn_errors(slots) == 1


def test_a_wrong_reference_slot_is_counted_in_all_others() -> None:
    assert rules.gpu_burn_errors(_slots(np.float32, 1.0, None, None, None)) == 3


def test_the_same_wrong_result_everywhere_is_right() -> None:
    slots = _slots(np.float32, 1.0, 1.0, 1.0)
    assert rules.gpu_burn_errors(slots) == 0
    assert not rules.dcgm_fails(rules.dcgm_counts(slots))


def test_nan_is_nothing_to_gpu_burn_and_counted_by_dcgm() -> None:
    slots = _slots(np.float32, None, np.nan, np.nan)
    assert rules.gpu_burn_errors(slots) == 0
    assert rules.dcgm_counts(slots) == DcgmCounts(0, 2)
    reference = _slots(np.float64, np.nan, None, None)
    assert rules.gpu_burn_errors(reference) == 0
    assert rules.dcgm_counts(reference) == DcgmCounts(0, 1)


def test_infinity_in_one_slot_is_an_error_and_in_all_is_not() -> None:
    assert rules.gpu_burn_errors(_slots(np.float32, None, np.inf)) == 1
    both = _slots(np.float32, np.inf, np.inf)
    assert rules.gpu_burn_errors(both) == 0
    assert rules.dcgm_counts(both) == DcgmCounts(0, 0)


def test_fp16_results_of_long_dot_products_are_all_infinite() -> None:
    """K = 8192 gives 204800 on average and FP16 ends at 65504: arithmetic errors are masked. K = 2048 fits."""
    assert np.isinf(rules.own_product(1, 8, 8, rules.DCGM_K, "fp16")).all()
    assert np.isfinite(rules.own_product(1, 8, 8, rules.DCGM_K_DEFAULT, "fp16")).all()


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_own_results_lie_where_the_tools_results_do(precision: str) -> None:
    slot = rules.own_product(3, 8, 8, rules.GPU_BURN_K, precision)
    assert abs(float(slot.mean()) - 204800) < 3000  # K times the mean square 25


def test_verdicts() -> None:
    assert not rules.gpu_burn_says_faulty([])  # hung before the first report
    assert not rules.gpu_burn_says_faulty([0, 0])
    assert rules.gpu_burn_says_faulty([0, 7, 0])
    assert rules.gpu_burn_says_faulty([-1])  # a process that caught a CUDA error reports -1
    assert rules.dcgm_fails(DcgmCounts(0, 1))
    assert rules.dcgm_fails(DcgmCounts(1, 0))


def test_a_slow_gpu_passes_by_default() -> None:
    rates = [60000.0, 60000.0, 20000.0, 60000.0]
    assert rules.dcgm_too_slow(rates) == ()
    assert rules.dcgm_too_slow(rates, 0.2) == (2,)
    assert rules.dcgm_too_slow([20000.0], 0.2) == ()
