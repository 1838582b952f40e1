"""A repair from its begin to its end, against an API server in this process: what is asked, refused, kept, held."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.agent_note import AgentNote, Maintenance, note_text
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair import climb, ledger, technician
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.fleet.repair.ladder import Fault, Rung, Step, StepState
from gpu_burnin.fleet.repair.permit import Limits, RepairRefused
from gpu_burnin.report import model
from gpu_burnin.types import Action
from tests.support.fake_api import FakeApi
from tests.support.sample_reports import faulty_8

NOW = datetime(2026, 11, 22, 17, tzinfo=UTC)
NAMES = Names()
GPU = "GPU-1"


class Site:
    """A fleet of two nodes, gpu-1 broken, and a controller with its folder. `admits`: the admitter follows asks."""

    def __init__(self, folder: Path) -> None:
        self.api = FakeApi()
        self.kubeconfig = self.api.kubeconfig(folder / "kubeconfig")
        self.directory, self.report = folder / "repair", folder / "report.json"
        self.admits = True
        for name in ("gpu-1", "gpu-2"):
            self.api.put("nodeadmissions", {"metadata": {"name": name}, "spec": {}, "status": {"state": "quarantined"}})
            self.api.put_node({"metadata": {"name": name, "annotations": {}}, "spec": {"taints": []}})
        self.api.objects["pods"] = {}
        self.api.before_read = self._admit

    def _admit(self, path: str) -> None:
        for item in self.api.objects["nodeadmissions"].values() if self.admits else ():
            item["status"]["state"] = "repairing" if item["spec"].get("repair") else "quarantined"

    @property
    def admission(self) -> dict[str, Any]:
        return self.api.objects["nodeadmissions"]["gpu-1"]

    @property
    def node(self) -> dict[str, Any]:
        return self.api.nodes["gpu-1"]

    def pod(self, name: str, *, gpus: int = 8, node: str = "gpu-1", phase: str = "Running") -> None:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        self.api.put(
            "pods",
            {
                "metadata": {"namespace": "ml", "name": name, "uid": name},
                "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits, "requests": limits}}]},
                "status": {"phase": phase},
            },
        )

    def repair(self, *, limits: Limits | None = None, bmc: bool = True, user: str = "anna") -> climb.Repair:
        self.api.user = user
        ticks = iter(range(10_000))
        return climb.Repair(
            node="gpu-1",
            directory=self.directory,
            cluster=Cluster(KubeApi(self.kubeconfig), NAMES, now_s=lambda: next(ticks), sleep=lambda seconds: None),
            can={*Rung} if bmc else {*Rung} - {Rung.POWER_CYCLE},
            report=self.report,
            limits=limits or Limits(),
            now=lambda: NOW,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.api.close()


def look(boot: str = "b1", *, working: tuple[dict[str, Any], ...] = (), **evidence: Any) -> dict[str, Any]:
    told = {
        "problem": "",
        "this_boot": True,
        "verdict": "FAIL",
        "action": "reset_gpu",
        "run_id": "r1",
        "level": "quick",
    }
    reasons = evidence.pop("reasons", [{"code": "XID_FATAL", "gpu": GPU}])
    passed = evidence.get("verdict") == "PASS"
    return {
        "boot_id": boot,
        "machine_id": "m1",
        "dmi": {"product_serial": "S1", "product_name": "X8"},
        "slots": {},
        "working": [*working],
        "status": {
            "evidence": {**told, "level": "quick", "reasons": reasons, **evidence},
            "gate": {"open": passed, "message": "" if passed else "closed: FAIL"},
            "unit": {"running": False},
            "maintenance": {"near": ""},
        },
    }


PASS = {"verdict": "PASS", "action": "none", "reasons": []}


def test_a_ladder_from_the_ask_to_the_pass(site: Site) -> None:
    repair = site.repair()
    assert repair.begin(look()).rung is Rung.RESET_GPU
    assert site.admission["spec"]["repair"] == {
        "who": "anna",
        "why": "repair ladder: XID_FATAL",
        "since": "2026-11-22T17:00:00.000Z",
        "until": "",
        "level": "",
    }
    chosen, gpus = repair.rung(look())
    assert (chosen.rung, gpus) == (Rung.RESET_GPU, (GPU,))
    assert repair.record(look(), "nvidia-smi ended with 255").state is StepState.FAILED
    chosen, _ = repair.rung(look())
    assert chosen.rung is Rung.REBOOT
    assert repair.record(look("b2", **PASS, run_id="r2")).verdict == "PASS"
    chosen, _ = repair.rung(look("b2", **PASS))
    assert chosen.rung is None
    assert repair.give_back()
    assert not repair.give_back()
    assert "repair" not in site.admission["spec"]
    steps = ledger.read(site.directory, "gpu-1").steps
    assert [(step.rung, step.state, step.verdict) for step in steps] == [
        (Rung.RESET_GPU, StepState.FAILED, ""),
        (Rung.REBOOT, StepState.DONE, "PASS"),
    ]


def test_a_step_is_written_down_before_it_is_done_and_gone_on_with(site: Site) -> None:
    repair = site.repair()
    repair.begin(look())
    repair.rung(look(action="reboot"))
    # The controller is lost here. The machine has booted meanwhile, and its report is of the boot before.
    again = site.repair()
    assert again.begin(look("b2", this_boot=False)).rung is Rung.RETEST
    chosen, _ = again.rung(look("b2", this_boot=False))
    assert chosen.rung is Rung.RETEST
    steps = ledger.read(site.directory, "gpu-1").steps
    assert [(step.rung, step.state) for step in steps] == [
        (Rung.REBOOT, StepState.DONE),
        (Rung.RETEST, StepState.BEGUN),
    ]
    assert again.record(look("b2", action="power_cycle")).verdict == "FAIL"
    assert again.rung(look("b2", action="power_cycle"))[0].rung is Rung.POWER_CYCLE


def test_a_machine_that_was_left_off_is_gone_on_with(site: Site) -> None:
    repair = site.repair()
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    again = site.repair()
    assert again.begin(None).rung is Rung.POWER_CYCLE
    again.rung(None)
    (step,) = ledger.read(site.directory, "gpu-1").steps
    assert (step.attempt, step.boot_id, step.state) == (2, "b1", StepState.BEGUN)


OWED = {"code": "XID_FATAL", "bootID": "b1", "since": "2026-11-22T16:00:00Z"}


def test_a_power_cycle_that_the_ledger_waits_for_is_done_and_told_though_the_node_passes(site: Site) -> None:
    """Somebody has rebooted it, and its burn-in passed."""
    site.admission["status"]["powerCycle"] = OWED
    repair, passed = site.repair(), look("b2", **PASS)
    first = repair.begin(passed)
    assert first.rung is Rung.POWER_CYCLE and first.why.startswith(
        "XID_FATAL asked for a power cycle at 2026-11-22T16:0"
    )
    repair.rung(passed)
    assert "powerCycled" not in site.admission["spec"]["repair"]
    repair.record(look("b3", **PASS))
    assert site.admission["spec"]["repair"]["powerCycled"] is True
    # The admitter has not seen it yet.
    assert repair.rung(look("b3", **PASS))[0].rung is None


def test_a_power_cycle_whose_end_was_lost_is_told_by_the_next_run_and_one_that_failed_is_not(site: Site) -> None:
    site.admission["status"]["powerCycle"] = OWED
    repair = site.repair()
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    repair.record(look(action="power_cycle"))  # in the boot of before
    assert "powerCycled" not in site.admission["spec"]["repair"]
    ledger.write(site.directory, replace(ledger.read(site.directory, "gpu-1"), steps=()))
    repair.rung(look(action="power_cycle"))
    site.repair().rung(look("b2", **PASS))
    assert site.admission["spec"]["repair"]["powerCycled"] is True


def test_without_a_bmc_the_technician_has_the_power_cycle_that_is_owed(site: Site) -> None:
    site.admission["status"]["powerCycle"] = OWED
    first = site.repair(bmc=False).begin(look("b2", **PASS))
    assert first.rung is Rung.HOLD and first.why.endswith("and a power_cycle is not possible from here")


def test_a_repair_that_the_ledger_waits_for_is_the_technicians_though_the_node_passes(site: Site) -> None:
    """What gave a wrong result once may give right ones for days: no rung of the ladder mends it."""
    site.admission["status"]["powerCycle"] = OWED | {"code": "GEMM_MISMATCH", "action": "repair"}
    first = site.repair().begin(look("b2", **PASS))
    assert first.rung is Rung.HOLD
    assert first.why == "GEMM_MISMATCH asked for a repair at 2026-11-22T16:00:00Z, and a PASS after it is none"
    assert "powerCycled" not in json.dumps(site.admission["spec"])
    text = technician.render(site.repair().hold(look("b2", **PASS), first.why), width=200)
    assert "Power the machine off and have the hardware that GEMM_MISMATCH names checked or replaced" in text
    assert "muster node retest gpu-1 --power-cycled --reason REASON" in text


def test_a_power_cycle_that_leaves_the_boot_as_it_was_is_none(site: Site) -> None:
    repair = site.repair()
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    step = repair.record(look("b1", action="power_cycle"))
    assert (step.state, step.verdict) == (StepState.FAILED, "")
    assert "the machine is still in the boot of before, b1" in step.message


def test_another_machine_behind_the_address_is_told(site: Site) -> None:
    repair = site.repair()
    repair.begin(look(action="reboot"))
    repair.rung(look(action="reboot"))
    step = repair.record({**look("b2", **PASS), "machine_id": "m2"})
    assert (step.state, step.verdict) == (StepState.FAILED, "")
    assert "another machine answers now" in step.message


def test_an_error_before_anything_was_done_leaves_no_step(site: Site) -> None:
    repair = site.repair()
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    repair.stop(untouched=True)
    assert ledger.read(site.directory, "gpu-1").steps == ()
    assert "repair" not in site.admission["spec"]
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    repair.stop(untouched=False)
    assert len(ledger.read(site.directory, "gpu-1").steps) == 1


WORKER = {"name": "python3", "pid": 7, "unit": "session-1.scope"}


def test_processes_refuse_and_a_burn_in_does_not(site: Site) -> None:
    with pytest.raises(RepairRefused) as told:
        site.repair().begin(look(working=(WORKER,)))
    assert str(told.value) == (
        "gpu-1: work is on its GPUs: python3 (process 7, session-1.scope); end it, then run this again"
    )
    assert site.api.writes() == ["/apis/authentication.k8s.io/v1/selfsubjectreviews"]
    site.repair().begin(look(working=({**WORKER, "unit": "gpu-burnin-run.service"},)))


def test_pods_with_gpus_refuse(site: Site) -> None:
    site.pod("done", phase="Succeeded")
    site.pod("web", gpus=0)
    site.pod("elsewhere", node="gpu-2")
    repair = site.repair()
    repair.begin(look())
    repair.stop(untouched=False)
    site.pod("train-0")
    with pytest.raises(RepairRefused) as told:
        repair.begin(look())
    assert str(told.value) == (
        "gpu-1: it has work: ml/train-0; `muster node quarantine gpu-1 --reason REASON` asks it to leave, then run "
        "this again"
    )
    assert "repair" not in site.admission["spec"]


def test_work_that_came_meanwhile_refuses_and_the_ask_is_taken_away(site: Site) -> None:
    asked = []

    def come(path: str) -> None:
        if path.endswith("nodeadmissions/gpu-1"):
            asked.append(path)
            site.pod("train-0")

    site.api.before_write = come
    with pytest.raises(RepairRefused, match="it has work: ml/train-0"):
        site.repair().begin(look())
    assert asked
    assert "repair" not in site.admission["spec"]


def test_work_is_looked_for_before_each_rung(site: Site) -> None:
    repair = site.repair()
    repair.begin(look())
    site.pod("forced")
    with pytest.raises(RepairRefused, match="ml/forced"):
        repair.rung(look())
    assert ledger.read(site.directory, "gpu-1").steps == ()


def test_no_more_nodes_than_allowed_are_in_repair(site: Site) -> None:
    site.api.objects["nodeadmissions"]["gpu-2"]["spec"]["repair"] = {"who": "bert", "why": "w", "since": "s"}
    with pytest.raises(RepairRefused) as told:
        site.repair().begin(look())
    assert str(told.value) == ("gpu-1: 1 in repair already (gpu-2), and repair_max_nodes allows 1; wait for their end")
    assert site.repair(limits=Limits(2)).begin(look()).rung is Rung.RESET_GPU


def test_two_that_ask_at_the_same_moment_both_give_way(site: Site) -> None:
    def other(path: str) -> None:
        if path.endswith("nodeadmissions/gpu-1"):
            site.api.objects["nodeadmissions"]["gpu-2"]["spec"]["repair"] = {"who": "bert", "why": "w", "since": "s"}

    site.api.before_write = other
    with pytest.raises(RepairRefused, match="1 in repair already"):
        site.repair().begin(look())
    assert "repair" not in site.admission["spec"]


def test_what_somebody_else_repairs_is_left_to_them(site: Site) -> None:
    site.repair().begin(look())
    with pytest.raises(RepairRefused, match=r"^gpu-1: anna has it in repair since .+ \(repair ladder: XID_FATAL\)"):
        site.repair(user="bert").begin(look())
    site.repair(user="bert").cluster.release("gpu-1")
    assert site.admission["spec"]["repair"]["who"] == "anna"


@pytest.mark.parametrize("verb", ["repair", "quarantine"])
def test_a_driver_upgrade_of_the_same_user_is_not_theirs_to_end(site: Site, verb: str) -> None:
    """In quarantine while its work leaves, then in repair."""
    asked = {"who": "anna", "why": "driver upgrade to 580.105.08", "since": "2026-11-22T16:00:00Z"}
    site.admission["spec"][verb] = asked
    with pytest.raises(RepairRefused, match=r"anna has asked for it since .+ \(driver upgrade to 580.105.08\)"):
        site.repair().begin(look())
    assert site.admission["spec"][verb] == asked


def test_a_paused_fleet_is_not_repaired(site: Site) -> None:
    site.api.put(
        "configmaps",
        {"metadata": {"namespace": "muster-system", "name": "muster-pause"}, "data": {"who": "bert", "why": "power"}},
    )
    with pytest.raises(RepairRefused, match=r"is paused \(bert: power\); run this again after `muster resume`"):
        site.repair().begin(look())


SOON = (NOW + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
LATER = (NOW + timedelta(hours=9)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("window", "refused"),
    [
        (Maintenance("azure", "scheduled", not_before=SOON), True),
        (Maintenance("azure", "started"), True),
        (Maintenance("azure", "unknown", message="no answer"), True),
        (Maintenance("azure", "scheduled", not_before=LATER), False),
        (Maintenance("azure", "none"), False),
        (None, False),
    ],
)
def test_a_maintenance_window_refuses_and_so_does_not_knowing(
    site: Site, window: Maintenance | None, refused: bool
) -> None:
    site.node["metadata"]["annotations"][NAMES.agent] = note_text(AgentNote("b1", maintenance=window))
    if refused:
        with pytest.raises(RepairRefused, match="-e repair_despite_maintenance=true"):
            site.repair().begin(look())
    assert site.repair(limits=Limits(despite_maintenance=refused)).begin(look()).rung is Rung.RESET_GPU


def test_a_window_of_the_calendar_or_of_the_nodes_own_notice_refuses(site: Site) -> None:
    own = look()
    own["status"]["maintenance"]["near"] = "azure: maintenance is announced"
    with pytest.raises(RepairRefused, match=r"^gpu-1: azure: maintenance is announced; wait until it is over"):
        site.repair().begin(own)
    told = replace(site.repair(), maintenance="calendar: maintenance is under way")
    with pytest.raises(RepairRefused, match=r"^gpu-1: calendar: maintenance is under way; wait"):
        told.begin(look())
    assert replace(told, limits=Limits(despite_maintenance=True)).begin(look()).rung is Rung.RESET_GPU


def test_the_taint_of_a_window_refuses(site: Site) -> None:
    site.node["spec"]["taints"] = [{"key": NAMES.maintenance, "effect": "NoSchedule"}]
    with pytest.raises(RepairRefused, match=r"it has the taint muster\.dev/maintenance"):
        site.repair().begin(look())


def test_a_node_that_does_not_answer_may_have_work(site: Site) -> None:
    with pytest.raises(RepairRefused, match="does not answer by SSH, so nobody knows whether a process is on its GPUs"):
        site.repair().begin(None)
    assert site.repair(limits=Limits(unreached=True)).begin(None).rung is Rung.POWER_CYCLE


def test_a_node_without_an_admission_is_not_repaired(site: Site) -> None:
    site.api.remove("nodeadmissions", "gpu-1")
    with pytest.raises(RepairRefused, match="the cluster has no NodeAdmission of this name"):
        site.repair().begin(look())


def test_an_admitter_that_does_not_follow_is_told_and_the_ask_taken_away(site: Site) -> None:
    site.admits = False
    with pytest.raises(RepairRefused, match="still quarantined 60 s after the ask for its repair"):
        site.repair().begin(look())
    assert "repair" not in site.admission["spec"]


def test_a_node_that_never_registered_waits_for_nobody(site: Site) -> None:
    site.admits = False
    site.api.remove("nodes", "gpu-1")
    assert site.repair().begin(look()).rung is Rung.RESET_GPU


def test_a_look_ahead_writes_nothing(site: Site) -> None:
    assert site.repair().begin(look(), apply=False).rung is Rung.RESET_GPU
    assert "repair" not in site.admission["spec"]
    assert not site.directory.exists()


@pytest.mark.slow
def test_what_only_a_technician_can_do_is_held_with_the_order(site: Site) -> None:
    report = faulty_8()[0]
    site.report.write_bytes(model.to_bytes(report))
    bad = next(reason.gpu for reason in report.reasons if reason.gpu)
    gpu = report.gpu_of[bad]
    here = {**look(action="repair"), "slots": {gpu.pci_bus_id.rpartition(".")[0].lower(): "7"}}
    repair = site.repair()
    first = repair.begin(here)
    assert first.rung is Rung.HOLD
    order = repair.hold(here, first.why)
    part = next(part for part in order.parts if part.uuid == bad)
    assert (part.slot, part.serial, part.pci_bus_id) == ("7", gpu.serial, gpu.pci_bus_id)
    assert {seen.code for seen in part.seen} == {r.code for r in report.reasons if r.gpu == bad}
    assert any(seen.evidence for part in order.parts for seen in part.seen)
    hold = site.admission["spec"]["hold"]
    assert hold["who"] == "anna"
    assert hold["why"].startswith(f"technician: {order.order}"[:200])
    assert "repair" not in site.admission["spec"]
    text = (site.directory / "gpu-1-technician.txt").read_text()
    assert all(word in text for word in ("slot:     7", gpu.serial, gpu.pci_bus_id, "X8", "serial:   S1"))
    assert max(map(len, text.splitlines())) <= 120
    told = json.loads((site.directory / "gpu-1-technician.json").read_bytes())
    assert told["schema"] == technician.SCHEMA
    assert told["parts"][0]["seen"]
    # A second run holds it still, and neither climbs nor writes another step.
    assert site.repair().begin(look(action="reset_gpu")).rung is Rung.HOLD
    site.repair().hold(here, first.why)
    assert [step.rung for step in ledger.read(site.directory, "gpu-1").steps] == [Rung.HOLD]


@pytest.mark.parametrize(("cycled", "todo"), [(False, "Power the machine off and on"), (True, "checked or replaced")])
def test_after_a_power_cycle_the_part_is_to_be_replaced(cycled: bool, todo: str) -> None:
    report = faulty_8()[0]
    reason = next(replace(reason, action=Action.POWER_CYCLE) for reason in report.reasons if reason.gpu)
    report = replace(report, action=Action.POWER_CYCLE, reasons=(reason,))
    fault = Fault(reason.code, reason.gpu or "")
    step = Step(Rung.POWER_CYCLE if cycled else Rung.REBOOT, (fault,), "t", "b0", "m1", "anna", StepState.DONE)
    order = technician.make_order("gpu-1", "now", "why", report, None, [step], "report.json")
    assert todo in order.order
    assert order.tried == (step,)


def test_somebodys_hold_stays_as_it_is(site: Site) -> None:
    site.admission["spec"]["hold"] = {"who": "bert", "why": "mine", "since": "s"}
    site.repair().hold(look(), "why")
    assert site.admission["spec"]["hold"]["who"] == "bert"
    # One that is over holds nothing.
    site.admission["spec"]["hold"]["until"] = "2020-01-01T00:00:00Z"
    site.repair().hold(look(), "why")
    assert site.admission["spec"]["hold"]["who"] == "anna"


@pytest.mark.slow
def test_the_machine_is_known_from_its_report_when_it_does_not_answer(site: Site) -> None:
    assert site.repair().dmi(None) == {}
    site.report.write_bytes(model.to_bytes(faulty_8()[0]))
    told = model.parse(site.report.read_bytes(), "report").host.dmi
    assert site.repair().dmi(None) == told
    assert site.repair().dmi(look())["product_serial"] == "S1"


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "cannot be read"), ('{"node": "gpu-2", "steps": [], "schema": "muster-repair/v1"}', "is of gpu-2")],
)
def test_a_damaged_ledger_stops_the_ladder(site: Site, text: str, told: str) -> None:
    site.directory.mkdir()
    (site.directory / "gpu-1.json").write_text(text)
    with pytest.raises(GpuBurninError, match=told):
        site.repair().begin(look())


def test_the_ledger_is_for_its_owner_alone_and_forgets_the_oldest(site: Site) -> None:
    repair = site.repair()
    repair.begin(look())
    repair.rung(look())
    path = site.directory / "gpu-1.json"
    assert (site.directory.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    book = ledger.read(site.directory, "gpu-1")
    for _ in range(ledger.MOST_STEPS + 5):
        book = book.add(book.steps[-1])
    assert len(book.steps) == ledger.MOST_STEPS


def test_a_power_cycle_confirms_what_a_fault_asked_for_during_the_repair(site: Site) -> None:
    """The reboot before it failed in its burn-in, which the admitter heard after the node was asked for."""
    repair = site.repair()
    repair.begin(look(action="power_cycle"))
    repair.rung(look(action="power_cycle"))
    later = replace(repair, now=lambda: NOW + timedelta(minutes=20))
    later.record(look("b2", **PASS))
    assert site.admission["spec"]["repair"]["since"] == "2026-11-22T17:20:00.000Z"
