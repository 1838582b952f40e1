"""What a report says in plain text: bounds, what a check covered."""

from __future__ import annotations

import re

from gpu_burnin.report.model import Report
from gpu_burnin.settings import expectations
from gpu_burnin.settings.expectations import summary
from gpu_burnin.system.entries import mapping_of, text_of
from gpu_burnin.system.quantities import duration, size
from gpu_burnin.telemetry import node_links
from gpu_burnin.types import CheckResult

# Numbers that stand alone: not the 16 of bf16.
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")


def taken_for(report: Report) -> str:
    """What the run expected of the node, and which NVLinks it assumed; "" where the models say it all."""
    options = mapping_of(report.plan, "options")
    told = (summary(mapping_of(options, expectations.KEY)), text_of(mapping_of(options, node_links.KEY), "why"))
    sentences = [f"{part[:1].upper()}{part[1:]}." for part in told if part]
    return " ".join(sentences)


def bound(rate_per_s: float | None) -> str:
    """How often a fault has to come to be seen, by the upper 95 % bound of the rate of those that are not.

    Empty when there is none.
    """
    if not rate_per_s:
        return ""
    return f"would see a fault coming every {duration(1 / rate_per_s)} of verified work"


def covered(result: CheckResult) -> str:
    """What a check looked at, in words; how long it ran where it does not say."""
    coverage = result.coverage
    parts = coverage.summary()
    if coverage.bytes_moved:
        parts.append(f"{size(coverage.bytes_moved)} moved")
    return ", ".join(parts) or f"ran for {duration(result.seconds)}"


def without_numbers(text: str) -> str:
    """The same for texts that differ in numbers only."""
    return _NUMBER.sub("#", text)


def merged(texts: list[str]) -> str:
    """Texts that differ in numbers only as one: "6,300 to 6,349 products in bf16"."""
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = []
    for column in columns:
        ordered = sorted(set(column), key=lambda text: float(text.replace(",", "")))
        ranges.append(ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}")
    parts = _NUMBER.split(texts[0])
    return "".join(part + number for part, number in zip(parts, [*ranges, ""], strict=True))
