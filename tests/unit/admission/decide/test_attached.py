"""In a cluster of others: what observing leaves alone, and what enforcing does otherwise than in a built fleet."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.admission.view import Budget, Rules, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.evidence import WATCHED
from gpu_burnin.api.record import Ask, Identity, Spec
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT2, MACHINE, NOW, make_node
from tests.support.decide_helpers import GPU_POD, PASSED, SPEC, changed, make_view, ready_view, seen, settled

OBSERVING, ENFORCING = Rules(mode=Mode.OBSERVING), Rules(mode=Mode.ENFORCING)
OPEN = {**make_node(), "spec": {}}
LOST = replace(PASSED, verdict=Verdict.FAIL, sequence=9, code="GPU_LOST", message="GPU 1 is gone")
HOLD = Ask("admin", "looks at it", "2026-11-21T11:00:00Z")


@pytest.mark.parametrize(
    "view",
    [
        make_view(None, node=OPEN),
        make_view(LOST, node=OPEN, pods=(GPU_POD,)),
        make_view(node=OPEN, spec=replace(SPEC, hold=HOLD)),
        make_view(node=OPEN, agent=AgentNote(BOOT2)),
        make_view(node=OPEN, record=None),
    ],
    ids=["unproven", "failed", "held", "rebooted", "unlisted"],
)
def test_observing_keeps_no_node_from_work(view: object) -> None:
    found = seen(view, rules=OBSERVING)  # type: ignore[arg-type]
    assert not {taint for taint in found.taints if not taint.startswith("testing")}
    assert (found.ready, found.evict, found.leave) == (False, (), False)
    assert found.condition != "True"


def test_observing_says_what_it_would_do() -> None:
    found = seen(make_view(LOST, node=OPEN), rules=OBSERVING)
    assert (found.state, found.code, found.verdict) == ("suspect", "GPU_LOST", "fail")
    assert found.decision.status.next is not None
    assert "muster attach --enforce" in found.decision.status.next.why
    after = settled(make_view(LOST, node=OPEN), rules=OBSERVING)
    assert after.record is not None and after.record.status.code == "GPU_LOST"


def test_observing_calls_a_passed_node_ready() -> None:
    found = seen(make_view(node=OPEN), rules=OBSERVING)
    assert (found.state, found.ready, found.condition) == ("ready", True, "True")


def test_an_idle_node_is_tested_at_once_and_a_busy_one_later() -> None:
    idle = seen(make_view(None, node=OPEN), rules=OBSERVING)
    assert (idle.state, idle.needs, idle.taints) == ("testing", Budget.TEST, frozenset({"testing:NoSchedule"}))
    busy = seen(make_view(None, node=OPEN, pods=(GPU_POD,)), rules=OBSERVING)
    assert (busy.state, busy.taints, busy.request) == ("new", frozenset(), "")


def test_enforcing_leaves_a_node_that_was_at_work_and_never_tested() -> None:
    busy = seen(make_view(None, node=OPEN, pods=(GPU_POD,)), rules=ENFORCING)
    assert (busy.taints, busy.ready, busy.evict) == (frozenset(), False, ())
    idle = seen(make_view(None, node=OPEN), rules=ENFORCING)
    assert (idle.needs, idle.taints) == (Budget.GATE, frozenset({"preflight:NoSchedule"}))
    # Once it was tested it is judged as any other, and a person's word holds at once.
    failed = seen(make_view(LOST, node=OPEN, pods=(GPU_POD,)), rules=ENFORCING)
    assert "preflight:NoSchedule" in failed.taints
    asked = make_view(None, node=OPEN, pods=(GPU_POD,), spec=replace(SPEC, hold=HOLD))
    assert "preflight:NoSchedule" in seen(asked, rules=ENFORCING).taints


def test_no_execute_is_never_put_on_a_node_of_others() -> None:
    rebooted = changed(ready_view(), agent=AgentNote(BOOT2))
    assert "preflight:NoExecute" in seen(rebooted).taints
    assert seen(rebooted, rules=ENFORCING).taints == {"preflight:NoSchedule"}
    lost = changed(ready_view(), statement=LOST)
    built, attached = seen(lost, NOW + timedelta(seconds=1)), seen(lost, NOW + timedelta(seconds=1), ENFORCING)
    assert any(taint.endswith("NoExecute") for taint in built.taints)
    assert not any(taint.endswith("NoExecute") for taint in attached.taints)


OWED = replace(LOST, code="XID_FATAL", message="XID 79 on GPU 0", action="power_cycle", level=WATCHED)


@pytest.mark.parametrize("rules", [OBSERVING, ENFORCING], ids=["observing", "enforcing"])
@pytest.mark.parametrize(
    ("view", "code"),
    [
        (make_view(None, node=OPEN, pods=(GPU_POD,)), "EVIDENCE_MISSING"),
        (make_view(LOST, node=OPEN), "GPU_LOST"),
        (make_view(OWED, node=OPEN, pods=(GPU_POD,)), "XID_FATAL"),
        (make_view(node=OPEN, record=None), "NOT_PROVISIONED"),
        (replace(make_view(), node=None), "NODE_ABSENT"),
        (make_view(node=OPEN, agent=None), "AGENT_SILENT"),
        (make_view(node=OPEN, spec=Spec(identity=Identity(machine_id=MACHINE))), "HOST_KEY_UNKNOWN"),
    ],
)
def test_nothing_of_a_fleet_is_advised(view: View, code: str, rules: Rules) -> None:
    """There is no inventory, no playbook and no unit of systemd to look at."""
    status = seen(view, rules=rules).decision.status
    assert status.code == code
    said = f"{status.message} {status.next.what} {status.next.why}" if status.next else status.message
    alone = said.replace("probe the host and run site.yml, or where attached `muster attach approve` it", "")
    assert not [word for word in ("site.yml", "playbooks/", "inventory", "gpu-burnin-watch") if word in alone], said
