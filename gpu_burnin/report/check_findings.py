"""What a report says against one check or one link, in the report's own sentences and order."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_burnin.report.model import ReasonOrWarning, Report
from gpu_burnin.report.units import without_name
from gpu_burnin.system.entries import mapping_of, names_of
from gpu_burnin.types import Reason


@dataclass(frozen=True)
class CheckFinding:
    """A sentence, the GPUs that it is about, and its weight: FAIL, INCONCLUSIVE or WARNING."""

    severity: str
    units: tuple[str, ...]
    message: str


def link_of(item: ReasonOrWarning) -> list[str]:
    """The two GPUs (UUIDs) of the link that a reason or warning is about; none where it is about no link."""
    attributed = mapping_of(item.details, "attributed")
    gpus = names_of(attributed, "gpus")
    return gpus if attributed.get("kind") == "link" and len(gpus) == 2 else []


def units_of(report: Report, item: ReasonOrWarning) -> list[str]:
    """What a reason or warning is about: a GPU, both GPUs of a link (in the report's order), or the node."""
    if item.gpu is not None or not (link := link_of(item)):
        return [report.name(item.gpu)]
    order = [gpu.uuid for gpu in report.gpus]
    link.sort(key=lambda uuid: order.index(uuid) if uuid in order else len(order))
    return [report.name(uuid) for uuid in link]


def has_bad_link(report: Report, check: str, uuid: str) -> bool:
    """Whether a check failed the node for a link of this GPU, which the GPU's own results do not show."""
    return any(
        reason.check == check and reason.gpu is None and reason.severity == "FAIL" and uuid in link_of(reason)
        for reason in report.reasons
    )


def findings_of(report: Report, check: str) -> list[CheckFinding]:
    """The reasons and warnings of a check, the worst first; equal sentences are one."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in report.reasons_and_warnings:
        if item.check == check:
            severity = item.severity if isinstance(item, Reason) else "WARNING"
            units = found.setdefault((severity, without_name(report, item)), [])
            units += units_of(report, item)
    return [
        CheckFinding(severity, tuple(dict.fromkeys(units)), message) for (severity, message), units in found.items()
    ]


def failed_links(report: Report) -> list[str]:
    """The links between two GPUs that failed the node: "the link between GPU 2 and GPU 5"."""
    found = []
    for reason in report.reasons:
        if reason.severity == "FAIL" and (gpus := link_of(reason)):
            found.append("the link between {} and {}".format(*sorted(report.name(uuid) for uuid in gpus)))
    return list(dict.fromkeys(found))


def common_codes(report: Report) -> set[str]:
    """The codes under which every GPU of a node with several failed: rather one cause that they share than as many
    broken GPUs."""
    gpus = {gpu.uuid for gpu in report.gpus}
    failed: dict[str, set[str]] = {}
    for reason in report.reasons:
        if reason.severity == "FAIL" and reason.gpu is not None:
            failed.setdefault(reason.code, set()).add(reason.gpu)
    return {code for code, on in failed.items() if on >= gpus and len(gpus) > 1}
