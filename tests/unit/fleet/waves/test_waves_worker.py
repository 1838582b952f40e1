"""What a shard makes of what Ansible did to its hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.fleet.waves import worker
from gpu_burnin.fleet.waves.model import HostResult, Outcome, Part, StepResult

OPEN = {"gate_open": True}


def perform(folder: Path, monkeypatch: pytest.MonkeyPatch, part: Part, *runs: tuple[int, dict[str, Any]]) -> StepResult:
    """A step over a, b and c of which Ansible's runs end so."""
    left, asked = list(runs), list[list[str]]()

    def play(_: Path, __: worker.Job, hosts: list[str]) -> tuple[int, dict[str, Any]]:
        asked.append(list(hosts))
        return left.pop(0)

    monkeypatch.setattr(worker, "play", play)
    result = worker.perform(folder, worker.Job("one", part, "site.yml", ("inv",), (), "/"), ["a", "b", "c"])
    assert not left, "each run was wanted"
    return result


def test_each_host_ends_in_its_own_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"a": {"verdict": "PASS", "gate": OPEN}, "b": {"failed": "task: broken"}, "c": {"unreachable": "silent"}}
    result = perform(tmp_path, monkeypatch, Part.NODES, (6, {"hosts": hosts}))
    assert result.hosts == {
        "a": HostResult(Outcome.DONE, "", OPEN),
        "b": HostResult(Outcome.FAILED, "task: broken"),
        "c": HostResult(Outcome.LEFT, "silent"),
    }


def test_a_node_that_an_upgrade_left_as_it_was_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"a": {}, "b": {"left": "it needs a node without work"}, "c": {}, "api-1": {"failed": "not of this step"}}
    result = perform(tmp_path, monkeypatch, Part.NODES, (0, {"hosts": hosts}))
    assert result.hosts["b"] == HostResult(Outcome.LEFT, "it needs a node without work")
    assert result.hosts["a"].outcome is Outcome.DONE and set(result.hosts) == {"a", "b", "c"}


def test_a_verdict_and_a_closed_gate_are_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = {"gate_open": False, "gate_message": "no PASS of this boot"}
    hosts = {
        "a": {"verdict": "FAIL", "codes": ["XID_FATAL"], "gate": closed},
        "b": {"verdict": "INCONCLUSIVE", "codes": [], "why": "no XID source"},
        "c": {"gate": closed},
    }
    result = perform(tmp_path, monkeypatch, Part.NODES, (0, {"hosts": hosts}))
    assert {one.outcome for one in result.hosts.values()} == {Outcome.HELD}
    assert [one.why for one in result.hosts.values()] == [
        "FAIL: XID_FATAL", "INCONCLUSIVE: no XID source", "no PASS of this boot",
    ]  # fmt: skip


def test_a_host_without_a_trace_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = perform(tmp_path, monkeypatch, Part.NODES, (0, {"hosts": {"a": {}, "b": {}}}))
    assert result.hosts["c"] == HostResult(Outcome.FAILED, "no play has it")
    (tmp_path / "output.log").write_text("ERROR! the playbook could not be found\n")
    result = perform(tmp_path, monkeypatch, Part.NODES, (1, {}))
    why = "ansible-playbook ended with 1: ERROR! the playbook could not be found"
    assert list(result.hosts.values()) == [HostResult(Outcome.FAILED, why)] * 3


def test_a_run_that_some_end_for_all_goes_on_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"cut": True, "hosts": {"a": {"failed": "b is unfit"}, "b": {}, "c": {}}}
    first["faults"] = [{"hosts": ["b", "elsewhere"], "message": "no room"}]
    second = {"cut": True, "hosts": {"a": {"failed": "run once: broken"}, "c": {}}}
    third = {"hosts": {"c": {"gate": OPEN}}}
    result = perform(tmp_path, monkeypatch, Part.NODES, (2, first), (2, second), (0, third))
    assert result.hosts == {
        "b": HostResult(Outcome.FAILED, "no room"),
        "a": HostResult(Outcome.FAILED, "run once: broken"),
        "c": HostResult(Outcome.DONE, "", OPEN),
    }


def test_a_fault_of_no_host_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"cut": True, "hosts": {"a": {"failed": "too many are silent"}, "b": {}, "c": {}}}
    run["faults"] = [{"hosts": [], "message": "too many"}, {"hosts": ["a"], "message": "no room"}]
    result = perform(tmp_path, monkeypatch, Part.NODES, (2, run))
    assert {one.outcome for one in result.hosts.values()} == {Outcome.FAILED}
    assert result.hosts["c"].why == "the run ended before its last play: too many are silent"


def test_the_wait_says_who_is_held_and_who_has_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"name": "a", "state": "ready"},
        {"name": "b", "state": "held", "reasons": [{"code": "BRAKE", "message": "later"}]},
        {"name": "elsewhere", "state": "held"},
    ]
    run = {"hosts": {"localhost": {"failed": "c has not come"}}, "admission": nodes, "missing": {"c": "c: no Node"}}
    result = perform(tmp_path, monkeypatch, Part.ADMIT, (2, run))
    assert result.error == "" and result.hosts == {
        "b": HostResult(Outcome.HELD, "BRAKE: later"), "c": HostResult(Outcome.FAILED, "c: no Node"),
    }  # fmt: skip
    result = perform(tmp_path, monkeypatch, Part.ADMIT, (2, {"hosts": {}}))
    assert result.error.startswith("ansible-playbook ended with 2")


@pytest.mark.parametrize("part", [Part.CONTROL, Part.CONTACT])
def test_a_part_of_the_controller_that_fails_stops_the_roll(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert perform(tmp_path, monkeypatch, part, (0, {"hosts": {"localhost": {}}})).error == ""
    failed = {"hosts": {"etcd-1": {"failed": "mount: no disk"}}}
    assert perform(tmp_path, monkeypatch, part, (2, failed)).error == "mount: no disk"
    assert perform(tmp_path, monkeypatch, part, (4, {"hosts": {}})).error.startswith("ansible-playbook ended with 4")
