"""How each GPU stands, in a cell of the table of GPUs: what its state shows, and what telemetry saw of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpu_burnin.hardware.reasons import is_note
from gpu_burnin.report.charts import slowed
from gpu_burnin.report.model import Report
from gpu_burnin.report.series import RunSeries
from gpu_burnin.report.verdicts import REASONS_OF_WATCHED, WATCHED, verdict_on
from gpu_burnin.system.quantities import duration, rate

STATE = "state"
_NAMES = frozenset({"ecc", "gpu", "mig", "nccl", "nvlink", "nvml", "pcie", "sku", "sxid", "vbios", "xid"})


@dataclass(frozen=True)
class Cell:
    """A cell: PASS, FAIL, INCONCLUSIVE or WARNING (None: nothing is known), the figures, and what stands out."""

    outcome: str | None
    figures: str
    stands_out: tuple[str, ...]


def state_cell(report: Report, uuid: str) -> Cell:
    """What the check of the state found at a GPU: "ok", or what stands out ("ECC uncorrected")."""
    if not uuid:
        return Cell("FAIL", "", ("lost",))
    outcome, found = _found(report, uuid, STATE, {STATE})
    return Cell(outcome, "ok" if outcome and not found else "", found)


def telemetry_cell(report: Report, series: RunSeries, uuid: str) -> Cell:
    """The highest temperature and power of a GPU, for how long it slowed itself down, and what was found."""
    outcome, found = _found(report, uuid, WATCHED, REASONS_OF_WATCHED)
    samples = series.gpus.get(uuid)
    if not samples:
        return Cell(outcome, "", found)
    columns = {**samples.columns, **samples.high}
    highest = (
        (max((value for value in columns.get(name, ()) if value is not None), default=None), unit)
        for name, unit in (("temperature_c", "°C"), ("power_w", "W"))
    )
    figures = ", ".join(rate(float(round(value)), unit) for value, unit in highest if value is not None)
    slow_s = sum(band.end - band.start for band in slowed(samples))
    return Cell(outcome, figures, (*found, *((f"slowed for {duration(slow_s)}",) if slow_s else ())))


def _found(report: Report, uuid: str, column: str, checks: Collection[str]) -> tuple[str | None, tuple[str, ...]]:
    """The verdict of a column on a GPU (WARNING for a PASS with warnings), and the codes behind it, in words."""
    against = [item for item in report.reasons if item.check in checks and item.gpu == uuid]
    told = [item for item in report.warnings if item.check in checks and item.gpu == uuid]
    warned = [item for item in told if not is_note(item.code)]
    outcome = verdict_on(report, column, uuid) if uuid else None
    codes = dict.fromkeys([*(reason.code for reason in against), *(warning.code for warning in warned)])
    return "WARNING" if outcome == "PASS" and warned else outcome, tuple(map(_words, codes))


def _words(code: str) -> str:
    """A code in words: ECC_UNCORRECTED is "ECC uncorrected"."""
    words = code.lower().split("_")
    return " ".join(word.upper() if word in _NAMES else word for word in words)
