"""`muster status`: counts, order, what is told of leader and pause, the page, and following the cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.outlook import TAKEN_OUT
from gpu_burnin.api.attached import (
    ATTACHED_CONFIG,
    AUTHORITY_ENDS,
    GATE_EVENT_NAME,
    GATE_OPEN,
    WEBHOOK_AWAY,
    Attached,
    Mode,
    parse_gpu_nodes,
)
from gpu_burnin.api.names import GPU_LABEL, SYSTEM_NAMESPACE, TEAM_LABEL
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.fleet.cluster import admissions, status_page, status_text
from gpu_burnin.fleet.monitoring.numbers import nothing
from gpu_burnin.report import model
from tests.support.fake_api import FakeApi
from tests.support.fleet_samples import NAMES, admission, lease, node, pause
from tests.support.sample_reports import faulty_8

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.page = 3  # several pages
    for number in range(4):
        server.put("nodeadmissions", admission(f"gpu-{number}"))
        server.put("nodes", node(f"gpu-{number}"))
    server.put("nodeadmissions", admission("gpu-10", "testing", next={"what": "test", "why": "new boot", "at": ""}))
    server.put("nodeadmissions", admission("gpu-11", "quarantined", code="XID_FATAL", message="XID 79 on GPU 3"))
    server.put("nodeadmissions", admission("gpu-12", "held", message="by muster:admin: spare"))
    server.put("nodeadmissions", admission("gpu-2", proofs={"quick": "2026-11-01T00:00:00Z"}))
    server.put("leases", lease("api-1", "2026-11-22T11:59:58.000000Z"))
    server.objects["events"] = {}
    yield server
    server.close()


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return CliRunner().invoke(muster.cli, ["status", "--kubeconfig", str(kubeconfig), *arguments])


def read(api: FakeApi, folder: Path) -> admissions.Snapshot:
    return admissions.read(KubeApi(api.kubeconfig(folder / "kubeconfig")), NAMES, NOW)


def test_nodes_are_counted_by_state_and_those_that_need_a_person_come_first(api: FakeApi, tmp_path: Path) -> None:
    fleet = read(api, tmp_path)
    assert fleet.states == {"quarantined": 1, "held": 1, "testing": 1, "ready": 4}
    assert [row.name for row in fleet.waiting] == ["gpu-11", "gpu-12", "gpu-10"]
    assert [row.needs_person for row in fleet.waiting] == [True, True, False]
    assert fleet.oldest_proof is not None and fleet.oldest_proof.name == "gpu-2"
    assert fleet.leader.alive and fleet.leader.name == "api-1"


def test_text_has_80_columns_and_says_what_is_next(api: FakeApi, tmp_path: Path) -> None:
    text = status_text.render(read(api, tmp_path), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("7 nodes: 1 quarantined, 1 held, 1 testing, 4 ready\n")
    told = " ".join(text.split())
    assert "XID_FATAL: XID 79 on GPU 3" in told and "next: test: new boot" in told
    assert "oldest proof of a ready node: gpu-2, 2026-11-01 00:00" in told
    assert "All of one node: `muster why gpu-11`" in told


def test_a_node_that_the_cluster_never_heard_of_is_not_said_to_come_by_itself(api: FakeApi, tmp_path: Path) -> None:
    """Its first burn-in may have failed: it has no Node then, and its evidence is nowhere in the cluster."""
    api.put("nodeadmissions", admission("gpu-30", "new"))
    fleet = read(api, tmp_path)
    text = status_text.render(fleet, 80)
    coming, _, unheard = text.partition(f"{status_text.UNHEARD}:")
    assert "gpu-30" in unheard and "gpu-30" not in coming.partition(f"{status_text.COMING}:")[2]
    assert "gpu-10" in coming and max(map(len, text.splitlines())) <= 80
    page = status_page.render(fleet, nothing())
    section = page.partition('id="unheard"')[2].partition("</section>")[0]
    assert "gpu-30" in section and "gpu-10" not in section


@pytest.mark.parametrize(
    ("renewed", "says"),
    [
        ("2026-11-22T11:59:58Z", "leader: api-1, renewed 2 s ago"),
        ("2026-11-22T11:50:00Z", "NO LEADER: no admitter works on this fleet; the last was api-1, 10 min ago"),
        ("soon", "NO LEADER: no admitter works on this fleet; look"),
    ],
)
def test_a_leader_that_does_not_renew_is_none(renewed: str, says: str, api: FakeApi, tmp_path: Path) -> None:
    api.put("leases", lease("api-1", renewed))
    assert says in " ".join(status_text.render(read(api, tmp_path)).split())


def test_a_lease_that_was_given_up_names_nobody(api: FakeApi, tmp_path: Path) -> None:
    api.put("leases", lease("", "2026-11-22T11:59:57Z"))
    told = " ".join(status_text.render(read(api, tmp_path)).split())
    assert "no admitter works on this fleet; the last one left 3 s ago; look" in told


def test_a_pause_is_told_with_who_and_why(api: FakeApi, tmp_path: Path) -> None:
    assert "PAUSED" not in status_text.render(read(api, tmp_path))
    api.put("configmaps", pause(who="ann", why="power works", until="2026-11-23T00:00:00Z"))
    told = " ".join(status_text.render(read(api, tmp_path)).split())
    assert "PAUSED by ann until 2026-11-23T00:00:00Z: power works;" in told
    api.put("configmaps", pause(who="ann", why="power works", until="2026-11-22T11:00:00Z"))
    assert "PAUSED" not in status_text.render(read(api, tmp_path)), "as the admitter, for which it is over"


def alarm(api: FakeApi, at: str, name: str) -> None:
    """The admitter's, of a node that it should take out."""
    metadata = {"name": "muster-admitter.1", "namespace": "muster-system"}
    told = {"metadata": metadata, "reason": "MusterBrake", "message": f"{name} and others are not kept from work"}
    api.put("events", {**told, "lastTimestamp": at})


@pytest.mark.parametrize("state", ["ready", "testing"])
def test_a_brake_is_told_as_long_as_the_ledger_says_so_and_not_a_moment_longer(
    api: FakeApi, tmp_path: Path, state: str
) -> None:
    """The alarm is repeated each minute, so that the newest is there for a while after the last reason for it."""
    share = "the share, 1 of 3 nodes, is reached"
    waits = {"what": TAKEN_OUT, "why": f"{share}; meanwhile it takes new work: `muster node hold gpu-1` ..."}
    xid = {"code": "XID_FATAL", "message": "gpu-1: XID 79 on GPU 3", "next": waits}
    api.put("nodeadmissions", admission("gpu-1", state, **xid))
    alarm(api, "2026-11-22T11:59:30Z", "gpu-1")
    fleet = read(api, tmp_path)
    told = " ".join(status_text.render(fleet).split())
    assert f"BRAKE: gpu-1 should be kept from work and is not: {share}. A fault" in told
    assert fleet.states["braked"] == 1 and fleet.waiting[0].name == "gpu-1" and fleet.waiting[0].needs_person
    assert "gpu-1 braked 2026-11-21 10:00 XID_FATAL: XID 79 on GPU 3" in told
    api.put("nodeadmissions", admission("gpu-1"))
    assert "BRAKE" not in status_text.render(read(api, tmp_path))


@pytest.mark.parametrize(("at", "told"), [("2026-11-22T11:59:30Z", True), ("2026-11-22T11:50:00Z", False), ("", False)])
def test_a_brake_of_a_node_without_ledger_is_told_by_the_alarm(
    at: str, told: bool, api: FakeApi, tmp_path: Path
) -> None:
    api.put("nodes", node("gpu-7"))
    alarm(api, at, "gpu-7")
    assert ("BRAKE: gpu-7 and others" in status_text.render(read(api, tmp_path))) is told


def test_nodes_that_take_no_work_are_not_counted_as_ready(api: FakeApi, tmp_path: Path) -> None:
    """By the ledger all of them are: behind a brake, or for what is not the admitter's to say."""
    waits = {"what": "taken from work", "why": "the share is reached", "at": ""}
    taints = {name: [{"key": f"muster.dev/{name}", "effect": "NoSchedule"}] for name in ("maintenance", "preflight")}
    api.put("nodeadmissions", admission("gpu-0", code="PASS", next=waits))
    api.put("nodes", node("gpu-1", ready="False"))
    api.put("nodes", node("gpu-2", unschedulable=True))
    api.put("nodes", node("gpu-3", taints=taints["maintenance"]))
    api.put("nodes", node("gpu-5", taints=taints["preflight"]))
    api.put("nodes", {"metadata": {"name": "system-1"}, "spec": {}})
    api.put("nodeadmissions", admission("gpu-6"))
    fleet = read(api, tmp_path)
    states = {row.name: row.state for row in fleet.rows}
    assert {name: states.get(name) for name in ("gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-5", "gpu-6")} == {
        "gpu-0": "braked", "gpu-1": "lost", "gpu-2": "cordoned", "gpu-3": "maintenance", "gpu-5": "unlisted",
        "gpu-6": "lost",
    }  # fmt: skip
    assert "system-1" not in states and sum(fleet.states.values()) == len(fleet.rows) == 9
    needed = [row.needs_person for row in fleet.waiting]
    assert needed == sorted(needed, reverse=True), "what needs a person stands first"
    assert "BRAKE: gpu-0 should be kept from work and is not: the share is reached" in status_text.render(fleet)
    assert status_page.render(fleet, nothing()).count("there is no Node object") == 1


def test_what_a_team_lacks_of_nodes_of_its_own_is_told(api: FakeApi, tmp_path: Path) -> None:
    hardware = {"gpus": 8, "model": "h100"}
    for number in range(2):
        given = admission(f"gpu-{number}", team="vision")
        api.put("nodeadmissions", {**given, "spec": {**given["spec"], "hardware": hardware}})
    labels = {GPU_LABEL: "h100", TEAM_LABEL: "vision"}
    api.put("resourceflavors", {"metadata": {"name": "h100-vision"}, "spec": {"nodeLabels": labels}})

    def want(gpus: int) -> None:
        resource = {"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}
        flavors = [{"name": "h100-vision", "resources": [resource]}]
        queue = {"metadata": {"name": "vision"}, "spec": {"resourceGroups": [{"flavors": flavors}]}}
        api.put("clusterqueues", queue)

    want(24)
    told = "vision lacks 8 of 24 GPUs of h100 on nodes of its own: the admitter gives it nodes that are idle and ready"
    assert f"SHORT: {told}" in " ".join(run(api, tmp_path).stdout.split())
    assert [text.partition(";")[0] for text in json.loads(run(api, tmp_path, "--json").stdout)["short"]] == [told]
    want(16)
    assert "SHORT" not in run(api, tmp_path).stdout and read(api, tmp_path).short == ()


def test_after_a_restore_the_nodes_that_wait_for_their_agents_are_named(api: FakeApi, tmp_path: Path) -> None:
    assert "RESTORED" not in status_text.render(read(api, tmp_path))
    api.put("nodeadmissions", admission("gpu-7", "suspect", code="LEDGER_RESTORED"))
    said = " ".join(status_text.render(read(api, tmp_path)).split())
    assert "RESTORED: etcd was restored to an older state; gpu-7 takes no new work until its agent has spoken" in said


def test_nodes_without_a_test_with_another_node_are_named_and_counted(api: FakeApi, tmp_path: Path) -> None:
    assert "ALONE" not in status_text.render(read(api, tmp_path))
    api.put("nodeadmissions", admission("gpu-2", "ready", code="FABRIC_ALONE"))
    api.put("nodeadmissions", admission("gpu-8", "testing", code="FABRIC_ALONE"))
    said = " ".join(status_text.render(read(api, tmp_path)).split())
    words = "ALONE: no test with another node came about in time for gpu-2, gpu-8; 1 of 2 were let in all the same"
    assert words in said


def test_a_node_whose_first_burn_in_failed_needs_a_person(api: FakeApi, tmp_path: Path) -> None:
    """The cluster never heard of it: the controller's report tells."""
    api.put("nodeadmissions", admission("gpu-8", "new", code="NODE_ABSENT", proofs={}, since="2026-11-22T11:00:00Z"))
    api.put("nodeadmissions", admission("gpu-9", "new", code="NODE_ABSENT", proofs={}, since="2026-11-22T07:00:00Z"))
    folder = tmp_path / "reports/gpu-8"
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes(model.to_bytes(faulty_8()[0]))
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
    rows = {row.name: row for row in admissions.read(kube, NAMES, NOW, tmp_path / "reports").rows}
    assert rows["gpu-8"].state == "rejected" and rows["gpu-8"].needs_person
    assert "its burn-in told FAIL" in rows["gpu-8"].message and rows["gpu-8"].code
    assert rows["gpu-9"].state == "absent" and rows["gpu-9"].needs_person, "no burn-in takes so long"
    known = {row.name: row for row in admissions.read(kube, NAMES, NOW).rows}
    assert known["gpu-8"].state == "new" and not known["gpu-8"].needs_person


def test_an_ask_that_is_over_or_done_is_not_shown_as_one(api: FakeApi, tmp_path: Path) -> None:
    over = {"who": "ann", "why": "x", "since": "2026-11-21T11:00:00Z", "until": "2026-11-21T12:00:00Z"}
    done = {"who": "ann", "why": "x", "since": "2026-11-21T11:00:00Z"}
    item = admission("gpu-12", "held", retested=done["since"])
    api.put("nodeadmissions", {**item, "spec": {"hold": over, "quarantine": done, "retest": done}})
    assert next(row for row in read(api, tmp_path).rows if row.name == "gpu-12").asks == ("quarantine",)


def test_a_state_of_a_newer_version_and_no_status_are_told(api: FakeApi, tmp_path: Path) -> None:
    api.put("nodeadmissions", admission("gpu-20", "resting"))
    api.put("nodeadmissions", {"metadata": {"name": "gpu-21"}, "spec": {}})
    found = {row.name: row for row in read(api, tmp_path).rows}
    assert found["gpu-20"].state == "unknown" and "resting" in found["gpu-20"].message
    assert found["gpu-20"].needs_person and "use a muster of the cluster's version" in found["gpu-20"].message
    # As a definition without a schema would have kept it.
    api.put("nodeadmissions", {**admission("gpu-20"), "status": {"state": "ready", "next": "tested"}})
    (torn,) = (row for row in read(api, tmp_path).rows if row.name == "gpu-20")
    assert torn.state == "unknown" and torn.message.startswith("its NodeAdmission cannot be read (next: not an object")
    assert found["gpu-21"].state == "new" and found["gpu-21"].proven == ""


def test_many_are_cut_in_text_and_whole_in_json(api: FakeApi, tmp_path: Path) -> None:
    for number in range(100, 200):
        api.put("nodeadmissions", admission(f"gpu-{number}", "suspect", code="GPU_COUNT"))
    api.page = 1000
    done = run(api, tmp_path)
    assert done.exit_code == 0, done.output
    assert "gpu-100 to gpu-199" in done.stdout and "and 72 more" in done.stdout
    told = json.loads(run(api, tmp_path, "--json").stdout)
    assert len(told["waiting"]) == 103 and told["states"]["suspect"] == 100 and told["nodes"] == 107


def test_no_admissions_say_what_writes_them(api: FakeApi, tmp_path: Path) -> None:
    api.objects["nodeadmissions"].clear()
    assert "site.yml" in run(api, tmp_path).stdout
    api.unknown = {"nodeadmissions"}
    done = run(api, tmp_path)
    assert done.exit_code != 0 and "list the NodeAdmissions" in str(done.exception)


def test_the_page_loads_nothing_and_escapes(api: FakeApi, tmp_path: Path) -> None:
    api.put("nodeadmissions", admission("gpu-30", "suspect", code="X_Y", message="<script>alert(1)</script>"))
    done = run(api, tmp_path, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert all(row.name in page for row in read(api, tmp_path).rows)


@pytest.mark.slow
def test_following_shows_each_change_once(api: FakeApi, tmp_path: Path) -> None:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
    shown = admissions.followed(kube, NAMES, lambda: NOW, round_s=1)
    assert next(shown).states["ready"] == 4
    api.put("nodeadmissions", admission("gpu-0", "suspect"))
    assert next(shown).states["ready"] == 3
    api.remove("nodeadmissions", "gpu-0")
    assert next(shown).states["unlisted"] == 1, "its Node is still there"
    api.put("configmaps", pause(who="ann", why="works"))
    assert next(shown).pause == {"who": "ann", "why": "works"}


def test_a_watch_that_is_too_old_lists_again(api: FakeApi, tmp_path: Path) -> None:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
    shown = admissions.followed(kube, NAMES, lambda: NOW, round_s=1)
    next(shown)
    api.put("nodeadmissions", admission("gpu-0", "suspect"))
    api.oldest = api.version
    assert next(shown).states["suspect"] == 1


@pytest.mark.parametrize(
    ("reason", "word"),
    [(AUTHORITY_ENDS, "AUTHORITY ENDS"), (GATE_OPEN, "GATE OPEN"), (WEBHOOK_AWAY, "NO NODE JOINS")],
)
def test_what_the_gates_probe_has_found_is_told_as_what_it_is(
    reason: str, word: str, api: FakeApi, tmp_path: Path
) -> None:
    of = Attached(Mode.ENFORCING, parse_gpu_nodes(("a=b",)), "0")
    place = {"namespace": SYSTEM_NAMESPACE}
    api.put("configmaps", {"metadata": {**place, "name": ATTACHED_CONFIG}, "data": of.data()})
    event = {"metadata": {**place, "name": GATE_EVENT_NAME}, "reason": reason, "message": "so it is"}
    api.put("events", {**event, "lastTimestamp": "2026-11-22T11:59:00Z"})
    told = status_text.notes(read(api, tmp_path))
    assert [one for one in told if one.endswith("so it is")] == [f"{word}: so it is"]
    # What was found long ago may be over.
    api.put("events", {**event, "lastTimestamp": "2026-11-22T11:50:00Z"})
    assert not any(one.endswith("so it is") for one in status_text.notes(read(api, tmp_path)))
