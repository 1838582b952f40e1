"""How far under its peers' median a healthy value can be. Pure.

Nothing here assumes a normal distribution: nobody knows a spread at the odds that a fleet of a million rates needs.
What is assumed of a healthy one is that its lower tail falls at least as fast as an exponential tail: its hazard does
not fall (Barlow and Proschan, Mathematical Theory of Reliability, 1965). That holds for every log-concave density:
normal, uniform, logistic, Laplace, exponential and Gumbel to either side. It does not hold for power laws.

Then the distances under the quantile `kept` are bounded by exponential ones whose mean is estimated from the values
between the quantiles `kept` and `left_out`; those further out are counted and not measured (a sample censored on one
side, Epstein and Sobel, Journal of the American Statistical Association 48, 1953), so that values which do not belong
there cannot hide themselves. 2 m mean/estimate has a chi-square distribution of 2 m degrees, m the measured values,
so the odds that a healthy value lies c estimates or more under the quantile are (1 + c / m) ** -m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_burnin.fleet.baseline import FALSE_NAMES, LEAST_PEERS

Values = npt.NDArray[np.float64]

# What of a normal distribution is one sigma: 1 / its 75 % quantile.
MAD_TO_SIGMA = 1.4826
# Shares of the values: the tail that is measured begins at the first and ends at the second. The first pair stands for
# small groups and many slow GPUs, up to 4 %; the others for large groups, where the tail is steeper farther out.
_TAILS = ((0.20, 0.04), (0.05, 0.01), (0.01, 0.002))
# A tail of fewer values is used only where there is no other.
_LEAST_TAIL = 30


@dataclass(frozen=True)
class Spread:
    """Median and median absolute deviation of `peers` values, as they were measured."""

    median: float
    mad: float
    peers: int

    @property
    def robust_sigma(self) -> float:
        """The standard deviation that a normal distribution of this MAD has."""
        return MAD_TO_SIGMA * self.mad


def spread_of(values: Values) -> Spread:
    """Raises ValueError without values."""
    if not len(values):
        raise ValueError("no values have no spread")
    median = float(np.median(values))
    return Spread(median, float(np.median(np.abs(values - median))), len(values))


def lower_limit(values: Values, tests: int, false_names: float = FALSE_NAMES, alike: float = 1.0) -> float | None:
    """The value under which none is that belongs to these; None where they are fewer than LEAST_PEERS.

    Of all `tests` values that are judged in one look, these among them, `false_names` healthy ones lie under their
    limit, on average, at most. `alike` of the values say no more of the spread than one does.
    """
    if len(values) < LEAST_PEERS:
        return None
    belong = np.sort(values)
    # What lies outside is taken out, and no longer counts among what belongs there. Of healthy values nothing is.
    while True:
        tails = _tails(len(belong), alike)
        # Each tail gets its share of the odds, so that the highest of the limits keeps to all of them.
        limit = max(_limit(belong, tail, tests * len(tails) / false_names, alike) for tail in tails)
        first = int(np.searchsorted(belong, limit))
        if not first or len(belong) - first < LEAST_PEERS:
            return limit
        belong = belong[first:]


def wideness(values: Values) -> float:
    """The distance between the lower quartile and the median: a spread's width, on the side that matters."""
    lower, median = np.quantile(values, (0.25, 0.5))
    return float(median - lower)


def _tails(number: int, alike: float) -> tuple[tuple[int, int], ...]:
    found = tuple((int(number * kept), int(number * left_out)) for kept, left_out in _TAILS)
    return tuple(tail for tail in found if tail[0] - tail[1] >= _LEAST_TAIL * alike) or found[:1]


def _limit(ordered: Values, tail: tuple[int, int], odds: float, alike: float) -> float:
    """The limit by one tail: (how many values it has, how many of them are counted and not measured)."""
    kept, left_out = tail
    step = _step(ordered[left_out:])
    edge, far = ordered[kept], ordered[left_out]
    measured = kept - left_out
    distances = float((edge - ordered[left_out:kept]).sum()) + left_out * float(edge - far)
    # What a value lost by rounding is in no distance: it is added to all of them, and once for the edge and the value.
    mean = distances / measured + step
    share, known = kept / len(ordered), measured / alike
    units = known * math.expm1(max(math.log(share * odds), 0.0) / known)
    return float(edge) - step - mean * units


def _step(ordered: Values) -> float:
    """The step in which values come that were rounded, 0 where most differ from each other."""
    gaps = np.diff(ordered)
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if 0 < len(gaps) < len(ordered) / 4 else 0.0
