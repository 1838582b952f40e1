"""What the report says of a wrong product: elements, bits, tile, and whether a repeat agrees."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.gemm.probe import BitProbe
from gpu_burnin.checks.gemm.probe_errors import ProbeErrors
from gpu_burnin.device.port import read_matrix
from gpu_burnin.exact.locate import bit_entry, case_entry, first_places, locate
from gpu_burnin.exact.product import Outcome, Pair, ProductUnit
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Reason, word_text

_REPEAT_WORDS = {"right": "right", "same": "wrong in the same way", "other": "wrong in another way"}

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
        f"{outcome.case.precision} product {what}, {_place(entries[0])}; a repeat came out {_REPEAT_WORDS[repeat]}",
        gpu=ctx.uuid,
        details=details,
    )


def _place(entry: dict[str, JSON]) -> str:
    if "row" not in entry:
        return "no wrong element was found afterwards"
    place = f"{entry['matrix']}[{entry['row']}, {entry['col']}]"
    return f"first at {place}: expected {entry['expected']}, got {entry['got']}"


def describe_probe(ctx: CheckContext, probe: BitProbe, errors: ProbeErrors) -> Found:
    """A probe with elements that no data path gives."""
    entries = list(errors.entries)
    count, of, nonfinite = entries[0]["wrong_elements_seen"], entries[0]["elements_seen"], errors.nonfinite > 0
    message = (
        f"{probe.precision} probe holds {count} elements of {of} that no data path gives"
        f"{', NaN or Inf among them' if nonfinite else ''}, {_place(entries[0])}; "
        f"a repeat came out {_REPEAT_WORDS[errors.repeat]}"
    )
    code = "GEMM_NONFINITE" if nonfinite else "GEMM_MISMATCH"
    return entries, make_reason(code, "gemm", message, gpu=ctx.uuid, details=entries[0])


def describe_unstable(
    ctx: CheckContext, unit: ProductUnit, got: NDArray[Any], first: int, digest: int, digest_again: int
) -> Found:
    """A product of random operands whose bits changed: `got` are the deviating ones, C holds one more repeat."""
    again = read_matrix(unit.device, unit.c)
    repeat = "right" if digest_again == first else "same" if digest_again == digest else "other"
    common: dict[str, JSON] = {
        "precision": unit.precision,
        "range": "random",
        "problems": ["unstable"],
        "repeat": repeat,
        "wrong_elements_seen": int((got != again).sum()),
    }
    entries: list[dict[str, JSON]] = [
        {**common, **bit_entry("c", int(i), int(j), got[i, j], again[i, j], unit.c.storage.name)}
        for i, j in first_places(got != again)
    ]
    entries = entries or [common]
    details: dict[str, JSON] = {**entries[0], "first_digest": word_text(first), "digest": word_text(digest)}
    message = f"{unit.precision} product of random operands gave other bits than before, {_place(entries[0])}"
    reason = make_reason("GEMM_UNSTABLE", "gemm", message, gpu=ctx.uuid, details=details)
    return entries, reason
