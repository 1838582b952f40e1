"""All files of a run that people and programs read: JSON, text, HTML, JUnit, metrics, series."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import markupsafe

from gpu_burnin.files import write_atomic
from gpu_burnin.hardware import what_to_do
from gpu_burnin.report import html, junit, model, openmetrics, text
from gpu_burnin.store import REPORT, REPORT_TEXT

REPORT_HTML = "report.html"
JUNIT = "junit.xml"
METRICS = "metrics.prom"


def write(run_dir: Path, report: model.Report, series: Mapping[str, Any]) -> bytes:
    """Write every form of a report into `run_dir` and return the bytes of report.json, which evidence speaks of.

    Each file appears whole or not at all, report.json last: a reader that finds it finds the others. Raises
    ReportError for a report that does not fit its schema, before anything is written.
    """
    data = model.to_bytes(report)
    files = {
        model.SERIES: _json(series),
        REPORT_TEXT: text.render(report, what_to_do).encode(),
        REPORT_HTML: _page(report, series).encode(),
        JUNIT: junit.to_junit(report),
        METRICS: metrics_bytes(report),
        REPORT: data,
    }
    for name, content in files.items():
        write_atomic(run_dir / name, content)
    return data


def _page(report: model.Report, series: Mapping[str, Any]) -> str:
    """The page, or one that says why there is none: what was found in hours is not lost to a mistake in a picture."""
    try:
        return html.render(report, series)
    except Exception:
        said = markupsafe.escape(
            f"{report['verdict']} {report['node']}, run {report['run_id']}: this page could not be made: a fault "
            "of gpu-burnin itself and says nothing of a GPU. The whole report is in report.txt and report.json beside "
            f"it. Please report this fault with these lines:\n\n{traceback.format_exc()}"
        )
        return f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>No page</title>\n<pre>{said}</pre>\n'


def metrics_bytes(report: model.Report) -> bytes:
    """What the textfile collector of node_exporter reads."""
    return openmetrics.to_openmetrics(report)


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()
