"""How the time of a run is shared: each check gets its share of what is left when it starts."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_burnin.plan import CheckPlan

# Kept for ending the workers, the kernel log, the verdict and the report.
CLOSING_S = 3.0


def share(left_s: float, check: CheckPlan, later: Sequence[CheckPlan], turns: int = 1) -> float:
    """Seconds for `check` out of the `left_s` of the run, by its weight against the checks that come `later`.

    What start, self-tests and earlier checks have cost is in `left_s`, so a run keeps its time whatever they cost,
    as long as every check still gets its least. `turns` is the number of GPUs it has yet to run on one after the
    other. A check without a weight takes the time it takes and gets its least.
    """
    if not check.weight:
        return check.least_s
    timed = [other for other in later if other.weight]
    others_s = sum(other.least_s for other in later)
    whole = check.weight + sum(other.weight for other in timed)
    wanted = min((left_s - CLOSING_S) * check.weight / whole, left_s - CLOSING_S - others_s)
    return max(check.least_s, wanted / turns)
