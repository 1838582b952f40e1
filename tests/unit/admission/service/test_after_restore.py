"""etcd is put back under a fleet at work: all of it is closed at once, and each node comes back by its agent's word."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.admission import restore
from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.crd import crd
from gpu_burnin.api.record import NodeAdmission, State, parse
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT
from tests.support.admitter_helpers import ASK, NAMES, Fleet, until, working
from tests.support.fake_api import FakeApi

SINCE, TAKEN = "2026-11-21T11:59:00Z", "2026-11-21T11:00:00Z"
GPUS = [f"gpu-{number}" for number in range(1, 6)]


def entry(api: FakeApi, name: str) -> NodeAdmission:
    return parse(api.objects["nodeadmissions"][name])


@pytest.mark.slow
def test_known_faults_and_asks_stay_out_and_agents_bring_the_others_back(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    """gpu-1 and gpu-3 had an agent that is alive, of gpu-2 (XID 79 since the snapshot) it is dead; gpu-4 was held."""
    api.put("customresourcedefinitions", crd(NAMES))
    fleet.prove(*GPUS)
    with working(api, tmp_path, "api-1", joins_per_s=100.0) as admitter:
        until("the fleet at work", lambda: all(map(fleet.ready, GPUS)))
        snapshot = copy.deepcopy({kind: api.objects[kind] for kind in ("nodes", "nodeadmissions")})
        fleet.publish("gpu-2", verdict=Verdict.FAIL, sequence=9, level="watch", code="XID_FATAL", message="XID 79")
        until("the fault", lambda: fleet.status("gpu-2")["state"] == "quarantined")
        fleet.ask("gpu-4", hold=ASK)
        until("the hold", lambda: fleet.status("gpu-4")["state"] == "held")
        before = {name: entry(api, name) for name in GPUS}
    for kind, objects in snapshot.items():
        for item in objects.values():
            api.put(kind, item)
    plan = restore.compared(before, {name: entry(api, name) for name in GPUS}, SINCE, TAKEN)
    assert {one.name for one in plan.nodes} == {"gpu-2", "gpu-4"}
    everyone = replace(plan, everyone=True)
    client = KubeApi(api.kubeconfig(tmp_path / "provisioner"))
    with working(api, tmp_path, "api-2", joins_per_s=100.0) as admitter:
        restore.carry(client, NAMES, everyone)
        doubted, left = restore.wait_until_closed(client, NAMES, everyone, 30.0)
        # More than the share of the fleet that the admitter may close by itself.
        assert (doubted, left) == (tuple(GPUS), ())
        assert admitter.service.term is not None
        admitter.service.term.announce_restore()
        said = [line for line in admitter.messages() if "etcd was restored to an older state: " in line]
        assert len(said) == 1 and "take no new work until their agents have spoken" in said[0]
        reported = [line for line in admitter.lines("transition") if "restored to an older state" in line["message"]]
        assert {line["node"] for line in reported} == set(GPUS) - {"gpu-4"}
        for name in ("gpu-1", "gpu-3", "gpu-4"):
            annotations = {NAMES.agent: note_text(AgentNote(boot_id=BOOT, restored=SINCE))}
            api.merge("nodes", name, {"metadata": {"annotations": annotations}})
        until("those that spoke", lambda: fleet.ready("gpu-1") and fleet.ready("gpu-3"))
        until("the hold", lambda: fleet.status("gpu-4").get("confirmed") == SINCE)
    assert fleet.status("gpu-4")["state"] == State.HELD and "preflight:NoSchedule" in fleet.taints("gpu-4")
    fault = fleet.status("gpu-2")
    assert (fault["code"], fault["highestSequence"]) == ("LEDGER_RESTORED", 9)
    assert "before it was quarantined (XID_FATAL)" in fault["message"], json.dumps(fault)
    assert not fleet.ready("gpu-2") and "preflight:NoSchedule" in fleet.taints("gpu-2")


def test_idle_nodes_whose_agents_cannot_confirm_are_tested_in_turn(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    """All agents are of 0.2.0. Of a small fleet one node is tested at a time."""
    fleet.prove(*GPUS)
    mark = {"who": "muster:provisioner", "why": "snapshot", "since": SINCE}

    def requested_nodes() -> list[str]:
        return [name for name in GPUS if fleet.status(name).get("request")]

    with working(api, tmp_path, joins_per_s=100.0) as admitter:
        until("the fleet at work", lambda: all(map(fleet.ready, GPUS)))
        for name in GPUS:
            fleet.ask(name, restored=mark)
        until("the doubts", lambda: all(fleet.status(name)["code"] == "LEDGER_RESTORED" for name in GPUS))
        term = admitter.service.term
        assert term is not None and requested_nodes() == []
        term.reconciler.now = lambda: datetime.now(UTC) + timedelta(hours=2)
        term._enqueue_all()
        waits = "the limit of tests at a time, 1 of 5 nodes, is reached"
        until("the others", lambda: sum(waits in fleet.status(name)["next"]["why"] for name in GPUS) == 4)
        assert len(requested_nodes()) == 1 and not any(map(fleet.ready, GPUS))
