"""What an upgrade may do, and what of it is left, from made-up facts: each rule in its case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import parse
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_rules as rules
from ansible_collections.muster.fleet.plugins.module_utils.kube.upgrade_fleet import Fleet, Host, Program
from ansible_collections.muster.fleet.plugins.module_utils.kube.upgrade_rules import Plan
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy")
ETCD = ("etcd-1", "etcd-2", "etcd-3")
Groups = dict[str, dict[str, Host | None]]


def programs(names: tuple[str, ...], running: str, wanted: str) -> dict[str, Program]:
    return {name: Program(parse(running), parse(wanted), running == wanted) for name in names}


def fleet(
    etcd: tuple[str, str] = ("3.6.16", "3.6.16"),
    server: tuple[str, str] = ("1.36.1", "1.36.3"),
    node: tuple[str, str] | None = None,
) -> Groups:
    """Three members, two servers and a node, each (what runs, what is wanted)."""
    node = node or server
    return {
        "etcd": {name: Host(name, programs(("etcd",), *etcd)) for name in ETCD},
        "etcd_events": {"events-1": Host("events-1", programs(("etcd",), *etcd))},
        "kube_apiserver": {name: Host(name, programs(SERVERS, *server)) for name in ("api-1", "api-2")},
        "system_nodes": {},
        "gpu_nodes": {"gpu-1": Host("gpu-1", programs(NODE, *node))},
    }


def report_of(groups: Groups, part: str = "all") -> str:
    return report("x", rules.problems(Fleet(groups), part))


def change(groups: Groups, group: str, name: str, **changes: Any) -> Groups:
    host = groups[group][name]
    assert host is not None
    groups[group][name] = replace(host, **changes)
    return groups


@pytest.mark.parametrize(
    "groups",
    [
        fleet(),
        fleet(server=("1.36.3", "1.36.1")),
        fleet(server=("1.36.3", "1.37.0")),
        fleet(server=("1.35.4", "1.36.3")),
        fleet(server=("1.36.3", "1.36.3"), node=("1.33.9", "1.36.3")),
        fleet(etcd=("3.6.16", "3.7.3")),
        fleet(etcd=("3.7.3", "3.6.16")),
        fleet(etcd=("3.7.3", "3.7.1")),
    ],
)
def test_what_is_allowed(groups: Groups) -> None:
    assert rules.problems(Fleet(groups), "all") == []


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (fleet(server=("1.36.3", "1.38.0")), "kube-apiserver 1.36.3 cannot go to 1.38.0 in one step; pin a 1.37 first"),
        (fleet(server=("1.34.9", "1.36.3")), "kube-apiserver 1.34.9 cannot go to 1.36.3 in one step; pin a 1.35 first"),
        (fleet(server=("1.37.1", "1.36.3")), "kube-apiserver 1.37.1 cannot go back to 1.36.3: what it has stored"),
        (
            fleet(server=("1.35.4", "1.35.6")),
            "kube-apiserver 1.35.6 cannot have the gate's policies on its disk; pin 1.36",
        ),
        (fleet(etcd=("3.6.16", "3.8.0")), "etcd 3.6.16 cannot go to 3.8.0 in one step; pin a 3.7 first"),
        (
            fleet(etcd=("3.8.0", "3.6.16")),
            "etcd 3.8.0 cannot go down to 3.6.16: one minor at a time, and to 3.6 at most",
        ),
        (fleet(etcd=("3.6.16", "3.5.30")), "etcd 3.6.16 cannot go down to 3.5.30"),
        (fleet(etcd=("3.5.20", "3.5.21")), "kube-apiserver 1.36.3 needs etcd 3.5.24 or newer"),
        (
            fleet(server=("1.36.3", "1.36.3"), node=("1.32.9", "1.36.3")),
            "gpu-1: runs kubelet 1.32.9, over 3 minors older than kube-apiserver 1.36.3; bring the nodes",
        ),
        (
            fleet(server=("1.36.3", "1.36.3"), node=("1.37.0", "1.36.3")),
            "gpu-1: runs kubelet 1.37.0, which is newer than kube-apiserver 1.36.3",
        ),
        (
            fleet(server=("1.37.0", "1.37.0"), node=("1.36.3", "1.38.0")),
            "kubelet 1.38.0 does not fit kube-apiserver 1.37.0: it may be 3 minors older and not newer",
        ),
        (
            fleet(server=("1.37.0", "1.37.0"), node=("1.37.0", "1.36.3")),
            "kubelet 1.37.0 cannot go back to 1.36.3; pin a 1.37",
        ),
        (fleet() | {"etcd": {"etcd-1": None}}, "etcd-1: did not say what it runs; see its own error above"),
        (
            change(fleet(), "kube_apiserver", "api-1", programs=programs(("kube-scheduler",), "1.36.1", "1.37.0")),
            "kube-scheduler 1.37.0 does not fit kube-apiserver 1.36.3: it may be one minor older and not newer",
        ),
        (
            change(fleet(), "etcd", "etcd-1", programs={"etcd": Program(parse("3.6.16"), None, False)}),
            "etcd-1: the etcd of kube_binaries_checksums does not say its version",
        ),
        (
            change(fleet(), "gpu_nodes", "gpu-1", room="has 1 MiB free in /usr/local/bin, and kubelet need 80"),
            "gpu-1: has 1 MiB free in /usr/local/bin, and kubelet need 80; make room there",
        ),
        (change(fleet(), "etcd", "etcd-2", sick="no leader"), "etcd-2: its etcd is not healthy: no leader; repair it"),
    ],
)
def test_what_is_refused(groups: Groups, why: str) -> None:
    assert why in report_of(groups), report_of(groups)


@pytest.mark.parametrize(("part", "refused"), [("all", True), ("control_plane", True), ("nodes", False)])
def test_native_gangs_hinder_another_minor_of_the_servers(part: str, refused: bool) -> None:
    """The words: test_native_gangs.py."""
    groups = fleet(server=("1.36.3", "1.37.0"))
    found = report("x", rules.problems(Fleet(groups), part, "kueue", "1 PodGroup (vision/train)"))
    assert ("the cluster has 1 PodGroup (vision/train)" in found) is refused
    assert ("fleet_gang is native" in report("x", rules.problems(Fleet(groups), part, "native"))) is refused


def test_the_cluster_is_asked_for_native_gangs_where_a_server_that_answers_changes_its_minor() -> None:
    assert rules.changes_minor(Fleet(fleet(server=("1.36.3", "1.37.0"))))
    assert not rules.changes_minor(Fleet(fleet()))
    groups = fleet(server=("1.36.3", "1.37.0"))
    for name in ("api-1", "api-2"):
        change(groups, "kube_apiserver", name, sick="connection refused")
    assert not rules.changes_minor(Fleet(groups))


def test_all_problems_are_told_at_once() -> None:
    groups = fleet(etcd=("3.6.16", "3.8.0"), server=("1.36.3", "1.38.0"), node=("1.33.0", "1.38.0"))
    said = report_of(groups)
    assert "3.8.0 in one step" in said and "1.38.0 in one step" in said and "gpu-1: runs kubelet 1.33.0" in said


def test_one_that_an_earlier_run_broke_is_mended_first_but_not_without_the_others() -> None:
    groups = change(fleet(etcd=("3.6.16", "3.7.3")), "etcd", "etcd-3", sick="does not answer")
    groups = change(groups, "kube_apiserver", "api-2", sick="connection refused")
    assert rules.problems(Fleet(groups), "all") == []
    planned = rules.plan(Fleet(groups), "all")
    assert planned.phases["etcd"] == ("etcd-3", "etcd-1", "etcd-2")
    assert planned.phases["servers"] == ("api-2", "api-1")
    assert "etcd-2: its etcd is not healthy" in report_of(change(groups, "etcd", "etcd-2", sick="too"))
    assert "api-1: its kube-apiserver is not healthy" in report_of(
        change(groups, "kube_apiserver", "api-1", sick="too")
    )


def test_a_leader_is_the_last_of_its_cluster() -> None:
    groups = change(fleet(etcd=("3.6.16", "3.7.3")), "etcd", "etcd-1", leads=True)
    assert rules.plan(Fleet(groups), "all").phases["etcd"] == ("etcd-2", "etcd-3", "etcd-1")
    groups = change(groups, "etcd", "etcd-3", sick="does not answer")
    assert rules.plan(Fleet(groups), "all").phases["etcd"] == ("etcd-3", "etcd-2", "etcd-1")


def test_a_server_that_never_served_does_not_forbid_the_way_back() -> None:
    """The new minor failed on the first server: what it runs does not count, since it has stored nothing. One that has
    served and is sick by now may have."""
    groups = fleet(server=("1.36.3", "1.36.3"))
    broken = programs(("kube-apiserver",), "1.37.0", "1.36.3")

    def report_with(sick: str, served: bool) -> str:
        changes = {"programs": broken, "sick": sick, "served": served}
        return report_of(change(groups, "kube_apiserver", "api-1", **changes))

    assert report_with("refused", False) == report_of(fleet())
    assert "cannot go back to 1.36.3" in report_with("refused", True)
    assert "cannot go back to 1.36.3" in report_with("", True)


@pytest.mark.parametrize(
    ("group", "alone", "program"), [("etcd_events", "events-1", "etcd"), ("kube_apiserver", "api-1", "kube-apiserver")]
)
def test_one_that_is_alone_takes_back_a_build_that_fails(group: str, alone: str, program: str) -> None:
    groups = fleet(etcd=("3.6.16", "3.6.17"))
    groups[group] = {alone: groups[group][alone]}
    change(groups, group, alone, sick="does not answer", served=False)
    assert rules.problems(Fleet(groups), "all") == []
    # With the build that is wanted, nothing that is done here mends it.
    host = groups[group][alone]
    assert host is not None
    change(groups, group, alone, programs=dict(host.programs) | programs((program,), "3.6.17", "3.6.17"))
    assert f"{alone}: its {program} is not healthy: does not answer; repair it first" in report_of(groups)


@pytest.mark.parametrize(
    ("groups", "part", "why"),
    [
        # The servers stay at 1.36: what is pinned for them does not run.
        (
            fleet(server=("1.36.3", "1.37.0")),
            "nodes",
            "kubelet 1.37.0 does not fit kube-apiserver 1.36.3: it may be 3 minors older and not newer; pin the one of "
            "1.36.3, or upgrade the servers first",
        ),
        (
            fleet(etcd=("3.5.20", "3.6.16")),
            "control_plane",
            "kube-apiserver 1.36.3 needs etcd 3.5.24 or newer, and would have 3.5.20; pin a newer one, and run",
        ),
    ],
)
def test_what_this_part_does_not_change_counts_as_it_runs(groups: Groups, part: str, why: str) -> None:
    assert why in report_of(groups, part)
    assert rules.problems(Fleet(groups), "all") == []


def test_a_controller_that_was_left_behind_is_not_left_two_minors_behind() -> None:
    """A run to 1.36 ended after the servers."""
    groups = fleet(server=("1.36.3", "1.37.0"))
    left = programs(("kube-apiserver",), "1.36.3", "1.37.0") | programs(SERVERS[1:], "1.35.4", "1.37.0")
    said = report_of(change(groups, "kube_apiserver", "api-1", programs=left))
    assert "kube-controller-manager 1.35.4 would be over a minor older than kube-apiserver 1.37.0" in said
    assert "bring it to 1.36 first: pin that release for all, and upgrade" in said


def test_what_is_done_already_is_not_done_again() -> None:
    """The next step comes from what runs: here a run ended after the first server."""
    groups = fleet(etcd=("3.7.3", "3.7.3"))
    done = programs(SERVERS, "1.36.1", "1.36.3") | programs(("kube-apiserver",), "1.36.3", "1.36.3")
    planned = rules.plan(Fleet(change(groups, "kube_apiserver", "api-1", programs=done)), "all")
    assert planned == Plan(
        {
            "etcd": (),
            "etcd_events": (),
            "servers": ("api-2",),
            "controllers": ("api-1", "api-2"),
            "nodes": ("gpu-1",),
        }
    )
    assert rules.lines(Fleet(groups), planned)[0] == "api-2: kube-apiserver 1.36.1 -> 1.36.3"
    nothing = fleet(server=("1.36.3", "1.36.3"))
    assert not any(rules.plan(Fleet(nothing), "all").phases.values())


@pytest.mark.parametrize(
    ("part", "phases"),
    [
        ("all", {"etcd", "etcd_events", "servers", "controllers", "nodes"}),
        ("etcd", {"etcd", "etcd_events"}),
        ("control_plane", {"servers", "controllers"}),
        ("nodes", {"nodes"}),
    ],
)
def test_a_part_is_that_part(part: str, phases: set[str]) -> None:
    planned = rules.plan(Fleet(fleet(etcd=("3.6.16", "3.7.3"))), part)
    assert {phase for phase, hosts in planned.phases.items() if hosts} == phases


@pytest.mark.parametrize(
    ("running", "part", "closed"),
    [("1.35.4", "all", True), ("1.35.4", "nodes", False), ("1.36.1", "all", False)],
)
def test_admission_is_closed_while_a_server_has_no_gate(running: str, part: str, closed: bool) -> None:
    planned = rules.plan(Fleet(fleet(server=(running, "1.36.3"))), part)
    assert (planned.close_admission, planned.open_admission) == (closed, closed)


def half_way(old: str, sick: str = "") -> Groups:
    """A run from 1.35.4 has closed admission, brought api-1 to its end, and was cut; api-2 runs `old`."""
    groups = fleet(server=("1.36.3", "1.36.3"))
    for name in ("api-1", "api-2"):
        change(groups, "kube_apiserver", name, closed=True)
    return change(groups, "kube_apiserver", "api-2", programs=programs(SERVERS, old, "1.36.3"), sick=sick)


def test_a_run_that_goes_on_opens_what_the_one_before_it_has_closed() -> None:
    """Also when nothing else is left to do: the servers were done, and the run ended before it opened admission."""

    def admission(groups: Groups, part: str) -> tuple[bool, bool]:
        planned = rules.plan(Fleet(groups), part)
        return planned.close_admission, planned.open_admission

    assert admission(half_way("1.36.3"), "all") == (False, True)
    nothing_else = Fleet(half_way("1.36.3"))
    assert rules.lines(nothing_else, rules.plan(nothing_else, "all")) == [
        "Admission, which an earlier run has closed, is opened."
    ]
    assert admission(half_way("1.36.3"), "nodes") == (False, True)
    # A server without the gate still serves: it stays closed where this run does not change that.
    assert admission(half_way("1.35.4"), "all") == (True, True)
    assert admission(half_way("1.35.4"), "nodes") == (False, False)


def test_a_sick_server_without_the_gate_closes_admission_too() -> None:
    """It is not ready, and may answer those who ask it all the same."""
    planned = rules.plan(Fleet(half_way("1.35.4", sick="answered 500")), "all")
    assert (planned.close_admission, planned.open_admission) == (True, True)
    assert planned.phases["servers"] == ("api-2",)


def test_another_minor_of_kubelet_leaves_nodes_with_work() -> None:
    def left(running: str, work: tuple[str, ...]) -> dict[str, str]:
        groups = change(fleet(server=("1.36.3", "1.36.3"), node=(running, "1.36.3")), "gpu_nodes", "gpu-1", work=work)
        planned = rules.plan(Fleet(groups), "nodes")
        assert (planned.phases["nodes"] == ()) == bool(planned.left)
        return dict(planned.left)

    assert left("1.35.4", ("a/b",)) == {"gpu-1": "another minor of kubelet needs a node without work: a/b"}
    assert left("1.35.4", ()) == {}
    assert left("1.36.1", ("a/b",)) == {}
    silent: Groups = fleet() | {"gpu_nodes": {"gpu-1": None}}
    assert rules.problems(Fleet(silent), "all") == []
    assert "did not answer" in rules.plan(Fleet(silent), "all").left["gpu-1"]


def test_the_state_names_what_each_runs_and_what_was_wanted() -> None:
    groups = change(fleet(etcd=("3.6.16", "3.7.3")), "etcd", "etcd-2", sick="no leader")
    groups["gpu_nodes"]["gpu-1"] = None
    state = rules.state(Fleet(groups))
    assert state[1] == "etcd-2: etcd 3.6.16 (wanted: 3.7.3); no leader"
    assert state[-1] == "gpu-1: did not answer"
