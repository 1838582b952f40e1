"""The least that a check must have covered, said by the coverage of that check (gpu_burnin.checks.NAME.result)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_burnin.types import Coverage, Shortfall


def too_small_share(
    coverage: Coverage, part: str, whole: str, least: float, what: str = "covered"
) -> Iterator[Shortfall]:
    """Where a part is less than the `least` share of a whole, both by the names of their fields in the coverage.

    What was not counted was not covered, and a whole of nothing is no coverage.
    """
    counted: dict[str, int | None] = {name: getattr(coverage, name) for name in (part, whole)}
    share = (counted[part] or 0) / (counted[whole] or 1) if (counted[whole] or 0) > 0 else 0.0
    if share < least:
        message = f"{share:.1%} was {what}, at least {least:.0%} is required"
        yield Shortfall(message, {**counted, "least_share": least})
