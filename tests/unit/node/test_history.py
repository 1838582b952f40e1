"""What earlier runs on this node say to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.engine.journal import Journal
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.verdict import judge
from gpu_burnin.node.history import History, read_history, unfinished_notice
from gpu_burnin.node.store import Store
from gpu_burnin.report import build, model
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.files import write_atomic
from gpu_burnin.types import Verdict
from tests.support.report_helpers import NOW
from tests.support.run_helpers import RUN, healthy, plan

BOOT = RUN.host.boot_id
OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "state")
    with made.locked():
        yield made


def leave_report(store: Store, *codes: str, inject: tuple[str, ...] = ()) -> None:
    """A run of BOOT with a report that gives these reasons."""
    seen = healthy(plan(inject=inject) if inject else None)
    seen = replace(seen, extra=tuple(make_reason(code, "gemm", "m", gpu="GPU-1") for code in codes))
    report = build.build(RUN, seen, judge(seen))
    write_atomic(store.new_run(NOW).path / REPORT, model.to_bytes(report))


def test_nothing_was_before(store: Store) -> None:
    assert read_history(store, BOOT) == History()


def test_the_last_reasons_are_those_of_the_newest_report(store: Store) -> None:
    leave_report(store, "GEMM_MISMATCH")
    leave_report(store, "HUNG")
    store.new_run(NOW)  # ended without a report
    history = read_history(store, BOOT)
    assert ("HUNG", "GPU-1") in [(reason.code, reason.gpu) for reason in history.last_reasons]
    assert "GEMM_MISMATCH" not in {reason.code for reason in history.last_reasons}
    assert not history.restarted
    assert read_history(store, OTHER_BOOT).restarted


def test_a_report_with_injected_faults_says_nothing(store: Store) -> None:
    leave_report(store, "HUNG")
    leave_report(store, "GEMM_MISMATCH", inject=("gemm:nan",))
    assert {reason.code for reason in read_history(store, BOOT).last_reasons} >= {"HUNG"}


def test_a_damaged_report_is_passed_over(store: Store) -> None:
    leave_report(store, "HUNG")
    write_atomic(store.new_run(NOW).path / REPORT, b'{"schema": "muster-report/v1.1", "reasons": [{"co')
    assert {reason.code for reason in read_history(store, BOOT).last_reasons} >= {"HUNG"}


@pytest.mark.parametrize(
    ("verdict", "boot_id", "passed"),
    [(Verdict.PASS, BOOT, True), (Verdict.FAIL, BOOT, False), (Verdict.PASS, OTHER_BOOT, False)],
)
def test_a_pass_of_this_boot_is_remembered(
    verdict: Verdict, boot_id: str, passed: bool, store: Store, statement: Statement
) -> None:
    left = replace(statement, verdict=verdict, boot_id=boot_id)
    write_atomic(store.new_run(NOW).path / EVIDENCE, left.canonical())
    write_atomic(store.new_run(NOW).path / EVIDENCE, b"half a sta")
    assert read_history(store, BOOT).passed_this_boot is passed


def test_a_host_that_died_is_told_until_a_report_has_said_so(store: Store) -> None:
    with Journal(store.new_run(NOW).journal, OTHER_BOOT) as journal:
        journal.write({"event": "check_started", "check": "sm", "gpu": "GPU-0"})
    assert read_history(store, BOOT).died == "sm"
    with Journal(store.new_run(NOW).journal, BOOT) as journal:  # killed before it could tell
        journal.write({"event": "check_started", "check": "state", "gpu": None})
    assert read_history(store, BOOT).died == "sm"
    leave_report(store, "HUNG")
    assert read_history(store, BOOT).died is None


def test_a_run_that_was_killed_is_told_until_a_report_has_said_so(store: Store) -> None:
    """By the next run of the same boot: of another boot it is the host that died."""
    killed = store.new_run(NOW)
    with Journal(killed.journal, BOOT) as journal:
        journal.write({"event": "check_started", "check": "gemm", "gpu": "GPU-0"})
    history = read_history(store, BOOT)
    assert (history.unfinished, history.died) == (killed, None)
    notice = unfinished_notice(killed)
    assert (notice.code, notice.gpu) == ("RUN_UNFINISHED", None)
    assert f"run 1, which began at {rfc3339(NOW)}, left no verdict" in notice.message
    assert read_history(store, OTHER_BOOT).unfinished is None
    leave_report(store)
    assert read_history(store, BOOT).unfinished is None


def test_a_damaged_journal_is_told_unless_the_run_came_to_its_end(store: Store) -> None:
    run = store.new_run(NOW)
    run.journal.write_bytes(b'\0\0\0\n{"event": "run_finished"}\n')
    assert "the journal of run 1 is damaged" in str(read_history(store, BOOT).died)
    write_atomic(run.path / REPORT, b"{}")
    assert read_history(store, BOOT).died is None
