"""An alert fires in a real Prometheus by its fault, in time, reaches a real Alertmanager, and ends with the fault.

The faults are those of alert_cases, with which promtool computes; here exporters show them on loopback, first fine,
then wrong, then fine again, thirty times as fast as in a fleet, and those that take hours faster still. `make test` has
an alert of each kind, `make soak` has all.
Only here: an alert is raised by what Prometheus has read, by the evaluation that first knows of it, and ends so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from .alert_cases import cases, groups
from .alert_cases.case import Case
from .alert_fleet import Fleet, aim, running, written
from .alert_kinds import kinds_of, of_each_kind
from .alert_replay import INTERVAL_S, Replay, Seen, alerts_of, complaints, lanes
from .kube import until

pytestmark = pytest.mark.slow
GROUPS = groups()
ALERTS = alerts_of(GROUPS)
# Of numbers that no exporter shows.
BY_PROMETHEUS_ITSELF = {
    "MusterTargetOverLimit": "Prometheus makes these numbers of its own reads; test_monitoring_pair.py has exporters "
    "that are over each limit"
}
CASES: Sequence[Case] = [case for case in cases() if case.alert not in BY_PROMETHEUS_ITSELF and not case.not_replayed]
# How often a target was read fine before it goes wrong.
FINE_READS = 4
# For so long an alert that does not come, or does not go, is waited for. It is no measure of what is in time: that is
# told by Prometheus' own evaluations, which a busy machine may make late.
GIVE_UP_S = 120
# Between two looks at Alertmanager.
LOOK_S = 0.5
# Pages change at a moment that all of them know before it comes.
SOON_S = 0.1


def _go(fleet: Fleet) -> None:
    """Have everything fine, then wrong, then fine again, each until its alert is told and is over."""
    replays = [replay for _, replay in fleet.replays()]
    until("every target is read", lambda: fleet.read(1))
    fine = time.time()
    until("each is read so often that a rate is known", lambda: fleet.read(FINE_READS))
    ready = {replay.number for replay in replays if not replay.lead_s}
    until("nothing is wrong", lambda: not ready & fleet.alerting())
    soon = time.time() + SOON_S
    for replay in replays:
        # What looks back at an hour ago sees a fine one a read and an evaluation after an hour.
        replay.fine = fine + (replay.lead_s + 2 * INTERVAL_S if replay.lead_s else 0)
        replay.began = soon + replay.lead_s
    last = soon + max(one.lead_s + one.due_s / one.factor + 2 * GIVE_UP_S + one.kept_s for one in replays)
    while not all(replay.over for replay in replays) and time.time() < last:
        told = fleet.alerting()
        for replay in replays:
            _follow(replay, replay.number in told)
        time.sleep(LOOK_S)


def _follow(replay: Replay, told: bool) -> None:
    """One look at Alertmanager."""
    if replay.began is None or time.time() < replay.began:
        return
    if replay.cured is None:
        replay.told = told
        if told or time.time() > replay.began + replay.due_s / replay.factor + GIVE_UP_S:
            replay.cured = time.time() + SOON_S
    elif not told:
        replay.over = True


def _replayed(folder: Path, role: Path, replays: Sequence[Replay]) -> dict[int, tuple[Replay, Seen]]:
    """Each of these with what Prometheus has seen of it."""
    with running(folder, role, GROUPS, lanes(replays)) as fleet:
        _go(fleet)
        seen = fleet.recorded()
    return {replay.number: (replay, seen[replay.number]) for replay in replays}


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the role writes."""
    return written(tmp_path_factory.mktemp("role"))


@pytest.fixture
def every(role: Path) -> list[Replay]:
    """All cases, with the targets that show them."""
    replays = [Replay(number, case, ALERTS[case.alert]) for number, case in enumerate(CASES)]
    aim(role, replays)
    return replays


def test_an_alert_of_each_kind_fires_in_time_is_told_and_ends(
    every: Sequence[Replay], role: Path, tmp_path: Path
) -> None:
    replayed = _replayed(tmp_path, role, of_each_kind(every))
    print(", ".join(replay.alert.name for replay, _ in replayed.values()))
    told = {f"{replay.alert.name}-{number}": complaints(replay, seen) for number, (replay, seen) in replayed.items()}
    assert {name: these for name, these in told.items() if these} == {}


def test_the_alerts_that_are_replayed_have_each_kind_that_there_is(every: Sequence[Replay]) -> None:
    """And every case can be replayed: a job keeps each of its series, its windows hold enough reads."""
    assert lanes(every)
    few = of_each_kind(every)
    kinds = frozenset[str]().union(*(kinds_of(replay) for replay in every))
    assert kinds == frozenset[str]().union(*(kinds_of(replay) for replay in few))
    assert len(few) < len(every) / 4
    # What a fleet's rules are made of; a rule that asks for something else brings its kind by itself.
    words = ("rate", "increase", "time", "timestamp", "absent", "unless", "offset", "a record")
    assert {f"asks {word}" for word in words} <= kinds
    assert {
        "fires after its `for`", "fires at once", "has its severity by host", "is of the whole fleet",
        "shows after a while", "begins to count", "misses a series", "has one more series",
        "has a host that does not answer", "tells a time", "counts on", "counts once",
    } <= kinds  # fmt: skip
    assert {
        f"a rule of {group['name']}" for group in GROUPS if any("alert" in rule for rule in group["rules"])
    } <= kinds


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, role: Path) -> dict[int, tuple[Replay, Seen]]:
    """Every case with what Prometheus has seen of it."""
    replays = [Replay(number, case, ALERTS[case.alert]) for number, case in enumerate(CASES)]
    aim(role, replays)
    return _replayed(tmp_path_factory.mktemp("replay"), role, replays)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.alert}-{n}" for n, case in enumerate(CASES)])
def test_an_alert_fires_in_time_is_told_and_ends(replayed: dict[int, tuple[Replay, Seen]], number: int) -> None:
    assert complaints(*replayed[number]) == []


def test_every_alert_is_replayed_or_is_of_prometheus_itself() -> None:
    """By `make soak`."""
    assert {case.alert for case in CASES} | set(BY_PROMETHEUS_ITSELF) == set(ALERTS)
