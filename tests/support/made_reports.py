"""Small reports, and changed ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_burnin.report import model
from gpu_burnin.types import Action, Verdict


def make_report(**fields: Any) -> model.Report:
    """A PASS that says nothing else."""
    head: dict[str, Any] = {
        "schema": model.SCHEMA,
        "run_id": "20260102T030405Z-000001",
        "node": "gpu-1",
        "level": "quick",
        "finished_at": "2026-01-02T03:05:00Z",
        "simulated": False,
        "interrupted": False,
        "verdict": Verdict.PASS,
        "action": Action.NONE,
    }
    return model.Report(**{**head, **fields})


def edited(report: model.Report, change: Callable[[Any], object]) -> model.Report:
    """The report that is read after `change` of its JSON values."""
    document = model.document(report)
    change(document)
    return model.of_json(document, "an edited report")


def with_gpu(report: model.Report, index: int, **fields: Any) -> model.Report:
    """With other facts of the GPU in this place."""
    gpus = [replace(gpu, **fields) if place == index else gpu for place, gpu in enumerate(report.gpus)]
    return replace(report, gpus=tuple(gpus))


def without_check(report: model.Report, name: str) -> model.Report:
    """Without the results of a check."""
    return replace(report, checks=tuple(check for check in report.checks if check.name != name))
