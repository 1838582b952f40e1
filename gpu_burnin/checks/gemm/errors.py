"""What the report says of a wrong probe, and of random products that do not repeat."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.gemm.probe import BitProbe
from gpu_burnin.checks.gemm.probe_errors import ProbeErrors
from gpu_burnin.checks.wrong_product import REPEAT_WORDS, Found, place
from gpu_burnin.device.port import read_matrix
from gpu_burnin.exact.locate import bit_entry, first_places
from gpu_burnin.exact.product import ProductUnit
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, word_text


def describe_probe(ctx: CheckContext, probe: BitProbe, errors: ProbeErrors) -> Found:
    """A probe with elements that no data path gives."""
    entries = list(errors.entries)
    count, of, nonfinite = entries[0]["wrong_elements_seen"], entries[0]["elements_seen"], errors.nonfinite > 0
    message = (
        f"{probe.precision} probe holds {count} elements of {of} that no data path gives"
        f"{', NaN or Inf among them' if nonfinite else ''}, {place(entries[0])}; "
        f"a repeat came out {REPEAT_WORDS[errors.repeat]}"
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
    message = f"{unit.precision} product of random operands gave other bits than before, {place(entries[0])}"
    reason = make_reason("GEMM_UNSTABLE", "gemm", message, gpu=ctx.uuid, details=details)
    return entries, reason
