"""The files of a run: all there, each whole or not at all, and as the page for operators describes them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.main import cli
from gpu_burnin.node.reports import load
from gpu_burnin.report import model, openmetrics, outputs
from gpu_burnin.report.file_names import REPORT, REPORT_HTML
from gpu_burnin.system import files
from gpu_burnin.system.codec import to_json
from tests.support import runbooks
from tests.support.sample_nodes import power_brake_8
from tests.support.sample_reports import faulty_8, healthy_8

DOCS = Path(__file__).resolve().parents[3] / "docs"
READING, FILES_PAGE = DOCS / "operations/burnin-report.md", DOCS / "reference/report-files.md"
FILES = {"report.json", "report.txt", "report.html", "junit.xml", "metrics.prom", "series.json"}


@pytest.mark.slow
def test_every_form_is_written_and_reads_back(tmp_path: Path) -> None:
    report, series = faulty_8()
    written = outputs.write(tmp_path, report, series)
    assert written.failed == {}
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert (tmp_path / "report.json").read_bytes() == written.report
    assert load(tmp_path) == report
    assert json.loads((tmp_path / str(report.telemetry.series_file)).read_text()) == to_json(series)
    assert (tmp_path / "metrics.prom").read_bytes() == openmetrics.to_openmetrics(report)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "report.txt").read_text().startswith("VERDICT  FAIL")


def test_report_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    report, series = healthy_8()
    with pytest.raises(model.ReportError):
        outputs.write(tmp_path, replace(report, sequence=0), series)
    assert list(tmp_path.iterdir()) == []


def test_page_that_cannot_be_made_loses_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("<no axis>")

    monkeypatch.setattr(outputs.html, "render", broken)
    report, series = faulty_8()
    outputs.write(tmp_path, report, series)
    assert load(tmp_path) == report
    page = (tmp_path / "report.html").read_text()
    assert "report.json" in page
    assert "&lt;no axis&gt;" in page


def test_full_disk_leaves_no_half_file_and_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def full(path: Path, content: bytes) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path.name)
        files.write_atomic(path, content)

    monkeypatch.setattr(outputs, "write_atomic", full)
    failed = outputs.write(tmp_path, *healthy_8()).failed
    assert {path.name for path in tmp_path.iterdir()} == set(written)
    assert failed == dict.fromkeys(FILES - set(written), "No space left on device")
    assert "report.json" in failed


def test_a_form_that_cannot_be_made_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("no words")

    monkeypatch.setattr(outputs.text, "render", broken)
    monkeypatch.setattr(outputs.junit, "to_junit", broken)
    report, series = faulty_8()
    failed = outputs.write(tmp_path, report, series).failed
    assert failed == {"junit.xml": "a fault of gpu-burnin itself: ValueError('no words')"}
    assert load(tmp_path) == report
    assert (tmp_path / "report.txt").read_text().startswith("VERDICT  FAIL\n")


# --- docs/operations/burnin-report.md, docs/reference/report-files.md ---


def commands() -> list[str]:
    """Every command of the page."""
    return [one.line for one in runbooks.commands(READING) if one.line.startswith("gpu-burnin ")]


def test_page_has_commands() -> None:
    assert {shlex.split(command)[1] for command in commands()} >= {"report", "compare", "explain", "schema"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two reports, the state directory of a node, and a fleet's reports; only read."""
    folder = tmp_path_factory.mktemp("reports")
    for place, made in (("BEFORE", healthy_8()), ("AFTER", faulty_8()), ("STATE/runs/RUN", healthy_8())):
        (folder / place).mkdir(parents=True)
        outputs.write(folder / place, *made)
    (folder / "STATE/latest").symlink_to("runs/RUN")
    host = folder / "STATE/reports/HOST"
    host.mkdir(parents=True)
    for name in (REPORT, REPORT_HTML):
        (host / name).hardlink_to(folder / "BEFORE" / name)
    (folder / "config.yaml").write_text("{}\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_of_the_page_work(command: str, reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's names stand for what a node has: runs of its own, and reports that were brought from others."""
    monkeypatch.chdir(reports)
    arguments = shlex.split(command)[1:]
    if arguments[0] == "report" and not any(place in command for place in ("BEFORE", "AFTER")):
        arguments += ["--config", "config.yaml", "--state-dir", "STATE"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout


def test_page_names_every_file_and_every_metric() -> None:
    text = FILES_PAGE.read_text()
    assert set(re.findall(r"^\| `([\w.]+\.(?:json|txt|html|xml|prom))` \|", text, re.MULTILINE)) == FILES
    told = set(re.findall(r"^\| `(gpu_burnin_\w+)` \|", text, re.MULTILINE))
    made = set()
    for report, _ in (healthy_8(), faulty_8(), power_brake_8()):
        made |= set(re.findall(r"^# TYPE (\w+) gauge$", openmetrics.to_openmetrics(report).decode(), re.MULTILINE))
    assert told == made
