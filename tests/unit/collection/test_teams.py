"""Teams are read as they are written, and each mistake is one sentence that names the key, the fault and the fix."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.team_queues import team_queues
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import Fleet, place_mistakes, read_fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import (
    Team,
    read_teams,
    read_users,
    teams_and_fleet,
)

from tests.lab.paths import REPOSITORY

H100, H200 = "h100-sxm5-80gb", "h200-sxm"
ONE = Fleet({H100: 512}, {H100: frozenset({8})})
TWO = Fleet({H100: 512, H200: 64}, {H100: frozenset({8}), H200: frozenset({4, 8})})
USERS = ["alice", "bob"]


def mistakes(document: object, fleet: Fleet = ONE, users: object = USERS) -> list[str]:
    return [one.sentence() for one in read_teams(document, users, fleet)[1]]


def test_a_team_has_defaults_and_a_number_is_of_the_one_model() -> None:
    given = {"vision": {"gpus": 256, "weight": 2, "members": ["alice", "group:oidc-vision", "alice"]}}
    assert read_teams(given, USERS, ONE) == (
        [Team("vision", {H100: 256}, weight=2, members=("alice", "group:oidc-vision"))],
        [],
    )


def test_everything_may_be_said() -> None:
    given = {
        "audio": {
            "gpus": {H100: 64, H200: 0},
            "weight": 0.5,
            "members": [],
            "borrow": False,
            "dedicated": True,
            "level": "extended",
            "gang_test": False,
        }
    }
    assert read_teams(given, [], TWO) == (
        [Team("audio", {H100: 64, H200: 0}, 0.5, (), borrow=False, dedicated=True, level="extended")],
        [],
    )


@pytest.mark.parametrize(
    ("team", "said"),
    [
        ({}, "fleet_teams.a has no gpus; give a number, or GPUs by model"),
        ({"gpus": -8}, "fleet_teams.a.gpus is -8; give a whole number of GPUs, 0 or more"),
        ({"gpus": 1.5}, "fleet_teams.a.gpus is 1.5; give a whole number of GPUs, 0 or more"),
        ({"gpus": True}, "fleet_teams.a.gpus is True; give a whole number of GPUs, 0 or more"),
        ({"gpus": "8"}, "fleet_teams.a.gpus is '8'; give a whole number of GPUs, 0 or more"),
        ({"gpus": {H100: None}}, f"fleet_teams.a.gpus.{H100} is None; give a whole number of GPUs, 0 or more"),
        ({"gpus": {"h100": 8}}, f"fleet_teams.a.gpus names h100, which no GPU node has; choose from {H100}"),
        (
            {"gpus": 520},
            f"fleet_teams gives 520 GPUs of {H100}, 520 (a), and the GPU nodes have 512; take 8 away",
        ),
        (
            {"gpus": 60, "dedicated": True},
            "fleet_teams.a.gpus is 60 and dedicated, and nodes of that model have 8 GPUs each; give whole nodes, such "
            "as 56 or 64",
        ),
        ({"gpus": 0, "borrow": False}, "fleet_teams.a has no GPUs and borrows none; give it GPUs, or leave it out"),
        ({"gpus": 8, "borrow": "no"}, "fleet_teams.a.borrow is 'no'; give true or false"),
        ({"gpus": 8, "gang_test": "yes"}, "fleet_teams.a.gang_test is 'yes'; give true or false"),
        (
            {"gpus": 8, "level": "deep"},
            "is 'deep', which is no level of burn-in; choose from quick, standard, extended",
        ),
        (
            {"gpus": 8, "weight": -1},
            "fleet_teams.a.weight is -1; give a number, 0 or more; a team of weight 2 gets twice",
        ),
        ({"gpus": 8, "weight": False}, "fleet_teams.a.weight is False; give a number, 0 or more"),
        ({"gpus": 8, "weight": float("nan")}, "fleet_teams.a.weight is nan; give a number, 0 or more"),
        ({"gpus": 8, "weight": 0.0001}, "fleet_teams.a.weight is 0.0001; give at most three digits behind the point"),
        ({"gpus": 8, "wieght": 2}, "fleet_teams.a has wieght, which no team has; did you mean weight?"),
        ({"gpus": 8, "colour": 2}, "fleet_teams.a has colour, which no team has; choose from gpus, weight, members,"),
        ({"gpus": 8, "members": "alice"}, "fleet_teams.a.members is 'alice'; give a list of names of fleet_users and"),
        ({"gpus": 8, "members": ["alicia"]}, "names alicia, which fleet_users does not have; did you mean alice?"),
        (
            {"gpus": 8, "members": ["oidc"]},
            "names oidc, which fleet_users does not have; add it there, or write group:oidc for a group",
        ),
        ({"gpus": 8, "members": ["group:system:masters"]}, "names group:system:masters, which is no group of people"),
        ({"gpus": 8, "members": ["group:"]}, "names group:, which is no group of people"),
        ([8], "fleet_teams.a is [8]; give a dictionary such as {gpus: 64, members: [alice]}"),
    ],
)
def test_a_mistake_of_a_team_is_one_sentence(team: Any, said: str) -> None:
    found = mistakes({"a": team})
    assert len(found) == 1 and said in found[0], found


def test_a_team_may_live_of_what_others_leave_idle() -> None:
    """What keeps nodes from a foreign autoscaler, for one: docs/operations/jobs.md."""
    given = {"balloons": {"gpus": 0, "weight": 0}}
    assert read_teams(given, [], ONE) == ([Team("balloons", {H100: 0}, weight=0)], [])


@pytest.mark.parametrize("name", ["kube-team", "default", "muster-system"])
def test_names_of_other_namespaces_are_refused(name: str) -> None:
    assert mistakes({name: {"gpus": 8}}) == [
        f"fleet_teams.{name}: the namespace {name} is not a team's; give the team another name"
    ]


@pytest.mark.parametrize("name", ["Vision", "a_b", "-a", "a.b", "a" * 64, ""])
def test_names_that_are_no_dns_label_are_refused(name: str) -> None:
    assert mistakes({name: {"gpus": 8}}) == [
        f"fleet_teams names {name!r}, which cannot be the name of a namespace; use at most 63 of a-z, digits and -"
    ]


def test_a_number_of_gpus_needs_one_model() -> None:
    assert mistakes({"a": {"gpus": 8}}, TWO) == [
        f"fleet_teams.a.gpus is 8, and the GPU nodes have 2 models; give {{{H100}: 8, {H200}: 8}} or a part of it"
    ]


def test_sums_are_by_model_with_dedicated_nodes_in_them() -> None:
    given = {"a": {"gpus": {H100: 512}}, "b": {"gpus": {H100: 8, H200: 64}, "dedicated": True}}
    assert mistakes(given, TWO) == [
        f"fleet_teams gives 520 GPUs of {H100}, 512 (a) + 8 (b), and the GPU nodes have 512; take 8 away"
    ]


def test_nodes_of_several_sizes_leave_dedicated_numbers_to_the_admitter() -> None:
    assert mistakes({"a": {"gpus": {H200: 12}, "dedicated": True}}, TWO) == []


@pytest.mark.parametrize("teams", [["vision"], "vision"])
def test_teams_are_a_dictionary(teams: object) -> None:
    assert mistakes(teams) == [f"fleet_teams is {teams!r}; give a dictionary of teams by name"]


@pytest.mark.parametrize(
    ("users", "said"),
    [
        ("alice", "fleet_users is 'alice'; give a list of names"),
        (["Alice B"], "fleet_users names 'Alice B', which cannot be the name of a user; use a-z, digits"),
        (["../x"], "fleet_users names '../x', which cannot be the name of a user"),
        (["admin"], "fleet_users names admin, which is the fleet's own; give the person another name"),
        (["system:masters"], "fleet_users names system:masters, which is the fleet's own"),
        (["muster:admitter"], "fleet_users names muster:admitter, which is the fleet's own"),
        (["bob", "bob"], "fleet_users names bob 2 times; name each user once"),
    ],
)
def test_users_that_cannot_be_are_refused(users: object, said: str) -> None:
    found = [one.sentence() for one in read_users(users)[1]]
    assert len(found) == 1 and said in found[0], found


def test_nobody_gets_a_name_that_the_kubernetes_ca_gives_to_a_part_of_the_fleet() -> None:
    leaves = yaml.safe_load((REPOSITORY / "roles/pki/vars/main.yml").read_text())["__pki_leaves"]
    names = {leaf["cn"] for leaf in leaves if leaf["ca"] == "kubernetes" and "clientAuth" in leaf["usages"]}
    own = {name.replace("{host}", "prometheus") for name in names if name != "{host}"}
    assert {"admin", "break-glass", "kube-apiserver-kubelet-client", "muster:admitter"} <= own
    assert {name for name in own if not read_users([name])[1]} == set()


def test_the_fleet_is_counted_by_model_and_placed_by_what_all_nodes_have() -> None:
    expects = {
        "gpu-1": {"gpus": 8, "model": H100},
        "gpu-2": {"gpus": 8, "model": H100},
        "b": {"gpus": 4, "model": H200},
    }
    places = {
        "gpu-1": {"rack": "r1", "switch": "l1"},
        "gpu-2": {"rack": "r2", "leaf": "l1"},
        "b": {"rack": "r1", "leaf": "l1"},
    }
    fleet, wrong = read_fleet(expects, places)
    assert (fleet, wrong) == (
        Fleet({H100: 16, H200: 4}, {H100: frozenset({8}), H200: frozenset({4})}, ("leaf", "rack")),
        [],
    )
    assert read_fleet(expects, {})[0].levels == ()


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            None,
            "gpu-1: has no gpu_burnin_expect.model, and fleet_teams needs the model of every GPU node; give a key of",
        ),
        ({"gpus": 8}, "gpu-1: has no gpu_burnin_expect.model"),
        ({"gpus": 8, "model": "h100"}, "gpu-1: gpu_burnin_expect.model is h100, which is no known model; choose from"),
        ({"model": H100}, "gpu-1: has no gpu_burnin_expect.gpus, and fleet_teams counts the GPUs of every GPU node"),
        ({"model": H100, "gpus": 0}, "gpu-1: has no gpu_burnin_expect.gpus"),
        ({"model": H100, "gpus": 8, "mig": True}, "gpu-1: gpu_burnin_expect.mig is true, and fleet_teams shares whole"),
    ],
)
def test_what_a_node_lacks_for_teams_is_told(expect: Any, said: str) -> None:
    (one,) = read_fleet({"gpu-1": expect}, {})[1]
    assert said in one.sentence() and one.variable == "gpu_burnin_expect"


def test_a_level_that_some_nodes_lack_is_told_with_the_figure() -> None:
    expects = {f"gpu-{number}": {"gpus": 8, "model": H100} for number in (1, 2, 3)}
    (one,) = read_fleet(expects, {"gpu-1": {"rack": "r1"}, "gpu-2": {"rack": "r1"}})[1]
    assert one.sentence() == (
        "gpu-3: has no fleet_place.rack, which 2 of the 3 GPU nodes have, and jobs are placed by levels that every GPU "
        "node has; give rack for every GPU node, or for none"
    )


def test_a_rack_on_two_leaves_is_told() -> None:
    expects = {f"gpu-{number}": {"gpus": 8, "model": H100} for number in (1, 2)}
    places = {"gpu-1": {"rack": "r1", "leaf": "l1"}, "gpu-2": {"rack": "r1", "switch": "l2"}}
    (one,) = read_fleet(expects, places)[1]
    assert one.sentence() == (
        "gpu-1, gpu-2: rack r1 is on 2 leaf switches, l1, l2, and in the tree of places a rack is below one; correct "
        "fleet_place, or give the racks names of their own"
    )


def test_places_of_many_hosts_that_are_wrong_alike_are_one() -> None:
    bad = {"rack": "row 7 rack 2"}
    (one,) = place_mistakes({"gpu-1": bad, "gpu-2": {"rack": "r1"}, "gpu-3": bad})
    assert one.hosts == ("gpu-1", "gpu-3") and one.message.startswith("fleet_place.rack is 'row 7 rack 2'")


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(FleetError) as error:
        teams_and_fleet({"a": {"gpus": 9, "members": ["eve"]}}, [], {"gpu-1": {"gpus": 8, "model": H100}}, {})
    assert len(str(error.value).splitlines()) == 1 and "eve" in str(error.value)
    with pytest.raises(FleetError) as error:
        teams_and_fleet(
            {"a": {"gpus": 9}, "b": {"gpus": 8, "level": 1}}, ["admin"], {"x": {"gpus": 8, "model": H100}}, {}
        )
    assert [line.split(" ")[0] for line in str(error.value).splitlines()] == [
        "fleet_users",
        "fleet_teams.b.level",
        "fleet_teams",
    ]


def test_without_teams_nothing_is_asked_of_the_nodes() -> None:
    assert teams_and_fleet({}, ["alice"], {"gpu-1": {}}, {}) == ([], Fleet({}, {}))


def test_the_admitter_is_told_queues_and_dedicated_gpus() -> None:
    given = {"vision": {"gpus": 8}, "audio": {"gpus": 16, "dedicated": True, "level": "quick"}}
    assert team_queues(given, H100) == {
        "queues": {
            "vision": {"level": "standard", "gang_test": False},
            "audio": {"level": "quick", "gang_test": False},
        },
        "dedicated": {"audio": {H100: 16}},
    }


@pytest.mark.parametrize("given", [{"a": {}}, {"a": 8}, ["a"]])
def test_the_admitter_is_told_nothing_of_teams_that_cannot_be_read(given: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"fleet_teams cannot be read .* --tags preflight"):
        team_queues(given)
