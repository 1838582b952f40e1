"""What `gpu-burnin host` keeps of a run on another machine, and what it says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu_burnin.cli import host as cli
from gpu_burnin.cli import main as burnin
from gpu_burnin.cli.host import _show
from gpu_burnin.cli.program import call
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.fleet.remote import RemoteRun
from gpu_burnin.report import outputs
from tests.support.sample_reports import healthy_1


@pytest.fixture
def done(tmp_path: Path) -> RemoteRun:
    """A run that has ended on the host."""
    run_dir = tmp_path / "on the host"
    run_dir.mkdir()
    data = outputs.write(run_dir, *healthy_1()).report
    return RemoteRun(0, data, (run_dir / "report.html").read_bytes())


def test_report_and_page_are_kept_as_they_came(
    done: RemoteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "reports/node42"
    _show(done, directory, as_json=False)
    run_id = json.loads(done.report)["run_id"]
    assert (directory / f"{run_id}.json").read_bytes() == done.report
    assert (directory / f"{run_id}.html").read_bytes() == done.page
    out, err = capsys.readouterr()
    assert out.startswith("VERDICT  PASS")
    assert err == f"report: {directory}/{run_id}.json\npage: {directory}/{run_id}.html\n"


def test_json_is_all_that_is_printed_on_stdout(
    done: RemoteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(done, tmp_path, as_json=True)
    assert capsys.readouterr().out.encode() == done.report


def test_a_run_without_a_page_leaves_its_report(
    done: RemoteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "reports/node42"
    _show(RemoteRun(0, done.report), directory, as_json=False)
    assert [path.suffix for path in directory.iterdir()] == [".json"]
    assert capsys.readouterr().err.endswith("page: none was found on the host\n")


def test_a_folder_that_cannot_be_made_is_named_beside_the_report(
    done: RemoteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    _show(done, tmp_path / "file/node42", as_json=False)
    out, err = capsys.readouterr()
    assert out.startswith("VERDICT  PASS")
    assert "cannot write to" in err
    assert "file/node42 (Not a directory); give another --reports" in err


def test_a_fail_is_a_fail_whatever_comes_back_of_its_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu-burnin", "host", "node42"])
    for exit_code, wanted in ((EXIT_FAIL, EXIT_FAIL), (EXIT_PASS, EXIT_INCONCLUSIVE)):
        for report in (b"{}", b"[" * 100_000, b'{"schema": ' + b"9" * 5000 + b"}"):
            run = RemoteRun(exit_code, report)
            monkeypatch.setattr(cli, "_run", lambda *_, run=run: run)
            assert call(burnin.cli) == wanted
            err = capsys.readouterr().err
            assert "what the host sent" in err
            assert ("FAIL" in err) == (exit_code == EXIT_FAIL)
