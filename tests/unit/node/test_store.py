"""The state directory: one run at a time, numbers that never repeat, links that never dangle."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from gpu_burnin.api.run_files import EVIDENCE, MAX_SEQUENCE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import NoResult, Store
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.report.model import document
from gpu_burnin.system.files import write_atomic
from gpu_burnin.types import Notice, Verdict
from tests.support.clocks import PATIENCE_S
from tests.support.made_reports import make_report
from tests.support.report_helpers import NOW


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def test_directories_are_private(store: Store) -> None:
    with store.locked():
        run = store.new_run(NOW)
    for path in (store.root, store.runs_dir, run.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_numbers_go_on_above_what_the_cluster_knows_though_the_directory_was_lost(store: Store) -> None:
    store.raise_floor(57)
    with store.locked():
        run = store.new_run(NOW)
        assert run.sequence == 58
        store.begin(run)
    store.raise_floor(12)
    with store.locked():
        assert store.new_run(NOW).sequence == 59, "never below what they would have been"
    with pytest.raises(GpuBurninError, match="is no number of a run"):
        store.raise_floor(MAX_SEQUENCE)
    (store.root / "sequence-floor").write_text("x" * 99)
    assert store.floor() == 0


def test_the_mode_of_a_directory_that_was_there_stays(store: Store) -> None:
    store.root.mkdir()
    store.root.chmod(0o1777)  # as /tmp
    with store.locked():
        pass
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o1777
    assert stat.S_IMODE(store.runs_dir.stat().st_mode) == 0o700


def test_a_run_that_begins_after_the_newest_report_is_known(store: Store) -> None:
    with store.locked():
        first = store.new_run(NOW)
        store.begin(first)
        store.finish(first)
        report = store.latest / "report.json"
        assert store.begun_after(report) is None
        second = store.new_run(NOW)
        assert store.begun_after(report) is None  # made, and not begun
        store.begin(second)
        assert store.begun_after(report) == 2
        assert store.begun_after(first.path / "report.json") is None  # asked for by name
        store.finish(second)
        assert store.begun_after(report) is None


@pytest.mark.slow
def test_a_second_run_is_refused_and_the_lock_dies_with_its_holder(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from gpu_burnin.node.store import Store\n"
        "with Store(Path(sys.argv[1])).locked(): pass"
    )
    with store.locked(), pytest.raises(GpuBurninError, match="another gpu-burnin run") as caught, store.locked():
        pass
    assert caught.value.exit_code == 2
    with store.locked():
        other = subprocess.run([sys.executable, "-c", code, store.root], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "another gpu-burnin run" in other.stderr
    subprocess.run([sys.executable, "-c", code, store.root], check=True)


def test_unusable_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuBurninError, match="cannot use the state directory"), Store(tmp_path / "file").locked():
        pass


def test_sequence_counts_up_and_survives_a_lost_counter(store: Store) -> None:
    with store.locked():
        runs = [store.new_run(NOW) for _ in range(3)]
        assert [run.sequence for run in runs] == [1, 2, 3]
        store.begin(runs[-1])
        assert store.counter() == 3
        for run in runs:
            shutil.rmtree(run.path)
        assert store.new_run(NOW).sequence == 4, "a run that has begun keeps its number, whatever became of it"
        (store.root / "sequence").unlink()
        assert store.new_run(NOW).sequence == 5


@pytest.mark.parametrize("damage", ["many\n", "9" * 5000, "-1", "", "\u0661"])
def test_damaged_counter_is_refused(damage: str, store: Store) -> None:
    with store.locked():
        (store.root / "sequence").write_text(damage)
        with pytest.raises(GpuBurninError, match="does not hold a number"):
            store.new_run(NOW)


def test_order_is_by_sequence_even_when_the_clock_steps_back(store: Store) -> None:
    with store.locked():
        first, second = store.new_run(NOW), store.new_run(NOW - timedelta(days=1))
    assert [run.run_id for run in store.runs()] == [first.run_id, second.run_id]


def test_finish_keeps_the_newest_and_moves_latest(store: Store) -> None:
    with store.locked():
        for _ in range(4):
            store.finish(store.new_run(NOW), keep=2)
    assert [run.sequence for run in store.runs()] == [3, 4]
    assert store.latest.resolve() == store.runs()[-1].path


def test_other_names_in_runs_are_left_alone(store: Store) -> None:
    with store.locked():
        (store.runs_dir / "notes").mkdir()
        store.finish(store.new_run(NOW), keep=1)
    assert (store.runs_dir / "notes").is_dir()


def test_the_newest_run_that_has_begun_speaks_for_the_node(store: Store) -> None:
    with pytest.raises(NoResult, match="no burn-in has been completed") as caught:
        store.result()
    assert (caught.value.run, caught.value.exit_code) == (0, 1)
    with store.locked():
        first, second, planted = store.new_run(NOW), store.new_run(NOW), store.new_run(NOW)
        for run in (first, planted):
            write_atomic(run.path / EVIDENCE, b"{}")
        store.begin(first)
        assert store.result() == first
        store.begin(second)
    with pytest.raises(NoResult, match="run 2 has begun and left no evidence") as caught:
        store.result()
    assert (caught.value.run, caught.value.exit_code) == (2, 3)
    unsigned = Notice("NO_EVIDENCE", "run", "this run is not signed and opens no gate: no key")
    report = make_report(verdict=Verdict.FAIL, warnings=(unsigned,))
    write_atomic(second.path / REPORT, json.dumps(document(report)).encode())
    with pytest.raises(NoResult, match=r"run 2 ended FAIL, but this run is not signed .*: no key") as caught:
        store.result()
    assert caught.value.exit_code == 3
    write_atomic(second.path / EVIDENCE, b"{}")
    assert store.result() == second
    (store.root / "sequence").unlink()
    with pytest.raises(NoResult, match="sequence, the number of the newest run, is lost"):
        store.result()


def test_the_run_that_speaks_for_the_node_outlives_any_number_of_others(store: Store) -> None:
    with store.locked():
        speaks = store.new_run(NOW)
        store.begin(speaks)
        for _ in range(4):
            store.finish(store.new_run(NOW), keep=2)
    assert [run.sequence for run in store.runs()] == [1, 4, 5]


def test_revocation_of_meanwhile_stays(store: Store) -> None:
    with store.locked():
        (store.root / "revoked").write_text("XID 79\n")
        assert store.revoked() == "XID 79"
        store.clear_revocation("an older one")
        assert store.revoked() == "XID 79"
        store.clear_revocation("XID 79")
        assert store.revoked() is None


def test_a_revocation_that_cannot_be_read_closes_too(store: Store) -> None:
    with store.locked():
        (store.root / "revoked").mkdir()
        assert store.revoked() == "it cannot be read (Is a directory)"
        (store.root / "revoked").rmdir()
        (store.root / "revoked").symlink_to("/dev/zero")
        assert "it cannot be read" in str(store.revoked())
        store.clear_revocation(str(store.revoked()))
        assert store.revoked() is None


def test_write_atomic_leaves_the_old_file_on_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")

    def broken(_: object, __: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("gpu_burnin.system.files.os.fchmod", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "no folder" / "file", b"new")
    assert caught.value.filename == str(tmp_path / "no folder" / "file")


def test_a_lock_that_is_held_for_a_moment_is_waited_for(store: Store) -> None:
    with store.locked():
        assert store.held()
        ended = threading.Event()

        def take() -> None:
            with store.locked():
                ended.set()

        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        assert not ended.wait(0.1), "the agent signs"
    assert ended.wait(PATIENCE_S)
    waiting.join(PATIENCE_S)
    assert not store.held()


def test_a_number_beyond_what_json_readers_hold_is_damage(store: Store) -> None:
    store.root.mkdir()
    (store.root / "sequence").write_text(f"{2**53 - 1}\n")
    assert store.counter() == 2**53 - 1
    (store.root / "sequence").write_text(f"{2**53}\n")
    with pytest.raises(GpuBurninError, match="does not hold a number"):
        store.counter()


def test_a_revocation_closes_the_gate_until_it_is_taken_away(store: Store) -> None:
    store.revoke("XID_FATAL: XID 79")
    assert store.revoked() == "XID_FATAL: XID 79"
    store.clear_revocation("another reason")
    assert store.revoked() == "XID_FATAL: XID 79"
    store.clear_revocation("XID_FATAL: XID 79")
    assert store.revoked() is None
