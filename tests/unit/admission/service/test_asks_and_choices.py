"""The service where a brake is on or the schedule has chosen: asks are done, and what was served is not done again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.admission.decide import Decision
from gpu_burnin.admission.schedule.pick import Choice
from gpu_burnin.admission.service.reconciler import _kept_from
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.record import Status
from gpu_burnin.types import Verdict
from tests.support.admitter_helpers import ASK, NAMES, Fleet, until, working
from tests.support.decide_helpers import PASSED, ready_view
from tests.support.fake_api import FakeApi


def test_a_brake_holds_back_nothing_that_a_person_asks_of_a_faulty_node(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    """Of three nodes one may be out: the second with the same fault is a person's."""
    names = ["gpu-1", "gpu-2", "gpu-3"]
    fleet.prove(*names)
    job = {"metadata": {"namespace": "jobs", "name": "train", "uid": "u1"}, "status": {"phase": "Running"}}
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    with working(api, tmp_path, joins_per_s=1000) as admitter:
        until("the admissions", lambda: all(map(fleet.ready, names)))
        api.put("pods", {**job, "spec": {"nodeName": "gpu-1", "containers": [gpu]}})
        for name in ("gpu-2", "gpu-1"):
            fleet.publish(name, sequence=6, verdict=Verdict.FAIL, level="watch", code="XID_FATAL", message="XID 79")
            until("its finding", lambda name=name: fleet.status(name)["code"] == "XID_FATAL")  # type: ignore[misc]
        assert fleet.status("gpu-2")["state"] == "quarantined"
        assert fleet.ready("gpu-1") and "share" in fleet.status("gpu-1")["next"]["why"]
        alarms = len(admitter.messages())
        fleet.ask("gpu-1", hold=ASK)
        until("the hold", lambda: fleet.taints("gpu-1") == {"preflight:NoSchedule"})
        until("the record", lambda: fleet.status("gpu-1")["state"] == "held")
        assert "jobs/train" in api.objects["pods"], "nobody has asked it to leave"
        assert not [text for text in admitter.messages()[alarms:] if "are not" in text]
        fleet.ask("gpu-1", quarantine=ASK)
        until("the quarantine", lambda: "quarantine:NoSchedule" in fleet.taints("gpu-1"))
        until("the eviction", lambda: "jobs/train" not in api.objects["pods"])


def test_a_scheduled_test_that_is_over_before_the_next_pass_is_not_begun_again(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    """The agent of this node answers each request at once, as a test of a few seconds does."""
    fleet.prove("gpu-1")
    requests: list[str] = []
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        term = admitter.service.term
        assert term is not None
        term.reconciler.rules = replace(term.reconciler.rules, settle_s=0.0)
        term.turns.choose(Choice("gpu-1", "quick", "it is its turn"), datetime.now(UTC))

        def answered() -> bool:
            text = api.nodes["gpu-1"]["metadata"]["annotations"].get(NAMES.request)
            if text and text not in requests:
                requests.append(text)
                fleet.publish("gpu-1", sequence=5 + len(requests))
            return "gpu-1" not in term.reconciler.choices

        until("the answer to what was chosen", answered)
        until("its end", lambda: fleet.ready("gpu-1") and fleet.status("gpu-1")["highestSequence"] == 6)
        term._enqueue("gpu-1")
        until("a look in vain", lambda: not len(term.queue))
        assert answered() and len(requests) == 1 and fleet.ready("gpu-1")


def test_the_alarm_of_a_brake_says_what_is_so_of_the_node() -> None:
    """Of one at work, of one that is closed already, and of one that nobody can ask anything of."""
    at_work = ready_view(statement=replace(PASSED, verdict=Verdict.FAIL, sequence=6))
    free = _kept_from(at_work, Decision(Status(), opens=True), "the share is reached", Mode.BUILT)
    assert free.startswith("should be kept from work and are not: the share is reached; look at `muster status`")
    closed = _kept_from(at_work, Decision(Status()), "the share is reached", Mode.BUILT)
    assert closed.startswith("take no new work, and what runs on them is not asked to leave: the share is reached;")
    unknown = _kept_from(replace(at_work, record=None), Decision(Status()), "the share is reached", Mode.BUILT)
    assert "add it to the inventory and run site.yml" in unknown and "muster node" not in unknown
    attached = _kept_from(replace(at_work, record=None), Decision(Status()), "the share is reached", Mode.ENFORCING)
    assert "muster attach approve gpu-1" in attached and "site.yml" not in attached
