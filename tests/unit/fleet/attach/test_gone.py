"""Which records of nodes without Node may be removed, and that a machine that comes back loses nothing by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api import record as record_module
from gpu_burnin.api.enrolment import Decision, EnrolmentSpec
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.record import (
    Ask,
    NodeAdmission,
    PowerCycle,
    Spec,
    State,
    Status,
    Transition,
    document,
    status_document,
)
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.fleet.attach import approve, gone
from gpu_burnin.fleet.attach.gone import why_it_stays
from gpu_burnin.system.codec import to_json
from tests.support.fake_api import FakeApi, refusing
from tests.support.fleet_samples import NAMES, node

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
DAY_S = 86400.0
KINDS = ("nodeadmissions", "nodeenrolments", "agentheartbeats")
ASK = Ask("ann", "why", "2026-11-01T00:00:00Z")


def step(before: str, after: str, code: str) -> Transition:
    return Transition("2026-11-01T00:00:00Z", before, after, code, code)


LEFT = (step("new", "ready", "PASS"), step("ready", "suspect", "NODE_UNKNOWN"), step("suspect", "new", "NODE_ABSENT"))
STATUS = Status(State.NEW, "2026-11-02T00:00:00Z", "NODE_ABSENT", "no Node object", transitions=LEFT)
PASSED = record_module.Tested(4, "standard", "PASS", "2026-11-01T00:00:00Z")


def with_fault(code: str, after: str = "quarantined") -> tuple[Transition, ...]:
    return (LEFT[0], step("ready", after, code), step(after, "new", "NODE_ABSENT"))


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        (Spec(), STATUS, ""),
        (Spec(), replace(STATUS, last_test=PASSED), ""),
        # It was approved, and never tested.
        (Spec(), replace(STATUS, transitions=()), ""),
        # A fault that a pass has cleared.
        (Spec(), replace(STATUS, transitions=(*with_fault("XID_FATAL"), *LEFT)), ""),
        (Spec(), replace(STATUS, since="2026-11-20T00:00:00Z"), "it is gone since 2026-11-20"),
        (Spec(), replace(STATUS, since=""), "nobody knows when"),
        (Spec(hold=ASK), STATUS, "somebody asked for a hold"),
        (Spec(quarantine=ASK, retest=ASK), STATUS, "a quarantine and a retest"),
        (Spec(repair=ASK), STATUS, "a repair"),
        # A test that was made since, and a hold that has ended, ask for nothing.
        (Spec(retest=ASK), replace(STATUS, retested=ASK.since), ""),
        (Spec(retest=ASK), replace(STATUS, retested="2026-10-01T00:00:00Z"), "a retest"),
        (Spec(hold=replace(ASK, until="2026-11-22T11:00:00Z")), STATUS, ""),
        (Spec(hold=replace(ASK, until="2026-11-22T13:00:00Z")), STATUS, "a hold"),
        (Spec(hold=replace(ASK, until="some day")), STATUS, "a hold"),
        (Spec(), replace(STATUS, state=State.QUARANTINED, code="XID_FATAL"), "it is quarantined (XID_FATAL)"),
        (Spec(), replace(STATUS, state=State.READY, code=""), "it is ready"),
        (Spec(), replace(STATUS, code=""), "it is new (without a reason)"),
        (Spec(), replace(STATUS, last_test=replace(PASSED, verdict="FAIL", code="ECC")), "was FAIL (ECC)"),
        (Spec(), replace(STATUS, last_test=replace(PASSED, verdict="INCONCLUSIVE")), "INCONCLUSIVE"),
        (Spec(), replace(STATUS, power_cycle=PowerCycle("ECC", "b", "t")), "a power cycle is owed (ECC)"),
        (Spec(), replace(STATUS, fabric=FabricProof("b", "t", FabricOutcome.NAMED, "r")), "found it named"),
        (Spec(), replace(STATUS, transitions=with_fault("XID_FATAL")), "with a fault (XID_FATAL)"),
        (Spec(), replace(STATUS, transitions=with_fault("HARDWARE_CHANGED", "suspect")), "HARDWARE_CHANGED"),
        (Spec(), replace(STATUS, transitions=with_fault("REPAIRING", "repairing")), "with a fault (REPAIRING)"),
    ],
)
def test_what_speaks_of_a_fault_or_an_ask_stays(spec: Spec, status: Status, words: str) -> None:
    found = why_it_stays(NodeAdmission("gpu-1", spec, status), NOW, 14 * DAY_S)
    assert (words in found) if words else found == ""


def record(name: str, status: Status = STATUS) -> dict[str, Any]:
    return {**document(NodeAdmission(name), NAMES), "status": status_document(status)}


def enrolled(name: str, *, approved: bool = True) -> dict[str, Any]:
    decision = to_json(Decision(approved, "ann", "by hand", "2026-10-01T00:00:00Z"))
    return {"metadata": {"name": name}, "spec": {**to_json(EnrolmentSpec("agent", "")), "decision": decision}}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    server = FakeApi()
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        server.put("nodeadmissions", record(name))
        server.put("nodeenrolments", enrolled(name))
        server.put("agentheartbeats", {"metadata": {"name": name}, "spec": {}})
    server.put("nodeadmissions", record("gpu-2", replace(STATUS, transitions=with_fault("XID_FATAL"))))
    server.put("nodes", node("gpu-3"))

    def provisioner(kube: KubeApi, _: Path) -> Callable[[], KubeApi]:
        return lambda: kube

    monkeypatch.setattr(approve, "provisioner", provisioner)
    yield server
    server.close()


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = str(api.kubeconfig(folder / "kubeconfig"))
    return CliRunner().invoke(muster.cli, ["attach", "--kubeconfig", kubeconfig, "forget", *arguments])


def test_only_what_is_gone_without_a_fault_is_removed_whole_and_once(api: FakeApi, tmp_path: Path) -> None:
    dry = run(api, tmp_path, "--gone", "1d", "--dry-run")
    assert dry.output == "gpu-1  would be removed\ngpu-2  stays: it went with a fault (XID_FATAL)\n"
    assert api.writes() == []
    done = run(api, tmp_path, "--gone", "1d", "--json")
    assert done.exit_code == 0, done.output
    assert [(one["node"], one["removed"]) for one in json.loads(done.output)] == [("gpu-1", True), ("gpu-2", False)]
    for kind in KINDS:
        assert sorted(api.objects[kind]) == ["gpu-2", "gpu-3"], kind
    # The record is the first of the three: where it cannot go, nothing goes.
    assert ["nodeadmissions" in path for path in api.writes()] == [True, False, False]
    again = run(api, tmp_path, "--gone", "1d")
    assert again.output == "gpu-2  stays: it went with a fault (XID_FATAL)\n" and len(api.writes()) == 3


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_removed_is_said_though_the_next_one_cannot_be(api: FakeApi, tmp_path: Path, as_json: bool) -> None:
    api.put("nodeadmissions", record("gpu-4"))
    api.before_write = refusing(401, "Unauthorized", of="gpu-4")
    done = run(api, tmp_path, "--gone", "1d", *(["--json"] if as_json else []))
    assert done.exit_code != 0 and "gpu-1" not in api.objects["nodeadmissions"]
    if as_json:
        assert [(one["node"], one["removed"]) for one in json.loads(done.stdout)] == [("gpu-1", True), ("gpu-2", False)]
    else:
        assert done.stdout.startswith("gpu-1  removed\ngpu-2  stays: it went with a fault")


def test_a_node_that_comes_back_meanwhile_keeps_its_record(api: FakeApi, tmp_path: Path) -> None:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
    [found, _] = gone.gone(kube, NAMES, NOW, timedelta(days=1).total_seconds())
    api.put("nodes", node("gpu-1"))
    assert gone.remove(kube, NAMES, found) == "its Node has come back" and api.writes() == []
    api.remove("nodes", "gpu-1")
    api.put("nodeadmissions", record("gpu-1", replace(STATUS, state=State.TESTING)))
    assert gone.remove(kube, NAMES, found) == "it has changed meanwhile"
    for kind in KINDS:
        assert "gpu-1" in api.objects[kind], kind


def test_what_a_machine_says_anew_stays_and_what_a_cut_run_left_is_found(api: FakeApi, tmp_path: Path) -> None:
    """Neither what waits or was refused, nor anything of a Node that is there, is taken for such a rest."""
    api.put("nodeenrolments", enrolled("waits-1"))
    api.objects["nodeenrolments"]["waits-1"]["spec"].pop("decision")
    api.put("nodeenrolments", enrolled("refused-1", approved=False))
    api.before_write = refusing(500, "Internal error", of="nodeenrolments/gpu-1")
    assert run(api, tmp_path, "--gone", "1d").exit_code != 0
    assert ["gpu-1" in api.objects[kind] for kind in KINDS] == [False, True, True]
    api.before_write = lambda _: None
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
    [found, _] = gone.gone(kube, NAMES, NOW, DAY_S)
    # It has come with the same name, and its Node is not yet there.
    api.put("agentheartbeats", {"metadata": {"name": "gpu-1"}, "spec": {"time": "now"}})
    assert gone.remove(kube, NAMES, found) == ""
    assert [sorted(api.objects[kind].keys() - {"gpu-2", "gpu-3"}) for kind in KINDS] == [
        [], ["refused-1", "waits-1"], ["gpu-1"]
    ]  # fmt: skip
    assert run(api, tmp_path, "--gone", "1d").output.startswith("gpu-1  removed\n")
    assert "gpu-1" not in api.objects["agentheartbeats"]


@pytest.mark.parametrize("words", [(), ("gpu-1", "--gone", "1d"), ("gpu-1", "--dry-run")])
def test_a_node_or_how_long(api: FakeApi, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(api, tmp_path, *words).exit_code == 2
    assert api.writes() == []
