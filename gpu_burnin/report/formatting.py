"""What a report says in plain text: actions, bounds, what a check covered."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_burnin.report.check_findings import common_codes
from gpu_burnin.report.model import Report
from gpu_burnin.settings import expectations
from gpu_burnin.settings.expectations import summary
from gpu_burnin.system.entries import mapping_of, text_of
from gpu_burnin.system.quantities import duration, size
from gpu_burnin.telemetry import node_links
from gpu_burnin.types import CheckResult

# The action of a report as an order to a person.
ACTIONS: Mapping[str, str] = {
    "none": "Nothing to do",
    "retest": "Test again",
    "reset_gpu": "Reset the GPU, then test again",
    "reboot": "Reboot the machine, then test again",
    "power_cycle": "Power the machine off and on, then test again",
    "repair": "Repair: have the hardware checked or replaced",
    "hold": "Keep the node out until a person has looked at it",
}


def next_step(report: Report) -> str:
    """The action of a report as an order to a person; what injected faults ask for is not the hardware's."""
    order = ACTIONS.get(report["action"], report["action"])
    if shared := common_cause(report):
        order = f"{shared}. If that is sound: {order[:1].lower()}{order[1:]}"
    if not report["coverage"]["injected"]:
        return order
    return f"Run again without --inject. Only if the fault was not injected: {order[:1].lower()}{order[1:]}"


def taken_for(report: Report) -> str:
    """What the run expected of the node, and which NVLinks it assumed; "" where the models say it all."""
    options = mapping_of(report["plan"], "options")
    told = (summary(mapping_of(options, expectations.KEY)), text_of(mapping_of(options, node_links.KEY), "why"))
    sentences = [f"{part[:1].upper()}{part[1:]}." for part in told if part]
    return " ".join(sentences)


def common_cause(report: Report) -> str | None:
    """Where to look first when all that failed, failed on every GPU: eight GPUs seldom break at once. Else None."""
    failed = {reason["code"] for reason in report["reasons"] if reason["severity"] == "FAIL"}
    if not failed or not failed <= common_codes(report):
        return None
    told = mapping_of(mapping_of(report["plan"], "options"), expectations.KEY)
    shared = ("what was expected of them, " if told else "") + "driver and libraries, power, cooling, board, host"
    return f"All {len(report['gpus'])} GPUs failed alike, so look first at what they share: {shared}"


def bound(rate_per_s: float | None) -> str:
    """What the upper 95 % bound of a missed fault's rate means; empty when there is none."""
    if not rate_per_s:
        return ""
    return f"a fault that comes every {duration(1 / rate_per_s)} of verified work or more often would have shown"


def covered(result: CheckResult) -> str:
    """What a check looked at, in words; how long it ran where it does not say."""
    coverage = result.coverage
    parts = coverage.summary()
    if coverage.bytes_moved:
        parts.append(f"{size(coverage.bytes_moved)} moved")
    return ", ".join(parts) or f"ran for {duration(result.seconds)}"
