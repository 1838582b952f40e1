"""What `gpu-burnin host` keeps of a run on another machine, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_reports import healthy_1

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cli import _show
from gpu_burnin.fleet.remote import RemoteRun
from gpu_burnin.report import outputs


@pytest.fixture
def done(tmp_path: Path) -> RemoteRun:
    """A run that has ended on the host."""
    run_dir = tmp_path / "on the host"
    run_dir.mkdir()
    data = outputs.write(run_dir, *healthy_1())
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


def test_a_folder_that_cannot_be_made_is_named(done: RemoteRun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpuBurninError, match=r"cannot write to .*file/node42 .*--reports") as caught:
        _show(done, tmp_path / "file/node42", as_json=False)
    assert caught.value.exit_code == 2
