"""Whether a precision ran on its own data path: what the bits of its probe leave open, rates decide.

A rival path is refused when the products came clearly faster than it could have made them:
- of a rival that is itself a precision of this check, the rate was measured on this GPU in the same run, with plain
  products that nothing verifies; so a GPU that is throttled, or a library that reaches 60 % of a data sheet, is
  compared with itself. Clearly is CLEARLY times: libraries are taken to reach 55 to 87 % of a tensor core's peak (73 to
  87 % published for BF16, 71 to 76 % for FP8: stas00/ml-engineering @744d01e), and the peaks of the pairs in skus.yaml
  are a factor of 1.98 or 2 apart, so that a healthy pair is at least 1.98 * 0.55 / 0.87 = 1.25 apart; products that the
  rival made have the rival's rate;
- vector units have no library whose rate could be measured, and products by them cannot be faster than their peak: the
  bound is that of skus.yaml, lowered as far as this GPU is held back. BF16 and FP16 show how far: since a library
  reaches 55 % of their peaks at full clocks, a GPU where they reach a share s is at s / 0.55 of its clocks at most.
FP32, FP64 and TF32 are told by their bits alone, FP8 of Ada and Hopper too, and INT8 from all units that add in FP32.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_burnin.checks.gemm.probe import BitProbe
from gpu_burnin.checks.gemm.result import DataPath
from gpu_burnin.hardware.skus import PATH_OF

# How many times a rival's rate a product must be made at.
CLEARLY = 1.25
# The least share of a tensor core's peak that a library reaches.
_LEAST_SHARE = 0.55
# A rate this far above the path's own peak is that of a faster unit: libraries can emulate FP32 and FP64. Below it are
# clocks over the nominal boost, and timings of little work.
_ABOVE_PEAK = 1.25
# Data paths of skus.yaml that are a precision's own, where there are several.
_OWN_PATHS: dict[str, tuple[str, ...]] = {"fp64": ("fp64_vector", "fp64_tensor")}


def own_peak(precision: str, peaks: Mapping[str, float]) -> float | None:
    """What the path of a precision reaches at most; None where the model has none."""
    names = _OWN_PATHS.get(precision, (PATH_OF[precision],))
    return max((peaks[name] for name in names if name in peaks), default=None)


def judge_path(probe: BitProbe, rates: Mapping[str, float], peaks: Mapping[str, float] | None) -> DataPath:
    """Put bits and rates (by precision, TFLOP/s or TOP/s) together. Without the model's peaks nothing is proven."""
    rate = rates.get(probe.precision)
    if peaks is None:
        return DataPath(probe.path, False, f"{probe.why}; the peak rates of this model are not known", rate)
    own = own_peak(probe.precision, peaks)
    if own is None:
        why = f"{probe.why}; {probe.precision} is not required of this model (skus.yaml)"
        return DataPath(probe.path, False, why, rate, asked=False)
    if not probe.seen:
        return DataPath(probe.path, False, probe.why, rate)
    if rate is not None and rate > _ABOVE_PEAK * own:
        return DataPath(probe.path, False, f"{rate:.4g} T/s is above the path's own peak of {own:.4g} T/s", rate)
    bounds = [_bound(rival, rates, peaks) for rival in probe.rivals if rival in peaks]
    if not bounds:
        return DataPath(probe.path, True, f"{probe.why}; bits alone tell", rate)
    floor, compared_with = max(bounds)
    if rate is None:
        return DataPath(probe.path, False, f"{probe.why}; no rate was measured", None, floor, compared_with)
    faster = rate > floor
    is_or_not = "is" if faster else "is not"
    why = f"{probe.why}; {rate:.4g} T/s {is_or_not} above {compared_with} ({floor:.4g} T/s)"
    return DataPath(probe.path, faster, why, rate, floor, compared_with)


def _bound(rival: str, rates: Mapping[str, float], peaks: Mapping[str, float]) -> tuple[float, str]:
    """The rate that a rival path cannot reach, and what it is."""
    if rival in rates:
        return CLEARLY * rates[rival], f"{CLEARLY} times the {rival} rate measured here"
    held = _held_back(rates, peaks)
    if held < 1:
        return held * peaks[rival], f"the peak of {rival} at {held:.0%}, where BF16 and FP16 show this GPU held back"
    return peaks[rival], f"the peak of {rival}"


def _held_back(rates: Mapping[str, float], peaks: Mapping[str, float]) -> float:
    """The share of its full clocks that this GPU was at in its best moments, at most; 1 where nothing shows less."""
    shares = [rates[name] / peaks[name] for name in ("bf16", "fp16") if name in rates and name in peaks]
    return min(1.0, max(shares, default=1.0) / _LEAST_SHARE)


def simulated_path(precision: str, rate: float | None) -> DataPath:
    """On the CPU device there is no data path of a GPU to prove."""
    return DataPath("numpy", False, f"no GPU made these {precision} products", rate)
