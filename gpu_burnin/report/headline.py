"""The top of the page: what came out, for which GPUs or links, and the reason that weighs most."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_burnin.report.check_findings import failed_links, units_of
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import without_name

# Letters of the reason at the top; the whole of it stands below.
_MAX_REASON = 240


@dataclass(frozen=True)
class FirstReason:
    """The reason that weighs most: its code, on which units, its message, and how many other codes there are."""

    code: str
    units: tuple[str, ...]
    message: str
    more: int


def first_reason(report: Report) -> FirstReason | None:
    """The first of the report's reasons (the worst) with all units of which it says the same; None on PASS."""
    if not report.reasons:
        return None
    first = report.reasons[0]
    message = without_name(report, first)
    alike = [item for item in report.reasons if item.code == first.code]
    units = [unit for item in alike if without_name(report, item) == message for unit in units_of(report, item)]
    others = {item.code for item in report.reasons} - {first.code}
    short = message if len(message) <= _MAX_REASON else f"{message[:_MAX_REASON].rsplit(' ', 1)[0]} ..."
    return FirstReason(first.code, tuple(dict.fromkeys(units)), short, len(others))


def headline(report: Report, took: str) -> str:
    """What came out, in one sentence; `took` is the time of the run as a text."""
    gpus = report.gpus
    count = f"{len(gpus)} GPU" + "s" * (len(gpus) != 1)
    if report.verdict == "PASS":
        return f"No fault was seen on {count} in {took}."
    if report.verdict == "FAIL":
        return _failed(report, count)
    if not gpus:
        return "No GPU was tested, so this run says nothing about the node."
    if {reason.code for reason in report.reasons} == {"INJECTED"}:
        return f"Faults were injected on purpose, so this run says nothing about the {count}."
    unsure = [gpu.short for gpu in gpus if gpu.verdict != "PASS"]
    if not unsure:
        whom = f"the node, although its {count} passed"
    elif len(unsure) < len(gpus):
        whom = f"{listed(unsure)}, out of {count}"
    else:
        whom = f"the {count} either"
    return f"No fault was proved, but this run cannot vouch for {whom}."


def _failed(report: Report, count: str) -> str:
    gpus = report.gpus
    bad = [gpu.short for gpu in gpus if gpu.verdict == "FAIL"]
    links = failed_links(report)
    if links and len(bad) < len(gpus):
        named = listed([*bad, *links])
        return f"{named[:1].upper()}{named[1:]} failed, out of {count}."
    if not bad:
        return "The node failed; no single GPU is to blame."
    if len(bad) == len(gpus):
        return f"{'All ' if len(gpus) > 1 else ''}{count} failed."
    return f"{listed(bad)} failed, out of {count}."


def listed(names: list[str]) -> str:
    """Names as people list them: "GPU 1, GPU 2 and GPU 5"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))
