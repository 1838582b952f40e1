"""One machine as it is read from its objects."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.admission.view import Pod
from gpu_burnin.api.machine_power import MachinePower, MachineSpec, MachineStatus, Power, Wish
from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, PROVISIONER_USER, READY_LABEL, SCALER_USER, TEAM_LABEL, Names
from gpu_burnin.api.record import (
    Ask,
    Hardware,
    NodeAdmission,
    Place,
    PowerCycle,
    Request,
    Spec,
    State,
    Status,
    Use,
)
from gpu_burnin.api.record import (
    Tested as TestedRun,
)
from gpu_burnin.scaler.model import Machine
from gpu_burnin.scaler.world import Seen, machine_of
from gpu_burnin.system.clock import rfc3339

NAMES = Names()
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
SINCE = "2026-11-27T11:00:00Z"
SPEC = Spec(hardware=Hardware(8, model="h100"), place=Place("r1", "l1", "a"))
STATUS = Status(State.READY, use=Use(SINCE, SINCE, busy=False))
UNSEEN = Seen()
MINE, ANNS = Ask(SCALER_USER, "idle", SINCE), Ask("ann", "fan", SINCE)


def node(*taints: dict[str, str], ready: str = "True", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpu-1", "labels": {READY_LABEL: "true", **labels}},
        "spec": {"taints": list(taints)},
        "status": {"nodeInfo": {"bootID": "b"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def machine(
    spec: Spec = SPEC,
    status: Status = STATUS,
    there: dict[str, Any] | None = None,
    pods: tuple[Pod, ...] = (),
    power: MachinePower | None = None,
    seen: Seen = UNSEEN,
    window: str = "",
) -> Machine:
    record = NodeAdmission("gpu-1", spec, status)
    return machine_of(record, node() if there is None else there, pods, power, seen, NAMES, NOW, window)


def test_a_node_without_a_machine_power_is_foreign_and_serves_all_the_same() -> None:
    found = machine()
    assert not found.switched and found.ready and not found.doubt and found.gpus == 8
    assert found.idle_since == datetime(2026, 11, 27, 11, tzinfo=UTC)
    assert found.labels == {
        READY_LABEL: "true", GPU_LABEL: "h100", LEAF_LABEL: "l1",
        "muster.node-restriction.kubernetes.io/rack": "r1", "muster.node-restriction.kubernetes.io/feed": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("there", "ready"),
    [
        (node({"key": NAMES.preflight, "effect": "NoSchedule"}), False),
        (node({"key": "example.com/mine", "effect": "NoSchedule"}), False),
        (node({"key": "example.com/mine", "effect": "PreferNoSchedule"}), True),
        (node({"key": NAMES.team, "value": "vision", "effect": "NoSchedule"}), True),
        (node(ready="Unknown"), False),
    ],
)
def test_what_keeps_work_away_keeps_it_from_serving(there: dict[str, Any], ready: bool) -> None:
    assert machine(there=there).ready is ready


def test_a_node_under_test_was_let_in_and_takes_no_work() -> None:
    found = machine(there=node({"key": NAMES.testing, "effect": "NoSchedule"}))
    assert found.admitted and not found.ready


def test_a_teams_own_node_is_the_teams() -> None:
    assert machine(status=replace(STATUS, team="vision")).labels[TEAM_LABEL] == "vision"


def test_a_node_swings_until_the_end_that_its_play_has_named() -> None:
    swing = Ask("muster:provisioner", "a play lets it swing its power", SINCE, rfc3339(NOW + timedelta(seconds=1)))
    assert not machine().swings and machine(replace(SPEC, swing=swing)).swings
    assert not machine(replace(SPEC, swing=replace(swing, until=rfc3339(NOW)))).swings
    # It is tested, and its power stays on.
    assert machine(replace(SPEC, swing=swing)).asked == "a play lets it swing its power"


@pytest.mark.parametrize(
    ("spec", "status", "window", "asked"),
    [
        (replace(SPEC, hold=ANNS), STATUS, "", "hold of ann: fan"),
        (replace(SPEC, repair=ANNS), STATUS, "", "repair of ann: fan"),
        (replace(SPEC, quarantine=ANNS), STATUS, "", "quarantine of ann: fan"),
        (replace(SPEC, retest=ANNS), STATUS, "", "a test was asked for by ann"),
        (SPEC, replace(STATUS, request=Request("1", "quick", SINCE, "age")), "", "its test (quick) is under way"),
        (
            SPEC,
            replace(STATUS, power_cycle=PowerCycle("GPU_LOST", "b", SINCE)),
            "",
            "it owes a power cycle for GPU_LOST",
        ),
        (SPEC, STATUS, "site: maintenance is announced", "site: maintenance is announced"),
        (replace(SPEC, hold=replace(ANNS, until="2026-11-27T11:30:00Z")), STATUS, "", ""),
        (replace(SPEC, hold=MINE), STATUS, "", ""),
    ],
)
def test_who_asks_what_of_it(spec: Spec, status: Status, window: str, asked: str) -> None:
    assert machine(spec, status, window=window).asked == asked


def test_the_scalers_own_asks_are_known_also_after_a_restore() -> None:
    carried = Ask(PROVISIONER_USER, "hold of muster:scaler, carried over the restore of etcd: idle", SINCE)
    for ask in (MINE, carried):
        found = machine(replace(SPEC, hold=ask), replace(STATUS, state=State.HELD))
        assert found.hold == SINCE and not found.asked and not found.doubt
    other = Ask(PROVISIONER_USER, "hold of ann, carried over the restore of etcd: fan", SINCE)
    assert machine(replace(SPEC, hold=other)).asked.startswith("hold of muster:provisioner")


def test_doubt_is_of_nodes_that_should_work_and_do_not() -> None:
    assert machine(status=replace(STATUS, state=State.SUSPECT)).doubt
    assert machine(there=node(ready="Unknown")).doubt
    assert not machine(status=replace(STATUS, state=State.TESTING)).doubt
    assert not machine(replace(SPEC, hold=ANNS), replace(STATUS, state=State.HELD)).doubt


def test_what_its_newest_run_found() -> None:
    def tested(verdict: str, code: str = "") -> Machine:
        return machine(status=replace(STATUS, last_test=TestedRun(1, "quick", verdict, SINCE, code)))

    assert tested("PASS").failed is None
    assert tested("FAIL", "GEMM_MISMATCH").failed == (datetime(2026, 11, 27, 11, tzinfo=UTC), "GEMM_MISMATCH")
    assert tested("INCONCLUSIVE").failed == (datetime(2026, 11, 27, 11, tzinfo=UTC), "INCONCLUSIVE")


def test_pods_are_counted_by_what_a_shutdown_would_end() -> None:
    pods = (
        Pod("vision", "w", "1", gpus=4),
        Pod("vision", "old", "2", gpus=8, ended=True),
        Pod("vision", "helper", "3"),
        Pod("kube-system", "agent", "4", daemon=True),
    )
    found = machine(pods=pods)
    assert (found.used_gpus, found.others) == (4, 1)


def test_power_is_what_this_leader_saw_else_what_was_recorded() -> None:
    wish = Wish(Power.ON, SCALER_USER, "for a/b", SINCE)
    power = MachinePower("gpu-1", MachineSpec(wanted=wish), MachineStatus(Power.OFF, SINCE))
    # Somebody may have ordered it since, and died.
    assert machine(power=power).power is Power.UNKNOWN
    reached = replace(power, status=replace(power.status, reached=SINCE))
    assert machine(power=reached).power is Power.OFF
    seen = Seen(Power.ON, NOW, error="it hangs", wish=SINCE)
    found = machine(power=power, seen=seen)
    assert (found.power, found.error) == (Power.ON, "it hangs")
    assert machine(power=power, seen=replace(seen, wish="2026-11-27T10:00:00Z")).error == ""


def test_a_person_may_keep_it_and_release_it() -> None:
    held = MachineStatus(Power.ON, SINCE, failures=2, held="LATE: gone", held_since="2026-11-27T11:00:00.000Z")
    assert machine(power=MachinePower("gpu-1", MachineSpec(), held)).held == "LATE: gone"
    release = Ask("ann", "cable", "2026-11-27T11:30:00.000Z")
    found = machine(power=MachinePower("gpu-1", MachineSpec(release=release), held))
    assert (found.held, found.failures) == ("", 0)
    kept = machine(power=MachinePower("gpu-1", MachineSpec(hold=ANNS)))
    assert kept.held == "held by ann: fan"
