"""What the executor begins and what it waits for, with results in place of shards."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import run, worker
from gpu_burnin.fleet.waves.book import Book, alone, keep_result
from gpu_burnin.fleet.waves.kinds import kind_of
from gpu_burnin.fleet.waves.model import HostResult, Order, Outcome, Part, Roll, Step, StepResult
from gpu_burnin.fleet.waves.names import LOST_WHY
from gpu_burnin.fleet.waves.run import Executor
from gpu_burnin.system.codec import to_json

DONE, FAILED = HostResult(Outcome.DONE), HostResult(Outcome.FAILED, "no room")
Result = Callable[[Path, str], StepResult | None]


def result(folder: Path, name: str, **outcomes: HostResult) -> StepResult:
    """All hosts of a step are done, but for those that are named."""
    hosts = {host: outcomes.get(host, DONE) for host in (folder / "hosts").read_text().split()}
    return StepResult(name, 0, 1.0, 1.0, 1, hosts if name.startswith("shard") else {})


def runs(monkeypatch: pytest.MonkeyPatch, ends: Result) -> list[str]:
    """What is begun; `ends` stands for a step's process."""
    begun: list[str] = []

    class Process:
        def __init__(self, command: list[str], **_: object) -> None:
            self.folder = Path(command[-1])

        def wait(self) -> int:
            begun.append(self.folder.name)
            if (found := ends(self.folder, self.folder.name)) is None:
                return 3
            keep_result(self.folder, found)
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    return begun


def executor(folder: Path, playbook: str, *waves: tuple[tuple[str, ...], ...], workers: int = 1) -> Executor:
    order = Order(playbook, ("inv",), most_failed="1")
    roll = Roll("1", "2026-11-28T00:00:00Z", order, "0", waves, {})
    return Executor(Book(folder / "roll"), roll, kind_of(playbook), workers, folder, "inv", lambda _: None)


def test_a_call_that_was_killed_at_the_limit_is_followed_by_one_that_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the killed one had begun comes to its end, and is in the report."""
    begun, attempt = runs(monkeypatch, result), Executor._attempt
    book = Book(tmp_path / "roll")
    first = book.step(Step("shard-0001", Part.NODES, 1, ("a",)))
    keep_result(first, StepResult("shard-0001", 2, 1.0, 1.0, 1, {"a": FAILED}))
    third = book.step(Step("shard-0003", Part.NODES, 1, ("c",)))
    waits = threading.Event()
    monkeypatch.setattr(Executor, "_attempt", lambda self, *step: [waits.set(), attempt(self, *step)][1])
    with alone(third):
        made = executor(tmp_path, "burnin.yml", (("a",), ("b",), ("c",), ("d",)), (("e",),), workers=2)
        thread = threading.Thread(target=made.run)
        thread.start()
        assert waits.wait(30)
        keep_result(third, StepResult("shard-0003", 0, 1.0, 1.0, 1, {"c": DONE}))
    thread.join(30)
    assert begun == [] and made.results == {"a": FAILED, "c": DONE}
    assert made.stopped.startswith("1 of the 1 nodes tried failed (a)")


def test_after_ctrl_c_in_a_wave_the_next_call_waits_for_all_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of half a wave would be kept as that of the whole: who comes later would never be looked for."""
    pressed: list[str] = []

    def ends(folder: Path, name: str) -> StepResult:
        if name == "shard-0001" and not pressed:
            pressed.append(name)
            made.stopped, made.interrupted = "Ctrl-C", True
        return result(folder, name)

    begun = runs(monkeypatch, ends)
    made = executor(tmp_path, "site.yml", (("a",), ("b",)))
    made.run()
    assert begun == ["control", "wave-01-contact", "shard-0001"]
    begun.clear()
    made = executor(tmp_path, "site.yml", (("a",), ("b",)))
    made.run()
    assert begun == ["shard-0002", "wave-01-admit"] and made.results == {"a": DONE, "b": DONE}


def test_after_a_stop_the_nodes_that_are_done_are_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = runs(monkeypatch, lambda folder, name: result(folder, name, a=FAILED))
    made = executor(tmp_path, "site.yml", (("a", "b"), ("c",)), (("d",),))
    made.run()
    assert begun == ["control", "wave-01-contact", "shard-0001", "wave-01-admit"]
    assert set(made.results) == {"a", "b"}


def test_a_fault_of_any_kind_ends_the_roll_and_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(folder: Path, name: str) -> StepResult:
        raise RuntimeError("a fault of this program")

    begun, said = runs(monkeypatch, ends), list[str]()
    made = executor(tmp_path, "burnin.yml", (("a",),), (("b",),))
    made.say = said.append
    with pytest.raises(RuntimeError):
        made.run()
    assert begun == ["shard-0001"] and "no further step begins: a fault of this program" in said


def test_what_a_worker_sent_is_one_line_and_one_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines counted as two losses, after which a shard's nodes have failed; and a terminal obeyed them."""
    folder = Book(tmp_path / "roll").step(Step("shard-0001", Part.NODES, 1, ("a",)))
    job = worker.Job("shard-0001", Part.NODES, "burnin.yml", ("inv",), (), str(tmp_path))
    made = to_json(job)
    assert isinstance(made, Mapping)
    worker.write_job(folder, json.loads(json.dumps(made)))

    def lost(*_: object) -> StepResult:
        raise worker.near.Lost("it sent an outcomes.json that is none (hosts.\x1b[2J\nx: not str)")

    monkeypatch.setattr(worker, "perform", lost)
    monkeypatch.setattr("sys.argv", ["worker", str(folder)])
    with pytest.raises(SystemExit):
        worker.main()
    assert (folder / LOST_WHY).read_text() == "it sent an outcomes.json that is none (hosts.?[2J?x: not str)\n"


def test_a_disk_that_is_full_in_mid_roll_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is no fault of this program, which a traceback says."""

    def full(folder: Path, job: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "step.json"))

    begun = runs(monkeypatch, result)
    monkeypatch.setattr(run, "write_job", full)
    with pytest.raises(GpuBurninError, match=r"step\.json cannot be written \(No space left on device\)"):
        executor(tmp_path, "burnin.yml", (("a",),)).run()
    assert begun == []
