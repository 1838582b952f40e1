"""All files of a run that people and programs read: JSON, text, HTML, JUnit, metrics, series."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import markupsafe

from gpu_burnin.hardware import what_to_do
from gpu_burnin.report import html, junit, model, openmetrics, text
from gpu_burnin.report.file_names import JUNIT, METRICS, REPORT, REPORT_HTML, REPORT_TEXT, SERIES
from gpu_burnin.report.series import RunSeries
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import write_atomic
from gpu_burnin.system.prose import STANDARD_WIDTH

_LOG = logging.getLogger(__name__)


@dataclass
class Written:
    """The bytes of report.json, which the evidence is about, and for each file that could not be written why."""

    report: bytes
    failed: dict[str, str] = field(default_factory=dict)


def write(run_dir: Path, report: model.Report, series: RunSeries) -> Written:
    """Write every form of a report into `run_dir`, as far as that can be done.

    Each file appears whole or not at all, report.json last: a reader that finds it finds the others that could be
    written. Raises ReportError for a report that does not fit its schema, before anything is written.
    """
    written = Written(model.to_bytes(report))
    forms: dict[str, Callable[[], bytes]] = {
        SERIES: lambda: _json(series),
        REPORT_TEXT: lambda: as_text(report).encode(),
        REPORT_HTML: lambda: _page(report, series).encode(),
        JUNIT: lambda: junit.to_junit(report),
        METRICS: lambda: openmetrics.to_openmetrics(report),
        REPORT: lambda: written.report,
    }
    for name, form in forms.items():
        try:
            write_atomic(run_dir / name, form())
        except OSError as error:
            written.failed[name] = error.strerror or str(error)
        except Exception as error:
            _LOG.exception("%s cannot be made", name)
            written.failed[name] = f"a fault of gpu-burnin itself: {error!r}"
    return written


def as_text(report: model.Report, width: int = STANDARD_WIDTH) -> str:
    """The report as text, or what it comes to: a mistake in words takes no verdict away."""
    try:
        return text.render(report, what_to_do, width)
    except Exception:
        return (
            f"VERDICT  {report.verdict}\n\nThe rest of this text could not be made: a fault of gpu-burnin itself. "
            f"report.json has the whole report; please report this fault:\n\n{traceback.format_exc()}"
        )


def _page(report: model.Report, series: RunSeries) -> str:
    """The page, or one that says why there is none: what was found in hours is not lost to a mistake in a picture."""
    try:
        return html.render(report, series)
    except Exception:
        text = markupsafe.escape(
            f"{report.verdict} {report.node}, run {report.run_id}: this page could not be made: a fault "
            "of gpu-burnin itself and says nothing about a GPU. The whole report is in report.txt and report.json "
            f"beside it. Please report this fault with these lines:\n\n{traceback.format_exc()}"
        )
        return f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>No page</title>\n<pre>{text}</pre>\n'


def _json(series: RunSeries) -> bytes:
    return (json.dumps(to_json(series), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()
