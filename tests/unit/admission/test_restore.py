"""What a restored etcd forgets of the nodes: the difference, what is carried over, and that work is kept away first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission import restore
from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.provision import Wanted, _carried
from gpu_burnin.api.crd import crd
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import (
    Ask,
    Identity,
    NodeAdmission,
    PowerCycle,
    Spec,
    Status,
    document,
    parse,
    status_document,
)
from gpu_burnin.system.codec import from_json, to_json
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi
from tests.support.restored_ledger import ANN, BEFORE, FAULT, KEY, READY, THEN, by_name, node

NAMES = Names()
SINCE, TAKEN = "2026-11-21T11:59:00Z", "2026-11-21T11:00:00Z"


PLAN = restore.compared(BEFORE, THEN, SINCE, TAKEN)


def test_the_difference_names_faults_asks_sequences_and_nodes() -> None:
    assert {one.name: one.difference for one in PLAN.nodes} == {
        "gpu-2": "quarantined (XID_FATAL) would be ready (PASS); highest sequence 9 would be 5, is carried over",
        "gpu-3": "the quarantine of ann (smoke) is carried over",
        "gpu-4": "is new since the snapshot (ready (PASS)), its entry is made again; "
        "the hold of ann (smoke) is carried over",
        "gpu-5": "the hold of ann (smoke) was over and stands again",
        "gpu-9": "has no entry any more, and gets the old one back",
    }
    assert [one.name for one in PLAN.nodes if one.urgent] == ["gpu-2", "gpu-3", "gpu-4", "gpu-5"]
    assert not PLAN.everyone and "gpu-1" not in str(PLAN)
    assert from_json(restore.Plan, to_json(PLAN)) == PLAN, "a run that was killed reads it again"


def test_how_a_node_is_used_does_not_move_its_entry_and_a_new_proof_does() -> None:
    message = replace(READY, message="other words", since=SINCE)
    swung = by_name(node("gpu-1", message, swing=ANN))
    assert not restore.compared(swung, by_name(node("gpu-1")), SINCE, TAKEN).nodes
    assert not restore.compared(by_name(node("gpu-1")), swung, SINCE, TAKEN).nodes
    assert not restore.compared(by_name(node("gpu-1", message)), by_name(node("gpu-1")), SINCE, TAKEN).nodes
    proven = replace(READY, highest_sequence=6, proofs={"standard": SINCE})
    moved = restore.compared(by_name(node("gpu-1", proven)), by_name(node("gpu-1")), SINCE, TAKEN).nodes
    assert [one.difference for one in moved] == ["highest sequence 6 would be 5, is carried over"]


def test_a_lost_etcd_and_a_ledger_that_cannot_be_read_leave_everyone_in_doubt() -> None:
    lost = restore.compared(None, THEN, SINCE, TAKEN)
    assert (lost.everyone, lost.nodes) == (True, ()) and "no member of etcd answers" in lost.why
    unread = restore.compared(BEFORE, None, SINCE, TAKEN)
    assert unread.everyone and {one.name for one in unread.nodes} == set(BEFORE)


def test_an_etcd_that_was_built_anew_lowers_no_number() -> None:
    """As on new hosts: site.yml has made the entries, and the snapshot knows more."""
    fresh = by_name(node("gpu-1", Status()), replace(node("gpu-2"), spec=Spec(Identity("ssh-ed25519 OTHER"))))
    one, two = restore.compared(fresh, by_name(node("gpu-1", FAULT), node("gpu-2", FAULT)), SINCE, TAKEN).nodes
    assert one.spec is not None and one.spec.identity.carried_sequence == 9 and "sequence" not in one.difference
    assert two.spec is not None and two.spec.identity.carried_sequence == 0, "another key begins anew"


def test_a_power_cycle_that_nobody_has_confirmed_is_carried_over_as_a_quarantine() -> None:
    """A warm reboot and a PASS after the restore would clear the fault: the restored ledger never heard of it."""
    owed = replace(READY, power_cycle=PowerCycle("XID_FATAL", "boot", SINCE))
    (moved,) = restore.compared(by_name(node("gpu-1", owed)), by_name(node("gpu-1")), SINCE, TAKEN).nodes
    difference = f"a power cycle for XID_FATAL is owed since {SINCE}: power the machine off and on, then release it"
    assert (moved.difference, moved.urgent) == (difference, True)
    assert moved.spec is not None and moved.spec.quarantine == Ask("muster:provisioner", difference, SINCE)
    # A person's quarantine would end by its time; it is named. Where the snapshot knows of it nothing moved.
    (asked,) = restore.compared(
        by_name(node("gpu-1", owed, quarantine=ANN)), by_name(node("gpu-1")), SINCE, TAKEN
    ).nodes
    beside = f"{difference}; beside it the quarantine of ann: smoke"
    assert asked.spec is not None and asked.spec.quarantine == Ask("muster:provisioner", beside, SINCE)
    assert restore.compared(by_name(node("gpu-1", owed)), by_name(node("gpu-1", owed)), SINCE, TAKEN).nodes == ()


def test_a_repair_is_carried_over_as_a_hold_that_people_can_end() -> None:
    (one,) = restore.compared(by_name(node("gpu-1", repair=ANN)), by_name(node("gpu-1")), SINCE, TAKEN).nodes
    assert one.spec is not None and one.spec.repair is None and one.spec.hold is not None
    assert one.spec.hold.why == "repair of ann, carried over the restore of etcd: smoke"
    held = by_name(node("gpu-1", repair=ANN, hold=ANN))
    (both,) = restore.compared(held, by_name(node("gpu-1", hold=ANN)), SINCE, TAKEN).nodes
    assert both.spec is not None and (both.spec.hold, both.spec.repair) == (None, None), "his hold stands as it is"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.put("customresourcedefinitions", crd(NAMES))
    for record in THEN.values():
        server.put("nodeadmissions", document(record, NAMES) | {"status": status_document(record.status)})
    yield server
    server.close()


def kube(api: FakeApi, folder: Path) -> KubeApi:
    return KubeApi(api.kubeconfig(folder / "kubeconfig"))


def entry(api: FakeApi, name: str) -> NodeAdmission:
    return parse(api.objects["nodeadmissions"][name])


def test_what_was_known_is_written_into_the_restored_ledger_once(api: FakeApi, tmp_path: Path) -> None:
    written = restore.carry(kube(api, tmp_path), NAMES, PLAN)
    assert written == ("gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-9")
    fault, asked, new = (entry(api, name).spec for name in ("gpu-2", "gpu-3", "gpu-4"))
    assert (fault.identity.carried_sequence, fault.identity.carried_report_sha256) == (9, "9" * 64)
    assert fault.restored is not None and fault.restored.since == SINCE
    assert fault.restored.why == f"snapshot of {TAKEN}; before it was quarantined (XID_FATAL)"
    carried = "quarantine of ann, carried over the restore of etcd: smoke"
    assert asked.quarantine == replace(ANN, who="muster:provisioner", why=carried)
    assert new.identity.machine_id == "machine of gpu-4" and new.hold is not None and new.restored is not None
    assert entry(api, "gpu-5").spec.hold == ANN and entry(api, "gpu-1").spec.restored is None
    # A run that was killed begins again, and takes back nothing that people did meanwhile.
    del api.objects["nodeadmissions"]["gpu-3"]["spec"]["quarantine"]
    assert restore.carry(kube(api, tmp_path), NAMES, PLAN) == ()
    assert entry(api, "gpu-3").spec.quarantine is None


def test_of_a_lost_etcd_every_entry_is_marked(api: FakeApi, tmp_path: Path) -> None:
    written = restore.carry(kube(api, tmp_path), NAMES, restore.compared(None, THEN, SINCE, TAKEN))
    assert set(written) == set(THEN)
    assert all(entry(api, name).spec.restored is not None for name in THEN)
    assert entry(api, "gpu-5").spec.hold == ANN


def test_a_definition_that_keeps_less_is_told(api: FakeApi, tmp_path: Path) -> None:
    client = kube(api, tmp_path)
    patch = client.patch
    client.patch = lambda *words, **more: {**(item := patch(*words, **more)), "spec": _less(item["spec"])}  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="does not keep what was written"):
        restore.carry(client, NAMES, PLAN)


def _less(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != "restored"}


def test_it_waits_until_the_admitter_keeps_new_work_away(api: FakeApi, tmp_path: Path) -> None:
    client, clock = kube(api, tmp_path), iter(range(100))
    restore.carry(client, NAMES, PLAN)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        item = make_node(name=name)
        item["spec"]["taints"] = []
        api.put("nodes", item)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        """The admitter closes one of the two."""
        if not slept:
            shut = [{"key": NAMES.preflight, "effect": "NoSchedule"}]
            api.put("nodes", {**make_node(name="gpu-2"), "spec": {"taints": shut}})
        slept.append(seconds)

    doubted, left = restore.wait_until_closed(client, NAMES, PLAN, 5.0, lambda: float(next(clock)), sleep)
    assert doubted == ("gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-9") and left == ("gpu-3",)
    # Its agent was faster: it has spoken, and is in no doubt.
    api.objects["nodeadmissions"]["gpu-3"]["status"]["confirmed"] = SINCE
    doubted, left = restore.wait_until_closed(client, NAMES, PLAN, 0.0)
    assert (left, "gpu-3" in doubted) == ((), False)


@pytest.mark.parametrize(
    ("known", "kept"), [((9, "9"), (9, "9")), ((5, "5"), (0, "")), ((4, "4"), (0, "")), ((0, ""), (0, ""))]
)
def test_an_older_controller_takes_nothing_back_and_a_newer_one_tells(
    known: tuple[int, str], kept: tuple[int, str]
) -> None:
    """Of one key: the entry has seen 5. A restored STATE knows less, an entry of a restored etcd less than STATE."""
    assert _carried(node("gpu-1"), Wanted("gpu-1", Identity(KEY)), {"gpu-1": known}) == kept
