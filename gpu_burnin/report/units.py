"""Parts of a report by what they are about: results, coverage and measurements of a check, messages of a GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeVar

from gpu_burnin.report.model import ReasonOrWarning, Report
from gpu_burnin.types import CheckResult, Coverage

_Covered = TypeVar("_Covered", bound=Coverage)

# What the check of the node measured of a single GPU: "gpu3_power_draw_w".
_OF_GPU = re.compile(r"gpu(\d{1,4})_(.+)")
# How many messages begin: "GPU 3 (0000:91:00.0 GPU-...): ".
_NAMED = re.compile(r"GPU (\d+)(?: MIG \d+)? \([^)]*\): ")


def without_name(report: Report, item: ReasonOrWarning) -> str:
    """The message of a reason or warning without the GPU's name before it, for places that show the GPU anyway.

    Other GPUs are called by their short form: their addresses and UUIDs are in the list of GPUs.
    """
    message = item.message
    match, gpu = _NAMED.match(message), report.gpu_of.get(item.gpu)
    message = message[match.end() :] if match and gpu and str(gpu.index) == match[1] else message
    for uuid, short in report.unit_names.items():
        message = message.replace(f"{short} ({report.gpu_of[uuid].pci_bus_id} {uuid})", short)
        message = re.sub(rf"(?<![\w-]){re.escape(uuid)}(?![\w-])", short, message)
    return message


def results_of(report: Report, check: str) -> list[CheckResult]:
    """The results of a check on single GPUs, in the report's order."""
    return [result for result in report.checks if result.name == check and result.gpu is not None]


def coverages_of(report: Report, kind: type[_Covered]) -> Iterator[_Covered]:
    """What a check covered on each GPU, by the class of its coverage; a result that does not say is left out."""
    return (check.coverage for check in report.checks if isinstance(check.coverage, kind))


def measured(report: Report, check: CheckResult, name: str) -> tuple[str | None, str]:
    """Whose measurement `name` of a check is (a GPU's UUID, None for the node), and what it is called there."""
    match = _OF_GPU.fullmatch(name) if check.gpu is None else None
    gpu = report.gpu_at.get(int(match[1])) if match else None
    return (gpu.uuid, match[2]) if gpu and match else (check.gpu, name)


def finite(value: float) -> float | None:
    """A number that is one, None for NaN and infinities."""
    return value if math.isfinite(value) else None
