"""What differs is written, what has gone is removed, and what must not be done is refused before anything is written.

Only here, against a small API in this process: the order of things, races and refusals. A real Kueue's answers:
tests/integration/test_teams.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.apply import Applier
from ansible_collections.muster.fleet.plugins.module_utils.jobs.compare import KINDS, merged, path_of, same
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import Team

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.api.names import Names
from tests.support.fake_api import FakeApi, Refused, refusing

H100 = "h100-sxm5-80gb"
FLEET = Fleet({H100: 512}, {H100: frozenset({8})}, ("rack",))
VISION, AUDIO = Team("vision", {H100: 256}, members=("alice",)), Team("audio", {H100: 64})
RESOURCES = [path.rpartition("/")[2] for path in KINDS.values()]


def wanted(*teams: Team, fleet: Fleet = FLEET) -> list[dict[str, Any]]:
    return objects(teams, fleet, Names())


@pytest.fixture
def api() -> Iterator[FakeApi]:
    made = FakeApi()
    for resource in (*RESOURCES, "namespaces", "pods", "jobs", "jobsets", "workloads"):
        made.objects[resource] = {}
    yield made
    made.close()


@pytest.fixture
def applier(api: FakeApi, tmp_path: Path) -> Applier:
    times = iter(range(10_000))
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0)
    return Applier(kube, clock=lambda: float(next(times)), sleep=lambda _: None)


def carry_out(applier: Applier, *teams: Team, fleet: Fleet = FLEET) -> list[str]:
    plan = applier.plan(wanted(*teams, fleet=fleet))
    applier.carry_out(plan)
    return [*plan.names, *(f"-{name}" for name in plan.removed)]


def test_everything_is_written_once_and_in_order(api: FakeApi, applier: Applier) -> None:
    first = carry_out(applier, VISION, AUDIO)
    assert first[0] == "Topology/fleet" and first.index("Namespace/vision") < first.index("LocalQueue/vision/default")
    writes = api.writes()
    assert carry_out(applier, VISION, AUDIO) == [] and api.writes() == writes


def test_check_mode_reads_alone(api: FakeApi, applier: Applier) -> None:
    plan = applier.plan(wanted(VISION))
    assert "ClusterQueue/vision" in plan.names and plan.before["ClusterQueue/vision"] == {}
    assert plan.after["ClusterQueue/vision"]["spec"]["cohortName"] == "fleet" and api.writes() == []


def test_what_a_team_has_no_more_goes_from_its_queue(applier: Applier, api: FakeApi) -> None:
    carry_out(applier, Team("vision", {H100: 256}, borrow=False))
    assert carry_out(applier, VISION) == ["RoleBinding/vision/muster:team-members", "ClusterQueue/vision"][::-1]
    flavors = api.objects["clusterqueues"]["vision"]["spec"]["resourceGroups"][0]["flavors"]
    assert flavors[0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "256"}]


def test_what_somebody_added_to_a_queue_goes_and_a_stopped_queue_stays_stopped(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION)
    change = {"spec": {"stopPolicy": "Hold"}, "metadata": {"labels": {"mine": "1"}, "finalizers": ["x/y"]}}
    api.merge("clusterqueues", "vision", change)
    assert carry_out(applier, VISION) == []
    api.merge("clusterqueues", "vision", {"spec": {"preemption": {"withinClusterQueue": "Never"}, "other": 1}})
    plan = applier.plan(wanted(VISION))
    assert plan.before["ClusterQueue/vision"]["spec"]["other"] == 1
    applier.carry_out(plan)
    there = api.objects["clusterqueues"]["vision"]
    assert there["spec"]["stopPolicy"] == "Hold" and "other" not in there["spec"]
    assert there["metadata"]["labels"]["mine"] == "1" and there["metadata"]["finalizers"] == ["x/y"]


def test_a_race_with_kueue_is_tried_again(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION)
    plan = applier.plan(wanted(Team("vision", {H100: 8})))
    api.merge("clusterqueues", "vision", {"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}})
    applier.carry_out(plan)
    there = api.objects["clusterqueues"]["vision"]
    assert there["metadata"]["finalizers"] and same(
        there, next(o for o, _ in plan.write if o["kind"] == "ClusterQueue")
    )


def test_a_team_that_left_loses_its_queue_and_keeps_its_namespace(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    api.put("configmaps", {"metadata": {"name": "notes", "namespace": "audio"}})
    done = carry_out(applier, VISION)
    assert done == [
        "Cohort/fleet",
        "Namespace/audio",
        "-RoleBinding/audio/muster:team-members",
        "-LocalQueue/audio/default",
        "-LimitRange/audio/muster",
        "-ResourceQuota/audio/muster",
        "-ClusterQueue/audio",
    ]
    labels = api.objects["namespaces"]["audio"]["metadata"]["labels"]
    assert "muster.dev/team" not in labels and labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert carry_out(applier, VISION) == [] and api.objects["configmaps"]
    # Under the same name it is the same one again.
    assert "Namespace/audio" in carry_out(applier, VISION, AUDIO)
    assert api.objects["namespaces"]["audio"]["metadata"]["labels"]["muster.dev/team"] == "audio"


def test_a_namespace_that_others_change_all_the_time_is_not_said_to_be_released(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    plan = applier.plan(wanted(VISION))

    def changing(path: str) -> None:
        if path.endswith("/namespaces/audio"):
            raise Refused(409, "the object has been modified")

    api.before_write = changing
    with pytest.raises(FleetError, match="Namespace/audio changes all the time; see who writes it"):
        applier.carry_out(plan)


def test_check_mode_shows_the_label_that_goes(applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    told = applier.plan(wanted(VISION))
    before, after = (part["Namespace/audio"]["metadata"]["labels"] for part in (told.before, told.after))
    assert {key: value for key, value in before.items() if key not in after} == {"muster.dev/team": "audio"}


def test_the_last_team_takes_all_with_it_without_kueue(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION)
    for resource in ("clusterqueues", "resourceflavors", "topologies"):
        for name in api.objects[resource]:
            api.merge(resource, name, {"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}})
    done = carry_out(applier)
    assert done[-1].startswith("-WorkloadPriorityClass/") and "-Topology/fleet" in done
    assert [resource for resource in RESOURCES if api.objects[resource]] == [] and set(api.objects["namespaces"]) == {
        "vision"
    }


def ended(kind: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True"}]}


def test_a_team_with_work_is_not_removed_and_nothing_is_written(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    metadata = {"namespace": "audio"}
    for number in range(3):
        api.put("pods", {"metadata": {**metadata, "name": f"p{number}"}, "status": {"phase": "Running"}})
    api.put("pods", {"metadata": {**metadata, "name": "done"}, "status": {"phase": "Succeeded"}})
    api.put("jobs", {"metadata": {**metadata, "name": "one"}})
    api.put("jobs", {"metadata": {**metadata, "name": "done"}, "status": ended("Complete")})
    api.put("jobsets", {"metadata": {**metadata, "name": "done"}, "status": ended("Completed")})
    api.put("workloads", {"metadata": {**metadata, "name": "done"}, "status": ended("Finished")})
    writes = api.writes()
    with pytest.raises(FleetError, match=r"fleet_teams has no audio \(1 Job, 3 pods\) any more, and that work has not"):
        applier.plan(wanted(Team("vision", {H100: 8})))
    assert api.writes() == writes


def test_work_that_has_ended_holds_nothing_up(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    api.put("jobs", {"metadata": {"namespace": "audio", "name": "done"}, "status": ended("Failed")})
    api.unknown = {"jobsets"}
    assert "-ClusterQueue/audio" in carry_out(applier, VISION)


def test_a_namespace_or_queue_of_somebody_else_is_not_taken(api: FakeApi, applier: Applier) -> None:
    api.put("namespaces", {"metadata": {"name": "vision", "labels": {"a": "b"}}})
    with pytest.raises(
        FleetError, match="Namespace/vision is there, and it is not Muster's; remove it, or give the team"
    ):
        applier.plan(wanted(VISION))
    api.put("clusterqueues", {"metadata": {"name": "audio"}, "spec": {}})
    with pytest.raises(FleetError, match="ClusterQueue/audio is there, and it is not Muster's"):
        applier.plan(wanted(AUDIO))


def test_a_limit_of_somebody_else_is_not_taken(api: FakeApi, applier: Applier) -> None:
    api.put("limitranges", {"metadata": {"name": "muster", "namespace": "vision"}, "spec": {}})
    with pytest.raises(FleetError, match="cannot create LimitRange/vision/muster: already exists; it is not Muster's"):
        carry_out(applier, VISION)


def test_levels_that_kueue_lets_nobody_change_are_told(applier: Applier) -> None:
    carry_out(applier, VISION)
    both = Fleet(FLEET.gpus, FLEET.sizes, ("leaf", "rack"))
    with pytest.raises(FleetError) as error:
        applier.plan(wanted(VISION, fleet=both))
    prefix = "muster.node-restriction.kubernetes.io"
    assert (
        f"Topology fleet has levels {prefix}/rack, kubernetes.io/hostname, the inventory makes them {prefix}/leaf, "
        f"{prefix}/rack, kubernetes.io/hostname, and Kueue lets nobody change them; let the teams' work end, run "
        "site.yml with fleet_teams: {}, then with the teams again"
    ) in str(error.value)


def test_what_is_being_removed_is_waited_for_by_the_next_run(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION)
    api.put("namespaces", {"metadata": {"name": "old", "labels": {"muster.dev/team": "old"}, "deletionTimestamp": "x"}})
    assert carry_out(applier, VISION) == []
    api.merge("namespaces", "vision", {"metadata": {"deletionTimestamp": "2026-11-27T00:00:00Z"}})
    with pytest.raises(FleetError, match="Namespace/vision is being removed; run this again when it has gone"):
        applier.plan(wanted(VISION))


def test_what_does_not_go_is_told(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION, AUDIO)
    api.remove = lambda resource, key: None  # type: ignore[method-assign]
    with pytest.raises(FleetError, match="ClusterQueue/audio is still there after 60 s; Kueue lets it go when nothing"):
        carry_out(applier, VISION)


def test_without_kueue_teams_are_refused_and_no_team_is_nothing(api: FakeApi, applier: Applier) -> None:
    api.unknown = {path.rpartition("/")[2] for path in KINDS.values() if "kueue" in path}
    assert carry_out(applier) == []
    with pytest.raises(FleetError, match=r"fleet_teams needs Kueue, which site\.yml installs before"):
        applier.plan(wanted(VISION))


def test_check_mode_goes_ahead_of_kueue_and_of_rights(api: FakeApi, applier: Applier) -> None:
    api.unknown = {"clusterqueues", "localqueues"}
    assert "ClusterQueue/vision" in applier.plan(wanted(VISION), ahead=True).names
    api.before_read = refusing(403, "may not", of="limitranges")
    assert "LimitRange/vision/muster" in applier.plan(wanted(VISION), ahead=True).names
    with pytest.raises(ApiError, match="may not"):
        applier.plan(wanted())
    api.before_read = refusing(500, "broken", of="limitranges")
    with pytest.raises(ApiError, match="broken"):
        applier.plan(wanted(VISION), ahead=True)


def test_an_answer_that_lacks_what_was_written_is_an_error(api: FakeApi, applier: Applier) -> None:
    put = api.put

    def forgetful(resource: str, item: dict[str, Any]) -> None:
        item.pop("spec", None)
        put(resource, item)

    api.put = forgetful  # type: ignore[method-assign]
    with pytest.raises(FleetError, match="Topology/fleet was written, and the answer is not what was asked for"):
        carry_out(applier, VISION)


def test_what_the_server_refuses_is_told_in_its_words(api: FakeApi, applier: Applier) -> None:
    carry_out(applier, VISION)

    def refuse(path: str) -> None:
        raise Refused(422, "spec.x: Invalid value")

    api.before_write = refuse
    with pytest.raises(FleetError, match=r"cannot write Cohort/fleet: spec\.x: Invalid value; correct what it names"):
        carry_out(applier, Team("vision", {H100: 8}))


def test_empty_and_absent_are_the_same() -> None:
    (cohort,) = (one for one in wanted(Team("a", {H100: 512})) if one["kind"] == "Cohort")
    found = copy.deepcopy(cohort)
    del found["spec"]
    assert same(found, cohort) and not same({**found, "metadata": {"name": "fleet"}}, cohort) and not same(None, cohort)


def test_paths_and_what_is_kept() -> None:
    assert (
        path_of(("LocalQueue", "a b", "default")) == "/apis/kueue.x-k8s.io/v1beta2/namespaces/a%20b/localqueues/default"
    )
    assert path_of(("Namespace", "", "vision")) == "/api/v1/namespaces/vision"
    (namespace,) = (one for one in wanted(VISION) if one["kind"] == "Namespace")
    found = {"kind": "Namespace", "metadata": {"name": "vision", "labels": {"a": "b"}}, "spec": {"finalizers": ["k"]}}
    written = merged(found, namespace)
    assert written["spec"] == {"finalizers": ["k"]} and written["metadata"]["labels"]["a"] == "b"
