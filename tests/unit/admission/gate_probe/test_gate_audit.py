"""The audit log is read on through rotations and restarts: nothing twice, and what is lost is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.gate_probe import state
from gpu_burnin.admission.gate_probe.audit import Found, Position, read_on, use_of
from gpu_burnin.admission.gate_probe.state import State


def event(who: str = "break-glass", groups: tuple[str, ...] = ("system:masters",), **more: Any) -> dict[str, Any]:
    return {
        "kind": "Event",
        "stage": "ResponseComplete",
        "verb": "patch",
        "requestURI": "/api/v1/nodes/gpu-1",
        "user": {"username": who, "groups": list(groups)},
        "sourceIPs": ["198.18.0.9"],
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-11-01T00:00:00Z",
        **more,
    }


AS_ADMITTER = {"impersonatedUser": {"username": "muster:admitter", "groups": ["system:authenticated"]}}


class Log:
    """An audit log as kube-apiserver writes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.log"
        self.path.touch()
        self.rotations = 0
        self.position: Position | None = None

    def write(self, *events: Mapping[str, Any], end: str = "\n") -> None:
        with self.path.open("a") as file:
            file.write("\n".join(json.dumps(one) for one in events) + end)

    def rotate(self) -> Path:
        self.rotations += 1
        old = self.path.with_name(f"audit-2026-11-01T00-00-0{self.rotations}.000.log")
        self.path.rename(old)
        self.path.touch()
        return old

    def reconcile(self) -> Found:
        found = read_on(self.path, self.position)
        self.position = found.position
        return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_reads_on_and_nothing_twice(log: Log) -> None:
    log.write(event(**AS_ADMITTER), event("kubelet", ("system:nodes",)))
    assert [use.trusted for use in log.reconcile().uses] == ["muster:admitter"]
    assert log.reconcile().uses == ()
    log.write(event())
    assert [use.trusted for use in log.reconcile().uses] == [""]


def test_half_a_line_waits_for_its_end(log: Log) -> None:
    log.write(event(), end="")
    assert log.reconcile().uses == ()
    log.write(end="\n")
    assert len(log.reconcile().uses) == 1


def test_through_rotations(log: Log) -> None:
    log.write(event())
    log.reconcile()
    log.write(event())
    log.rotate()
    log.write(event(), event())
    log.rotate()
    log.write(event())
    found = log.reconcile()
    assert (len(found.uses), found.gaps) == (4, 0)
    assert log.reconcile().uses == ()


def test_a_rotated_file_that_is_gone_is_a_gap(log: Log) -> None:
    log.write(event())
    log.reconcile()
    log.rotate().unlink()
    log.write(event())
    found = log.reconcile()
    assert (len(found.uses), found.gaps) == (1, 1)
    assert log.reconcile().gaps == 0


@pytest.mark.parametrize("after", ["", "shorter\n"])
def test_a_log_that_was_emptied_is_a_gap(log: Log, after: str) -> None:
    log.write(event(), event())
    log.reconcile()
    log.path.write_text(after)
    assert log.reconcile().gaps == 1
    assert log.reconcile().gaps == 0


def test_another_file_with_the_same_inode_is_not_taken_for_it(log: Log) -> None:
    log.write(event("a"))
    log.reconcile()
    with log.path.open("r+") as file:
        file.write(json.dumps(event("b")) + "\n" + json.dumps(event("c")) + "\n")
    found = log.reconcile()
    assert (len(found.uses), found.gaps) == (2, 1)


def test_an_entry_that_is_none_is_a_gap_and_stops_nothing(log: Log) -> None:
    with log.path.open("a") as file:
        file.write('{"impersonatedUser": \n[1, "system:masters"]\n')
    log.write(event())
    found = log.reconcile()
    assert (len(found.uses), found.gaps) == (1, 2)


@pytest.mark.parametrize(
    ("entry", "trusted"),
    [
        (event(**AS_ADMITTER), "muster:admitter"),
        (event(impersonatedUser={"username": "x", "groups": ["muster:admitter"]}), "muster:admitter"),
        (event("sa", (), impersonatedUser={"username": "muster:provisioner"}), "muster:provisioner"),
        (event(impersonatedUser={"username": "someone"}), ""),
        (event(), ""),
        (event("muster:admitter", ("system:authenticated",)), None),
        (event("sa", (), impersonatedUser={"username": "someone"}), None),
        (event("system:apiserver"), None),
        (event("kubelet", (), requestObject={"note": "system:masters"}), None),
    ],
)
def test_what_counts(entry: dict[str, Any], trusted: str | None) -> None:
    use = use_of(entry)
    assert (None if use is None else use.trusted) == trusted


def test_the_sentence_names_who_whence_and_what(log: Log) -> None:
    log.write(event(**AS_ADMITTER))
    assert log.reconcile().uses[0].sentence == (
        "muster:admitter was impersonated by break-glass from 198.18.0.9 at 2026-11-01T00:00:00Z: "
        "patch /api/v1/nodes/gpu-1 (200)"
    )


def test_counts_outlive_the_probe(log: Log, tmp_path: Path) -> None:
    log.write(event(**AS_ADMITTER), event())
    state.write(tmp_path, State().counted(log.reconcile(), 7.0))
    log.write(event(**AS_ADMITTER))
    kept = state.read(tmp_path)
    again = kept.counted(read_on(log.path, kept.position), 8.0)
    assert (again.impersonations["muster:admitter"], again.break_glass, again.audit_read_s) == (2, 1, 8.0)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"position": 3}'])
def test_a_damaged_state_begins_anew(tmp_path: Path, damage: str) -> None:
    (tmp_path / state.FILE).write_text(damage)
    assert state.read(tmp_path) == State()
