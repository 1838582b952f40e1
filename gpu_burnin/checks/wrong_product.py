"""What the report says of a wrong product of any check: elements, bits, tile, and whether a repeat agrees."""

from __future__ import annotations

from gpu_burnin.checks import CheckContext
from gpu_burnin.exact.locate import case_entry, locate
from gpu_burnin.exact.product import Outcome, Pair, ProductUnit
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Reason, word_text

REPEAT_WORDS = {"right": "right", "same": "wrong in the same way", "other": "wrong in another way"}

Found = tuple[list[dict[str, JSON]], Reason]


def describe(ctx: CheckContext, unit: ProductUnit, pair: Pair, outcome: Outcome) -> Found:
    """Locate the error, then run the same product again with fresh operands."""
    entries = locate(unit, pair, outcome) or [case_entry(outcome.case)]
    again = unit.repeat(pair, outcome.expected)
    repeat = "right" if again.right else "same" if again.digest == outcome.digest else "other"
    common: dict[str, JSON] = {"problems": list(outcome.problems), "repeat": repeat}
    entries = [{**entry, **common} for entry in entries]
    return entries, _reason(ctx, outcome, entries, repeat)


def _reason(ctx: CheckContext, outcome: Outcome, entries: list[dict[str, JSON]], repeat: str) -> Reason:
    nonfinite = "nonfinite" in outcome.problems
    what = "holds NaN or Inf" if nonfinite else "is stale" if "stale" in outcome.problems else "is wrong"
    if "not_launched" in outcome.problems:
        what = "was not computed"
    details: dict[str, JSON] = {
        **entries[0],
        "digest": word_text(outcome.digest.value),
        "nonfinite": outcome.digest.nonfinite,
        "noninteger": outcome.digest.noninteger,
    }
    return make_reason(
        "GEMM_NONFINITE" if nonfinite else "GEMM_MISMATCH",
        "gemm",
        f"{outcome.case.precision} product {what}, {place(entries[0])}; a repeat came out {REPEAT_WORDS[repeat]}",
        gpu=ctx.uuid,
        details=details,
    )


def place(entry: dict[str, JSON]) -> str:
    if "row" not in entry:
        return "no wrong element was found afterwards"
    place = f"{entry['matrix']}[{entry['row']}, {entry['col']}]"
    return f"first at {place}: expected {entry['expected']}, got {entry['got']}"
