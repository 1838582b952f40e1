"""A report that is not the one its run signed is not shown."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_burnin.api.evidence import EvidenceError, Statement
from gpu_burnin.api.run_files import EVIDENCE, SIGNATURE
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.authentic import refuse_changed
from gpu_burnin.node.signing import write_evidence
from gpu_burnin.report import outputs
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system import host
from tests.support.report_helpers import HARDWARE, make_key
from tests.support.sample_reports import healthy_1


@pytest.fixture
def run_dir(tmp_path: Path, statement: Statement, host_key: Path) -> Path:
    """A run of this machine with its report and evidence."""
    directory = tmp_path / "run"
    directory.mkdir()
    outputs.write(directory, *healthy_1())
    digest = hashlib.sha256((directory / REPORT).read_bytes()).hexdigest()
    write_evidence(
        directory, replace(statement, report_sha256=digest, machine_id=host.machine_id()), HARDWARE, host_key
    )
    return directory


def hold(directory: Path, host_key: Path | None = None) -> None:
    refuse_changed(directory / REPORT, (directory / REPORT).read_bytes(), host_key)


def refused(directory: Path, host_key: Path | None = None) -> EvidenceError:
    with pytest.raises(EvidenceError, match="do not trust it") as caught:
        hold(directory, host_key)
    assert caught.value.exit_code == 1
    return caught.value


def test_the_report_that_was_signed_is_shown(run_dir: Path, host_key: Path) -> None:
    hold(run_dir, host_key)
    shown = CliRunner().invoke(cli, ["report", str(run_dir)])
    assert (shown.exit_code, shown.stdout.startswith("VERDICT  PASS")) == (0, True)


def test_one_changed_byte_is_refused(run_dir: Path) -> None:
    report = run_dir / REPORT
    report.write_bytes(report.read_bytes().replace(b'"PASS"', b'"FAIL"', 1))
    error = refused(run_dir)
    assert error.code == "EVIDENCE_REPORT"
    assert "this is not the report that was signed" in str(error)
    for arguments in (["report", str(run_dir)], ["report", "--json", str(report)]):
        shown = CliRunner().invoke(cli, arguments)
        assert (shown.exit_code, shown.stdout, isinstance(shown.exception, GpuBurninError)) == (1, "", True)
    # Without the evidence it claims to be nobody's.
    (run_dir / EVIDENCE).unlink()
    hold(run_dir)


def test_evidence_that_was_changed_with_it_has_another_signature(
    run_dir: Path, host_key: Path, statement: Statement, tmp_path: Path
) -> None:
    report = run_dir / REPORT
    report.write_bytes(report.read_bytes().replace(b'"PASS"', b'"FAIL"', 1))
    digest = hashlib.sha256(report.read_bytes()).hexdigest()
    forged = replace(statement, report_sha256=digest, machine_id=host.machine_id())
    write_evidence(run_dir, forged, HARDWARE, make_key(tmp_path / "other"))
    assert refused(run_dir, host_key).code == "EVIDENCE_SIGNATURE"
    (run_dir / SIGNATURE).unlink()
    assert refused(run_dir, host_key).code == "EVIDENCE_SIGNATURE"
    # A key that is not at hand, or of another machine, proves nothing.
    hold(run_dir, tmp_path / "none")
    write_evidence(run_dir, replace(forged, machine_id="f" * 32), HARDWARE, tmp_path / "other")
    hold(run_dir, host_key)


def test_evidence_that_cannot_be_read_is_refused(run_dir: Path) -> None:
    (run_dir / EVIDENCE).write_bytes(b"{}")
    assert refused(run_dir).code == "EVIDENCE_MALFORMED"
