"""One run at a time: who has the lock, and who is dead."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.fleet.roll import lock
from gpu_burnin.fleet.roll.lock import Lock, LockHeld, Owner

BOOT = "1b4e28ba"
MINE = Lock("anna", "2026-11-22T17:00:00Z", Owner(socket.gethostname(), BOOT, 50, 500))
OTHER = Lock("bob", "2026-11-22T16:00:00Z", Owner(socket.gethostname(), BOOT, 40, 400))
PLAYS = "/usr/bin/python3\0/opt/venv/bin/ansible-playbook\0site.yml"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which the processes of both run."""
    folder = tmp_path / "proc"
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    for one in (MINE, OTHER):
        process(folder, one.owner.pid, 1, PLAYS)
    return folder


def process(proc: Path, pid: int, parent: int, words: str, state: str = "S") -> None:
    """It began at ten times its id."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    folder.joinpath("stat").write_text(f"{pid} (a (b) c) {state} {parent} {'0 ' * 17}{pid * 10} 0\n")
    folder.joinpath("cmdline").write_text(f"{words}\0")


def test_a_run_that_runs_keeps_the_next_one_out_until_it_gives_the_lock_back(tmp_path: Path, proc: Path) -> None:
    assert lock.take(tmp_path, OTHER, proc) == ""
    assert lock.take(tmp_path, OTHER, proc) == "" and lock.other_holder(tmp_path, OTHER.owner, proc) == ""
    with pytest.raises(LockHeld) as refused:
        lock.take(tmp_path, MINE, proc)
    said = f"bob upgrades drivers since {OTHER.since} (process 40 on {socket.gethostname()}); wait until"
    assert str(refused.value).startswith(said)
    assert lock.other_holder(tmp_path, MINE.owner, proc) == str(refused.value)
    lock.release(tmp_path, MINE.owner)
    assert lock.read(tmp_path) == OTHER, "it gave back what it did not have"
    lock.release(tmp_path, OTHER.owner)
    assert lock.take(tmp_path, MINE, proc) == "" and lock.read(tmp_path) == MINE


@pytest.mark.parametrize("how", ["gone", "another process of this id", "a zombie", "an earlier boot"])
def test_a_dead_run_is_told_as_such_and_keeps_nobody_out(tmp_path: Path, proc: Path, how: str) -> None:
    before = OTHER
    match how:
        case "gone":
            (proc / "40/stat").unlink()
        case "another process of this id":
            before = replace(OTHER, owner=replace(OTHER.owner, began_ticks=399))
        case "a zombie":
            process(proc, 40, 1, PLAYS, state="Z")
        case _:
            before = replace(OTHER, owner=replace(OTHER.owner, boot_id="another"))
    lock.write(tmp_path, before)
    said = f"bob {OTHER.what} since {OTHER.since} (process 40 on {socket.gethostname()}), and that run is dead"
    assert lock.other_holder(tmp_path, MINE.owner, proc).startswith(said)
    assert lock.take(tmp_path, MINE, proc).startswith(said)
    assert lock.read(tmp_path) == MINE


def test_of_a_process_on_another_machine_nobody_can_tell_and_a_person_lifts_its_lock(
    tmp_path: Path, proc: Path
) -> None:
    lock.write(tmp_path, replace(OTHER, owner=replace(OTHER.owner, machine="laptop", pid=4)))
    with pytest.raises(LockHeld) as refused:
        lock.take(tmp_path, MINE, proc)
    assert "process 4 on laptop, which nobody can see from here" in str(refused.value)
    assert str(refused.value).endswith(f"remove {tmp_path}/lock.json")
    (tmp_path / "lock.json").unlink()
    assert lock.take(tmp_path, MINE, proc) == ""


def test_a_run_whose_lock_was_lifted_and_taken_does_not_go_on(tmp_path: Path) -> None:
    assert lock.lost(tmp_path, MINE.owner) == ""
    lock.write(tmp_path, MINE)
    assert lock.lost(tmp_path, MINE.owner) == ""
    lock.write(tmp_path, OTHER)
    assert lock.lost(tmp_path, MINE.owner).endswith(f"bob upgrades drivers since {OTHER.since}")


def test_the_owner_is_the_playbook_above_its_workers_and_modules(proc: Path) -> None:
    process(proc, 10, 1, "bash")
    process(proc, 20, 10, PLAYS)
    process(proc, 21, 20, PLAYS)
    process(proc, 22, 21, "/bin/sh\0-c\0python3")
    assert lock.owner(proc, 22) == Owner(socket.gethostname(), BOOT, 20, 200)
    assert lock.owner(proc, 10) == Owner(socket.gethostname(), BOOT, 10, 100)


def test_several_have_a_share_at_once_and_keep_out_who_wants_it_alone(tmp_path: Path, proc: Path) -> None:
    assert lock.take(tmp_path, OTHER, proc, shared=True) == lock.take(tmp_path, MINE, proc, shared=True) == ""
    assert lock.running(tmp_path, MINE.owner, proc, shared=True) == ""
    assert lock.other_holder(tmp_path, MINE.owner, proc, shared=True) == ""
    with pytest.raises(LockHeld) as refused:
        lock.take(tmp_path, MINE, proc)
    assert str(refused.value).startswith("bob upgrades drivers") and lock.read(tmp_path) is None
    assert lock.running(tmp_path, MINE.owner, proc) == str(refused.value)
    lock.release(tmp_path, OTHER.owner)
    lock.take(tmp_path, MINE, proc)
    with pytest.raises(LockHeld, match="anna"):
        lock.take(tmp_path, OTHER, proc, shared=True)


def test_the_shares_of_dead_runs_keep_nobody_out_and_are_removed(tmp_path: Path, proc: Path) -> None:
    lock.take(tmp_path, OTHER, proc, shared=True)
    (proc / "40/stat").unlink()
    assert lock.running(tmp_path, MINE.owner, proc) == lock.take(tmp_path, MINE, proc) == ""
    assert [path.name for path in tmp_path.glob("*.json")] == ["lock.json"]
    lock.write(tmp_path, OTHER)
    assert lock.take(tmp_path, MINE, proc, shared=True).startswith("bob upgrades drivers")
    assert lock.read(tmp_path) is None


def test_a_run_whose_lock_was_lifted_sees_those_that_share_it_now(tmp_path: Path, proc: Path) -> None:
    lock.take(tmp_path, MINE, proc)
    assert lock.lost(tmp_path, MINE.owner) == ""
    lock.path_of(tmp_path).unlink()
    lock.take(tmp_path, OTHER, proc, shared=True)
    assert lock.lost(tmp_path, MINE.owner).startswith("its lock was lifted, and bob upgrades drivers")
    assert lock.lost(tmp_path, OTHER.owner) == ""
