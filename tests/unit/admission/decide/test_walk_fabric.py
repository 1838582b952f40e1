"""Whatever happens to a node: with the policy none is let in without a pass of its boot, or the time to wait."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.decide.fabric import FABRIC_ALONE, FABRIC_WAITS, passed_at
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.fabric_config import Admission, Alone, FabricRules
from gpu_burnin.admission.view import View
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from tests.support.decide_helpers import RULES, carried_out, changed
from tests.support.decide_walks import BOOTS, STEPS, Machine, is_open


@dataclass
class Paired(Machine):
    """A machine that is tested with others too."""

    alone: Alone = Alone.ADMIT

    def do_test_with_another(self) -> None:
        outcome = self.rng.choice([*FabricOutcome, FabricOutcome.PASSED])
        if self.view.record is not None:
            at = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
            proof = FabricProof(BOOTS[self.boot], at, outcome, "r", claim="a claim")
            self.view = changed(self.view, status={"fabric": proof})

    do_test_with_another_too = do_test_with_another

    def decide(self) -> View:
        rules = replace(RULES, fabric=FabricRules(Admission.REQUIRED, alone=self.alone))
        decision = decide(self.view, rules, self.now)
        if decision.needs is not None and self.rng.random() < 0.3:
            decision = withheld(decision, "no room", None)
        done = self.rng.choice([0, 1, 2, 2, 2])
        decision = decision if done > 1 else replace(decision, node_patch=None, node_status_patch=None, evict=())
        if done:
            self.view = carried_out(self.view, decision)
        return self.view


def waited_s(view: View, now: datetime) -> float:
    """For how long its ledger says that it waits for a test with another node; 0 where that is not what it says."""
    assert view.record is not None
    steps = [step for step in view.record.status.transitions if step.code in (FABRIC_WAITS, FABRIC_ALONE)]
    began = next((step.at for step in reversed(steps) if step.code == FABRIC_WAITS), "")
    since = when(began)
    return (now - since).total_seconds() if since is not None else 0.0


@pytest.mark.parametrize("alone", Alone)
def test_no_order_of_events_lets_a_node_in_without_a_pass_or_the_wait(alone: Alone) -> None:
    passed = lone = 0
    for seed in range(8):
        machine = Paired(random.Random(seed), alone=alone)
        for _ in range(STEPS):
            machine.happen()
            before = machine.view
            after = machine.decide()
            if is_open(before) or not is_open(after):
                continue
            assert before.record is not None and before.node is not None
            boot = before.node["status"]["nodeInfo"]["bootID"]
            if passed_at(before.record.status.fabric, boot) is not None:
                passed += 1
            else:
                assert alone is Alone.ADMIT and waited_s(before, machine.now) >= 900
                lone += 1
    assert passed > 0 and (lone > 0) == (alone is Alone.ADMIT)
