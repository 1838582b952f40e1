"""Which roll a call goes on with, and what is kept of it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.muster import main as muster
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import begin, book, text
from gpu_burnin.fleet.waves.book import Book
from gpu_burnin.fleet.waves.frozen import Given
from gpu_burnin.fleet.waves.kinds import KINDS, kind_of
from gpu_burnin.fleet.waves.model import HostResult, Node, Order, Outcome, Part, Roll, Step, StepResult
from gpu_burnin.fleet.waves.workers import Workers

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
TESTS, SITE = KINDS["burnin.yml"], kind_of("site.yml")
ORDER = Order("burnin.yml", ("inventory/prod",), shard_hosts=2, canary=2, most_failed="1")
DONE, HELD, FAILED, LEFT = (HostResult(outcome, "why") for outcome in Outcome)


def given(count: int = 4) -> Given:
    return Given("/state", "/inv", tuple(Node(f"gpu-{n}", "h100") for n in range(1, count + 1)), None, False)


def started(folder: Path, order: Order = ORDER, sha256: str = "sum") -> tuple[Book, Roll]:
    made = Book(folder / "roll")
    roll = begin.new(made, order, given(), sha256, TESTS, 1, NOW)
    made.begin(roll, b"{}")
    return made, roll


def ended(made: Book, name: str, **hosts: HostResult) -> None:
    step = Step(name, Part.NODES, 1, tuple(hosts))
    results = {host.replace("_", "-"): result for host, result in hosts.items()}
    book.keep_result(made.step(step), StepResult(name, 0, 1.0, 1.0, 0, results))


def test_a_roll_that_has_not_ended_is_gone_on_with(tmp_path: Path) -> None:
    made, roll = started(tmp_path)
    assert begin.unended(made, ORDER, "sum") == roll
    made.end(["done"])
    assert begin.unended(made, ORDER, "sum") is None


def test_another_order_or_inventory_does_not_go_on_with_it(tmp_path: Path) -> None:
    made, _ = started(tmp_path)
    with pytest.raises(
        GpuBurninError, match=r"muster roll burnin\.yml -i inventory/prod --canary 2 --shard 2 .*--again"
    ):
        begin.unended(made, replace(ORDER, limit="gpu-1"), "sum")
    with pytest.raises(GpuBurninError, match="the inventory is not what it was"):
        begin.unended(made, ORDER, "other")


def test_a_roll_of_an_earlier_version_with_two_choices_of_canaries_is_gone_on_with(tmp_path: Path) -> None:
    """It was refused both ways: the call with both choices, and the call with one as that of another roll."""
    made, order = Book(tmp_path / "roll"), replace(ORDER, canary_group="first")
    found = replace(given(), canary=("gpu-2",))
    roll = begin.new(made, order, found, "sum", TESTS, 1, NOW)
    made.begin(roll, b"{}")
    assert begin.unended(made, replace(order, canary=1), "sum") == roll
    with pytest.raises(GpuBurninError, match="-i inventory/prod --canary-group first --shard 2"):
        begin.unended(made, ORDER, "sum")


def test_canaries_of_a_group_take_a_look_at_each_node(tmp_path: Path) -> None:
    """The group was built anew for each node: 9 s of 7,500 nodes."""
    looks = 0

    class Counted(Node):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return hash(self.name)

    nodes = tuple(Counted(f"gpu-{n}", "h100") for n in range(100))
    found = replace(given(), nodes=nodes, canary=tuple(node.name for node in nodes))
    begin.new(Book(tmp_path / "roll"), replace(ORDER, canary_group="first"), found, "sum", TESTS, 1, NOW)
    assert looks <= 2 * len(nodes)


def test_the_same_call_after_the_end_goes_on_with_who_is_not_done(tmp_path: Path) -> None:
    made, roll = started(tmp_path)
    assert roll.waves == ((("gpu-1", "gpu-2"),), (("gpu-3", "gpu-4"),))
    ended(made, "shard-0001", gpu_1=DONE, gpu_2=FAILED)
    made.end(["stopped"])
    again = begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW)
    assert again.hosts == ("gpu-2", "gpu-3", "gpu-4") and again.before == 1
    assert len(begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW, again=True).hosts) == 4
    other = begin.new(made, ORDER, given(), "another inventory", TESTS, 1, NOW)
    assert len(other.hosts) == 4 and other.before == 0, "what was done was done to another inventory"
    ended(made, "shard-0001", gpu_1=DONE, gpu_2=HELD)
    ended(made, "shard-0002", gpu_3=DONE, gpu_4=DONE)
    assert len(begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW).hosts) == 4, "all are done: a new roll of all"


def test_what_the_call_before_the_last_was_done_with_stays_done(tmp_path: Path) -> None:
    """`python -m tests.bench.roll kills` met it: the third call went over hosts of the first again."""
    made, _ = started(tmp_path)
    ended(made, "shard-0001", gpu_1=DONE, gpu_2=FAILED)
    ended(made, "shard-0002", gpu_3=DONE, gpu_4=DONE)
    made.end(["stopped"])
    second = begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW)
    made.begin(second, b"{}")
    ended(made, "shard-0001", gpu_2=FAILED)
    made.end(["stopped"])
    third = begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW)
    assert (third.hosts, third.before) == (("gpu-2",), 3)


def test_another_limit_or_shard_goes_on_with_the_same_work(tmp_path: Path) -> None:
    """Who stops at one failure and lets five be does not test thousands of nodes again."""
    made, _ = started(tmp_path)
    ended(made, "shard-0001", gpu_1=DONE, gpu_2=FAILED)
    made.end(["stopped"])
    later = replace(ORDER, most_failed="5", shard_hosts=250, canary=1)
    roll = begin.new(made, later, given(), "sum", TESTS, 1, NOW)
    assert (roll.hosts, roll.before) == (("gpu-2", "gpu-3", "gpu-4"), 1)
    lines = text.planned(roll, Workers(1, ("all",)))
    assert "it stops when 5 of the nodes tried have failed" in lines[1] and "--again has all" in lines[2]
    other = begin.new(made, replace(later, arguments=("--check",)), given(), "sum", TESTS, 1, NOW)
    assert len(other.hosts) == 4, "that is other work"


def test_a_roll_goes_on_after_its_canary_group_is_done(tmp_path: Path) -> None:
    """It was refused: of what is left of the group no node has each model."""
    models = {"gpu-1": "h100", "gpu-2": "b200", "gpu-3": "b200", "gpu-4": "h100"}
    found = replace(
        given(), nodes=tuple(Node(name, model) for name, model in models.items()), canary=("gpu-3", "gpu-4", "other")
    )
    made, order = Book(tmp_path / "roll"), replace(ORDER, canary_group="first", canary=1)
    roll = begin.new(made, order, found, "sum", TESTS, 1, NOW)
    assert list(roll.canaries) == ["gpu-3", "gpu-4"]
    made.begin(roll, b"{}")
    ended(made, "shard-0001", gpu_3=FAILED, gpu_4=DONE)
    made.end(["stopped"])
    roll = begin.new(made, order, found, "sum", TESTS, 1, NOW)
    assert list(roll.canaries) == ["gpu-3", "gpu-1"]
    # When all are done the next roll of all begins with the group again.
    made.begin(roll, b"{}")
    for number, shard in enumerate(itertools.chain.from_iterable(roll.waves), 1):
        results = dict.fromkeys(shard, DONE)
        step = Step(f"shard-{number:04}", Part.NODES, 1, shard)
        book.keep_result(made.step(step), StepResult(step.name, 0, 1.0, 1.0, 0, results))
    made.end(["done"])
    assert list(begin.new(made, order, found, "sum", TESTS, 1, NOW).canaries) == ["gpu-3", "gpu-4"]
    with pytest.raises(GpuBurninError, match="no node with h100"):
        begin.new(made, order, replace(found, canary=("gpu-3",)), "sum", TESTS, 1, NOW)


def test_a_host_is_what_its_shard_and_then_its_admission_say(tmp_path: Path) -> None:
    found = {"a": DONE, "b": DONE, "c": HELD, "d": FAILED}
    late = HostResult(Outcome.FAILED, "has not come")
    begin.merge(found, {"b": late, "c": replace(HELD, why="held"), "d": HELD}, admission=True)
    assert found == {"a": DONE, "b": late, "c": HELD, "d": FAILED}


def test_a_new_roll_does_not_begin_while_a_shard_of_the_old_one_runs(tmp_path: Path) -> None:
    made, roll = started(tmp_path)
    folder = made.step(Step("shard-0001", Part.NODES, 1, ("gpu-1",)))
    with book.alone(folder), pytest.raises(GpuBurninError, match="shard-0001 of the roll before still runs"):
        made.begin(roll, b"{}")
    made.begin(roll, b"{}")
    assert not folder.exists()


def test_a_document_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    made, _ = started(tmp_path)
    step = Step("shard-0001", Part.NODES, 1, ("gpu-1",))
    (made.step(step) / "result.json").write_text("{")
    with pytest.raises(GpuBurninError, match="nobody knows what became of its hosts"):
        made.result(step)
    (made.folder / "roll.json").write_text("{}")
    with pytest.raises(GpuBurninError, match="--again"):
        made.roll()


def test_a_full_disk_under_the_book_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, roll = started(tmp_path)

    def full(path: Path, content: bytes, mode: int = 0o600) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("gpu_burnin.fleet.waves.book.write_atomic", full)
    with pytest.raises(GpuBurninError, match=r"hosts cannot be written \(No space left on device\); no step begins"):
        made.step(Step("shard-0001", Part.NODES, 1, ("gpu-1",)))
    monkeypatch.undo()
    ended(made, "shard-0001", gpu_1=DONE, gpu_2=FAILED)
    made.end(["stopped"])
    later = begin.new(made, ORDER, given(), "sum", TESTS, 1, NOW)
    with monkeypatch.context() as patch:
        patch.setattr("gpu_burnin.fleet.roll.documents.write_atomic", full)
        with pytest.raises(GpuBurninError, match="No space left"):
            made.begin(later, b"{}")
    assert made.roll() == roll and made.ended and made.begun, "the one before is as it was"
    monkeypatch.setattr("gpu_burnin.fleet.waves.book.write_atomic", full)
    with pytest.raises(GpuBurninError, match="No space left"):
        made.begin(later, b"{}")
    monkeypatch.undo()
    # Who is done stands in the new one alone, of which this is half.
    assert begin.unended(made, ORDER, "sum") == later and not made.begun and later.before == 1
    made.begin(later, b"{}")
    assert begin.unended(made, ORDER, "sum") == later and made.begun


def test_an_inventory_is_printed_by_its_script(tmp_path: Path) -> None:
    script = Book.keep_inventory(tmp_path, "gates", book.gates({"one": StepResult("one", 0, 1.0, 1.0, 0, {
        "gpu-1": HostResult(Outcome.DONE, "", {"gate_open": True, "machine_id": "1" * 32}), "gpu-2": FAILED,
    })}))  # fmt: skip
    printed = json.loads(subprocess.run([script], check=True, capture_output=True).stdout)
    assert printed["_meta"]["hostvars"] == {
        "gpu-1": {"__node_admission_gate_state": {"gate_open": True, "machine_id": "1" * 32}}
    }
    assert printed["all"] == {"hosts": ["gpu-1"]}
    assert [path.stat().st_mode & 0o777 for path in (script, tmp_path / "gates.json")] == [0o700, 0o600]


def test_the_report_names_each_node_that_is_not_done(tmp_path: Path) -> None:
    _, roll = started(tmp_path)
    results = {"gpu-1": DONE, "gpu-2": HELD, "gpu-3": FAILED}
    lines = text.summary(roll, results, "too many", "muster roll")
    assert lines[0].endswith("of 4 nodes: 1 done, 1 held, 1 FAILED, 1 not tried")
    assert "  gpu-2  held: why" in lines and "  gpu-3  FAILED: why" in lines
    assert lines[-2:] == ["stopped: too many", "to go on, when that is mended: muster roll"]
    assert text.to_json(roll, results, "too many", ())["outcomes"] == {"done": 1, "held": 1, "failed": 1, "left": 0}
    left = text.summary(roll, dict.fromkeys(roll.hosts, LEFT), "", "muster roll")
    assert left[-1] == "to have those that were left behind too, when they answer: muster roll"
    assert text.listing(results)[1] == "gpu-2\theld\twhy"


def test_the_report_says_which_machine_did_which_shards(tmp_path: Path) -> None:
    _, roll = started(tmp_path)
    here = StepResult("shard-0001", 0, 1.0, 1.0, 0, {"gpu-1": DONE, "gpu-2": DONE})
    far = [StepResult(f"shard-000{n}", 0, 1.0, 1.0, 0, {f"gpu-{n}": DONE}, "", "roll@10.0.0.9") for n in (2, 3)]
    assert text.where([*far, here]) == ["done by this controller 1 shard of 2 nodes, roll@10.0.0.9 2 shards of 2 nodes"]
    assert text.where([here]) == [], "nothing to say without a worker"
    assert text.to_json(roll, {}, "", [*far, here])["workers"] == {
        "localhost": {"shards": 1, "nodes": 2}, "roll@10.0.0.9": {"shards": 2, "nodes": 2},
    }  # fmt: skip


def test_a_limit_behind_the_dashes_begins_nothing(tmp_path: Path) -> None:
    (playbook := tmp_path / "burnin.yml").touch()
    refused = CliRunner().invoke(muster.cli, ["roll", str(playbook), "-i", str(tmp_path), "--", "-l", "gpu-1"])
    assert "give --limit and -i before `--`" in str(refused.exception)


def test_a_workers_key_is_named_as_for_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In --worker-key=~/FILE no shell puts the home folder there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (playbook := tmp_path / "burnin.yml").touch()
    words = ["roll", str(playbook), "-i", str(tmp_path), "--worker-key=~/key"]
    missing = CliRunner().invoke(muster.cli, words)
    assert missing.exit_code == 2 and f"'{tmp_path}/key' does not exist" in missing.output
    (tmp_path / "key").touch()
    there = CliRunner().invoke(muster.cli, words)
    assert there.exit_code == 2 and "--worker or --worker-group" in there.output
