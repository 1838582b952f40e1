"""A report as one page that opens anywhere: nothing is loaded from elsewhere, nothing in it can run."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from gpu_burnin.report import charts, formatting, page, standing
from gpu_burnin.report.check_findings import findings_of, has_bad_link
from gpu_burnin.report.curves import curves
from gpu_burnin.report.file_names import FORMS
from gpu_burnin.report.grid import STEPS
from gpu_burnin.report.links import opinion, pcie
from gpu_burnin.report.memory import error_maps, memory_rows
from gpu_burnin.report.model import Report
from gpu_burnin.report.peers import peers
from gpu_burnin.report.series import RunSeries
from gpu_burnin.report.waves import waves
from gpu_burnin.telemetry.kmsg import log_summary

# Letters of one value of evidence.
_MAX_VALUE = 1200
_COMMAND = re.compile(r"`([^`]+)`")
# Letters of a command, or of a word of one, that a phone shows in one line; a longer word (a path) wraps anywhere.
_MAX_WORD = 32
# What the words in the cells of a matrix mean.
_MARK_WORDS: Mapping[str, str] = {
    "slow": "\u25be slow: far below the others",
    "wrong": "\u2715 wrong: data came back wrong",
    "dead": "\u25a0 dead: no data came through",
    "none": "no P2P: not possible here",
    "missing": "no result: was not tested",
    "unseen": "unseen: moved, but not compared",
}


def render(report: Report, series: RunSeries) -> str:
    """The page. `series` is what build_series made.

    The policy in its head allows the one style sheet of the page by its hash and nothing else: no script, no
    other style, no address. Texts of the report (names, messages, log lines) are escaped as well.
    """
    return fill(
        "report.html.j2",
        report=report,
        page=page.Page(report),
        timeline=charts.timeline(report, series),
        memory=memory_rows(report),
        error_maps=error_maps(report),
        peers=peers(report),
        heat_steps=STEPS,
        mark_words=_MARK_WORDS,
        pcie=pcie(report),
        curves=curves(report),
        waves=waves(report, series),
        opinion=opinion(report),
        findings_of=functools.partial(findings_of, report),
        has_bad_link=has_bad_link,
        state_cell=functools.partial(standing.state_cell, report),
        telemetry_cell=functools.partial(standing.telemetry_cell, report, series),
        forms=FORMS,
        started_s=series.started_monotonic_s,
        label=report.label,
        name=report.name,
        formatting=formatting,
    )


def fill(template: str, **values: Any) -> str:
    """A page of this package's templates, with the one style sheet that its policy allows."""
    css = _source("report.css")
    return _template(template).render(
        css=Markup(css),  # our own file; a style element knows no escapes
        css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
        **values,
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpu_burnin.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["as_text"] = _as_text
    environment.globals["log_summary"] = log_summary
    environment.filters["with_commands"] = _with_commands
    return environment


def _as_text(value: Any) -> str:
    """A value of a pair of name and value; a matrix of transfers would fill pages."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... (the rest is in report.json)"


def _with_commands(text: str) -> Markup:
    """A sentence whose commands (`in backticks`) are code, whole where short; a long one wraps between its words."""
    parts = _COMMAND.split(text)
    return Markup("").join(_command(part) if index % 2 else Markup.escape(part) for index, part in enumerate(parts))


def _command(text: str) -> Markup:
    words = (
        Markup("<span>{}</span>").format(word) if len(word) <= _MAX_WORD else Markup.escape(word)
        for word in ([text] if len(text) <= _MAX_WORD else text.split(" "))
    )
    return Markup('<code class="command">{}</code>').format(Markup(" ").join(words))


@functools.cache
def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@functools.cache
def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
