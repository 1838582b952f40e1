"""Replacing an etcd member: the next step for every state, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import replace as etcd_replace
from ansible_collections.muster.fleet.plugins.module_utils.etcd.replace import Facts, Listed, Own, Step
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules import etcd_replace as etcd_replace_module

PEERS = {f"etcd-{n}": f"https://198.51.100.{n}:2380" for n in (1, 2, 3)}
VOTER = Listed("7", "etcd-1", (PEERS["etcd-1"],))
LEARNER = Listed("8", "", (PEERS["etcd-1"],), learner=True)
OTHERS = [Listed(str(n), f"etcd-{n}", (PEERS[f"etcd-{n}"],)) for n in (2, 3)]
HEALTHY, SICK, STRANGER = Own("7", True), Own("7"), Own("9", True)

# What is listed, has data, runs, joins; what it says; the step. None stands for either.
TABLE: list[tuple[Listed | None, bool | None, bool, bool | None, Own, int, Step]] = [
    (None, None, True, None, Own(), 0, Step.STOP),
    (None, None, True, None, STRANGER, 0, Step.STOP),
    (None, True, False, None, Own(), 0, Step.CLEAN),
    (None, False, False, False, Own(), 0, Step.PREPARE),
    (None, False, False, True, Own(), 0, Step.ADD),
    (LEARNER, False, False, False, Own(), 0, Step.PREPARE),
    (LEARNER, False, False, True, Own(), 0, Step.START),
    (LEARNER, True, False, None, Own(), 0, Step.START),
    (LEARNER, None, True, None, Own(), 0, Step.CATCH_UP),
    (LEARNER, None, True, None, STRANGER, 0, Step.CATCH_UP),
    (LEARNER, None, True, None, Own("8"), 501, Step.CATCH_UP),
    (LEARNER, None, True, None, Own("8"), 500, Step.PROMOTE),
    (VOTER, None, True, True, HEALTHY, 0, Step.FINISH),
    (VOTER, None, True, False, HEALTHY, 0, Step.DONE),
    (VOTER, None, True, None, SICK, 0, Step.STOP),
    (VOTER, None, True, None, STRANGER, 0, Step.STOP),
    (VOTER, None, True, None, Own(), 0, Step.STOP),
    (VOTER, None, False, None, Own(), 0, Step.REMOVE),
]


def either(value: bool | None) -> list[bool]:
    return [False, True] if value is None else [value]


ROWS = [
    (Facts(listed, data, running, joining, own, behind), step)
    for listed, has_data, running, joins, own, behind, step in TABLE
    for data, joining in itertools.product(either(has_data), either(joins))
]


@pytest.mark.parametrize(("facts", "step"), ROWS)
def test_the_next_step(facts: Facts, step: Step) -> None:
    assert etcd_replace.decide(facts) is step


def test_the_table_has_every_combination_of_list_data_service_and_joining() -> None:
    seen = {(facts.listed, facts.has_data, facts.running, facts.joining) for facts, _ in ROWS}
    assert len(seen) == 3 * 2 * 2 * 2


@pytest.mark.parametrize(("facts", "step"), ROWS)
def test_only_data_of_before_needs_a_confirmation(facts: Facts, step: Step) -> None:
    wanted = facts.has_data and step in (Step.STOP, Step.REMOVE, Step.CLEAN)
    assert etcd_replace.needs_confirmation(facts) is wanted
    assert not (facts.listed == LEARNER and etcd_replace.needs_confirmation(facts))


class Api:
    """One member's answers; `said` are errors that requests to change the members get first."""

    own, version = Own("2"), "3.6.16"

    def __init__(self, listed: list[Listed], health: str | None = "true", said: tuple[str, ...] = ()) -> None:
        self.listed, self.health, self.said, self.asked = listed, health, list(said), list[str]()

    @classmethod
    def of(cls, *, own: Own = own, version: str = version) -> Api:
        """One that says this of itself."""
        api = cls([VOTER, *OTHERS], "true" if own.healthy else "false")
        api.own, api.version = own, version
        return api

    def __call__(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if self.health is None:
            raise FleetError("https://x does not answer: refused")
        if path == "/health":
            return {"health": self.health, "reason": "RAFT NO LEADER"}
        if path == "/v3/cluster/member/list":
            members = [
                {"ID": one.id, "name": one.name, "peerURLs": one.peer_urls, "isLearner": one.learner}
                for one in self.listed
            ]
            return {"members": members}
        if path == "/v3/maintenance/status":
            return {"header": {"member_id": self.own.id}, "raftAppliedIndex": "10"}
        if path == "/version":
            return {"etcdserver": self.version, "etcdcluster": "3.6.0"}
        if self.said:
            raise FleetError(self.said.pop(0))
        self.asked.append(path)
        return {}


def cluster(listed: list[Listed], names: Mapping[str, str] = PEERS, **apis: Api) -> etcd_replace.Cluster:
    return etcd_replace.Cluster("etcd-1", names, {name: apis.get(name[-1:], Api(listed)) for name in names})


def test_the_entry_is_found_by_peer_url_or_by_name() -> None:
    moved = Listed("7", "etcd-1", ("https://203.0.113.1:2380",))
    for found in (VOTER, LEARNER, moved):
        assert etcd_replace.check(cluster([found, *OTHERS])) == found
    assert etcd_replace.check(cluster(OTHERS)) is None


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (cluster([VOTER], {"etcd-1": PEERS["etcd-1"]}), "only member of its cluster.*etcd_restore.yml"),
        (cluster([VOTER, *OTHERS], **{"2": Api([], None)}), "lose its quorum.*: etcd-2 .*does not answer"),
        (cluster([VOTER, *OTHERS], **{"3": Api([], "false")}), "lose its quorum.*: etcd-3 .RAFT NO LEADER"),
        (cluster([VOTER, *OTHERS, Listed("11", "etcd-4", ("https://x:1",))]), r"11 \(etcd-4, .* not in the inventory"),
        (cluster([VOTER, OTHERS[0], Listed("3", "etcd-3", (PEERS["etcd-3"],), True)]), "is a learner"),
        (cluster([VOTER, OTHERS[0]]), "etcd-3 is in the inventory but no member"),
        (cluster([VOTER, LEARNER, *OTHERS]), "etcd-1 is 2 members"),
    ],
)
def test_what_is_refused_before_anything_is_changed(there: etcd_replace.Cluster, why: str) -> None:
    with pytest.raises(FleetError, match=why):
        etcd_replace.check(there)


FIVE = {f"etcd-{n}": f"https://198.51.100.{n}:2380" for n in range(1, 6)}
STAY = [Listed(str(n), f"etcd-{n}", (FIVE[f"etcd-{n}"],)) for n in range(2, 6)]


def test_a_second_dead_member_of_five_is_no_dead_end() -> None:
    """After kubespray issues 5009 and 3016: three of five are a quorum, and etcd lets one of the dead go at a time."""
    with pytest.raises(FleetError) as refused:
        etcd_replace.check(cluster([VOTER, *STAY], FIVE, **{"5": Api([], None)}))
    said = str(refused.value)
    assert "3 of 5 members are healthy" in said and "Remove etcd-5 with `etcdctl member remove ID`" in said
    assert "lose its quorum" not in said and said.endswith("the cluster was not changed")
    # As the message says: without the fifth in list and inventory the first can be replaced.
    four = {name: url for name, url in FIVE.items() if name != "etcd-5"}
    assert etcd_replace.check(cluster([VOTER, *STAY[:-1]], four)) == VOTER
    assert etcd_replace.check(cluster(STAY, FIVE)) is None, "and one that was removed comes back the same way"
    with pytest.raises(FleetError, match="lose its quorum"):
        etcd_replace.check(cluster([VOTER, *STAY], FIVE, **{"5": Api([], None), "4": Api([], None)}))


class Gone:
    """A host whose etcd does not run; `data` tells whether something is in its folder."""

    def __init__(self, data: bool) -> None:
        self.data, self.did = data, list[str]()

    def has_data(self) -> bool:
        return self.data

    def running(self) -> bool:
        return False

    def joining(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda: self.did.append(name)


def replacement(there: etcd_replace.Cluster, host: Any, confirmed: bool = False) -> etcd_replace.Replacement:
    ticks = itertools.count()
    return etcd_replace.Replacement(
        there, host, confirmed, timeout_s=5, clock=lambda: float(next(ticks)), pause=lambda _: None
    )


def test_data_is_not_given_up_unasked() -> None:
    host, api = Gone(True), Api([VOTER, *OTHERS])
    with pytest.raises(FleetError, match="give up what it has with -e confirm=etcd-1"):
        replacement(cluster([], **{"2": api}), host).run()
    assert (host.did, api.asked) == ([], [])


def test_it_waits_for_a_reason_that_passes_but_not_for_another() -> None:
    def added(*said: str) -> Api:
        api = Api(OTHERS, said=said)
        replacement(cluster([], **{"2": api}), Gone(False)).run()
        return api

    with pytest.raises(FleetError, match="no such thing"):
        added("etcdserver: no such thing")
    with pytest.raises(FleetError, match="unhealthy cluster"):
        added(*["etcdserver: unhealthy cluster"] * 50)
    # Nothing is listed afterwards here: it ends at the deadline, with what to do.
    with pytest.raises(FleetError, match="cannot do the step 'add' in 5 s: it does not answer"):
        added("etcdserver: unhealthy cluster", "etcdserver: member not found")


@pytest.mark.parametrize(
    ("data", "own", "confirmed", "refused"),
    [
        (True, SICK, False, True),
        (True, Own(), False, True),
        (True, HEALTHY, False, False),
        (True, SICK, True, False),
        (False, SICK, False, False),
    ],
)
def test_a_member_that_stays_refuses_for_data_on_a_host_that_it_is_told_of(
    data: bool, own: Own, confirmed: bool, refused: bool
) -> None:
    """Before the host gets anything: the one with the data may have no certificates to ask with."""
    there = cluster([VOTER, *OTHERS], **{"1": Api.of(own=own)})
    host = etcd_replace_module.Elsewhere(data)
    if refused:
        with pytest.raises(FleetError, match=r"with -e confirm=etcd-1.*neither it nor the cluster was changed"):
            etcd_replace.check_data(there, host, 0.0, confirmed=confirmed)
    else:
        etcd_replace.check_data(there, host, 0.0, confirmed=confirmed)


def test_data_of_a_learner_is_of_this_replacement_also_as_seen_from_elsewhere() -> None:
    there = cluster([LEARNER, *OTHERS], **{"1": Api([], None)})
    etcd_replace.check_data(there, etcd_replace_module.Elsewhere(True), 0.0, confirmed=False)
    with pytest.raises(FleetError, match="has data"):
        etcd_replace.check_data(cluster(OTHERS), etcd_replace_module.Elsewhere(True), 0.0, confirmed=False)


@pytest.mark.parametrize(
    ("version", "runs", "why"),
    [
        ("3.6.16", ("3.6.16", "3.6.16"), ""),
        ("3.6.20", ("3.6.16", "3.6.16"), ""),
        # In the middle of an upgrade either joins.
        ("3.6.16", ("3.7.3", "3.6.16"), ""),
        ("3.7.3", ("3.7.3", "3.6.16"), ""),
        (
            "3.7.3",
            ("3.6.16", "3.6.17"),
            r"names etcd 3.7.3 for etcd-1.*minor \(etcd-2 3.6.16, etcd-3 3.6.17\).*upgrade.yml",
        ),
        ("3.5.9", ("3.6.16", "3.6.16"), r"names etcd 3.5.9 for etcd-1"),
        ("", ("3.6.16", "3.6.16"), "does not say its version"),
    ],
)
def test_only_a_build_of_a_minor_that_runs_joins(version: str, runs: tuple[str, str], why: str) -> None:
    apis = {name: Api.of(version=text) for name, text in zip("23", runs, strict=True)}
    there = cluster([VOTER, *OTHERS], **apis)
    if why:
        with pytest.raises(FleetError, match=f"{why}.*nothing was changed"):
            etcd_replace.check_release(there, version)
    else:
        etcd_replace.check_release(there, version)
