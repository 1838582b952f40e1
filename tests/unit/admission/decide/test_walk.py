"""Whatever happens to a node, in whatever order, with writes that fail halfway and brakes that say no."""

from __future__ import annotations

import random

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.decide.facts import doubted
from gpu_burnin.types import Verdict
from tests.support.decide_helpers import RULES, carried_out
from tests.support.decide_walks import STEPS, Machine, Restored, is_open

READY = "muster.node-restriction.kubernetes.io/ready"


def test_no_restore_lets_a_node_in_before_its_agent_has_spoken() -> None:
    walks = [walk_with_restores(Restored(random.Random(1000 + seed))) for seed in range(2)]
    closed, came_back = (sum(counts) for counts in zip(*walks, strict=True))
    assert closed > 0 and came_back > 0


def walk_with_restores(machine: Restored) -> tuple[int, int]:
    """How often the node was closed by a restore, and let in again after one."""
    closed = came_back = 0
    for _ in range(STEPS):
        machine.happen()
        before = machine.view
        whole = decide(before, RULES, machine.now)
        assert before.record is not None
        if doubted(before.record.spec, whole.status) is not None:
            # No brake keeps it open: what it holds back is to act on a fault.
            left = withheld(whole, "no room", None) if whole.needs is not None else whole
            assert not is_open(carried_out(before, whole)) and not is_open(carried_out(before, left))
            closed += is_open(before)
        after = machine.decide()
        assert after.record is not None
        if is_open(after) and not is_open(before):
            mark, evidence = after.record.spec.restored, before.evidence.statement
            assert evidence is not None and evidence.sequence == after.record.status.highest_sequence
            assert mark is None or after.record.status.confirmed == mark.since
            came_back += mark is not None
    return closed, came_back


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_events_lets_a_node_in_without_proof(seed: int) -> None:
    machine = Machine(random.Random(seed))
    seen: dict[int, int] = {}
    let_in = 0
    for step in range(STEPS):
        event = machine.happen()
        before = machine.view
        evidence = before.evidence.statement
        after = machine.decide()
        assert before.node is not None and before.record is not None and after.record is not None
        if evidence is not None and (machine.key, evidence) in machine.signed and after.record is not before.record:
            seen[machine.key] = max(seen.get(machine.key, 0), evidence.sequence)
        if not is_open(before) and is_open(after):
            let_in += 1
            where = f"step {step} after {event}"
            boot = before.node["status"]["nodeInfo"]["bootID"]
            spec = before.record.spec
            assert evidence is not None and (machine.key, evidence) in machine.signed, where
            assert evidence.verdict is Verdict.PASS and not evidence.simulated, where
            assert evidence.sequence == seen[machine.key] >= after.record.status.highest_sequence, where
            assert before.agent is not None and evidence.boot_id == boot == before.agent.boot_id, where
            assert (spec.hold, spec.quarantine, spec.repair, before.paused) == (None, None, None, ""), where
            assert after.node is not None and after.node["metadata"]["labels"].get(READY) == "true", where
        if is_open(after) and not is_open(before):
            assert after.record.status.accepted is not None
            assert after.record.status.accepted.sequence == after.record.status.highest_sequence
    assert let_in > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_look_that_is_carried_out_leaves_nothing_to_do(seed: int) -> None:
    machine = Machine(random.Random(100 + seed))
    for _ in range(STEPS):
        machine.happen()
        view = carried_out(machine.view, decide(machine.view, RULES, machine.now))
        again = decide(view, RULES, machine.now)
        assert view.record is not None and again.status == view.record.status
        assert (again.node_patch, again.node_status_patch, again.evict) == (None, None, ())
        assert again.status.next is not None and again.status.next.why
        assert again.wake_at is None or again.wake_at > machine.now
        machine.view = view
