"""Whatever happens to a node, in whatever order: its work is asked to leave with the brake's leave, or by a person."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.view import Budget, HeartbeatState, View
from gpu_burnin.api.record import State
from tests.support.decide_helpers import GPU_POD, RULES, carried_out
from tests.support.decide_walks import BOOTS, STEPS, Restored, is_open


class Watched(Restored):
    """Its work stays for long, it boots seldom, and its heartbeats come and go."""

    def do_reboot(self) -> None:
        if self.rng.random() < 0.3:
            super().do_reboot()

    def do_work(self) -> None:
        self.view = replace(self.view, pods=self.rng.choice([(), (GPU_POD,), (GPU_POD,)]))

    def do_beat(self) -> None:
        of_this_boot = HeartbeatState(BOOTS[self.boot], 1.0, fresh=True)
        self.view = replace(
            self.view, heartbeat=self.rng.choice([None, HeartbeatState("x"), HeartbeatState("x", 900.0), of_this_boot])
        )

    def at_work(self) -> bool:
        """Whether what was let in may be running: in the same boot, and no person has asked it to leave."""
        record, node = self.view.record, self.view.node
        assert record is not None and node is not None
        accepted, boots = record.status.accepted, {BOOTS[self.boot], node["status"]["nodeInfo"]["bootID"]}
        asked = (active(ask, self.now) for ask in (record.spec.quarantine, record.spec.repair))
        return accepted is not None and boots == {accepted.boot_id} and not any(asked)


@pytest.mark.parametrize("seed", [4, 13, 38, 44, 59])
def test_no_order_of_events_asks_work_to_leave_without_leave(seed: int) -> None:
    machine = Watched(random.Random(seed))
    leave, asked = False, 0
    for step in range(STEPS):
        event = machine.happen()
        view = machine.view
        if event == "do_restore":
            leave = _state(view) is State.QUARANTINED
        decision = decide(view, RULES, machine.now)
        at_work = machine.at_work()
        if decision.evict and at_work:
            asked += 1
            assert leave or decision.needs is Budget.GATE, f"step {step} after {event}: {decision.status.message}"
        if decision.needs is not None and machine.rng.random() < 0.3:
            decision = withheld(decision, "no room", None)
            assert not (decision.evict and at_work and not leave)
        leave = leave or decision.needs in (Budget.GATE, Budget.EXPIRE) or not at_work
        machine.view = carried_out(view, decision)
        leave = leave and not is_open(machine.view) and _state(machine.view) is not State.HELD
    assert asked > 0


def _state(view: View) -> State:
    assert view.record is not None
    return view.record.status.state
