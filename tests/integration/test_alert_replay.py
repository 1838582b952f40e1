"""Every alert fires in a real Prometheus by its fault, in time, reaches a real Alertmanager, and ends with the fault.

The faults are those of alert_cases, with which promtool computes; here exporters show them on loopback, first fine,
then wrong, then fine again, thirty times as fast as in a fleet, and those that take hours faster still.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from .alert_cases.case import Case
from .alert_fleet import Fleet, running, written
from .alert_replay import INTERVAL_S, Replay, Seen, alerts_of, complaints, lanes
from .kube import until
from .test_alert_rules import RULES, cases

pytestmark = pytest.mark.slow
GROUPS: list[dict[str, Any]] = [
    group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]
]
ALERTS = alerts_of(GROUPS)
# Of numbers that no exporter shows.
BY_PROMETHEUS_ITSELF = {
    "MusterTargetOverLimit": "Prometheus makes these numbers of its own reads; test_monitoring_pair.py has exporters "
    "that are over each limit"
}
CASES: Sequence[Case] = [case for case in cases() if case.alert not in BY_PROMETHEUS_ITSELF]
# How often a target was read fine before it goes wrong.
FINE_READS = 4
# Prometheus may be late on a busy machine; what is later than this has failed.
GRACE_S = 20
# Pages change at a moment that all of them know before it comes.
SOON_S = 0.1


def _go(fleet: Fleet) -> None:
    """Have everything fine, then wrong, then fine again, each until its alert is told and is over."""
    replays = [replay for _, replay in fleet.replays()]
    until("every target is read", lambda: fleet.read(1), 60)
    fine = time.time()
    until("each is read so often that a rate is known", lambda: fleet.read(FINE_READS), 60)
    ready = {replay.number for replay in replays if not replay.lead_s}
    until("nothing is wrong", lambda: not ready & fleet.told(), 60)
    soon = time.time() + SOON_S
    for replay in replays:
        # What looks back at an hour ago sees a fine one a read and an evaluation after an hour.
        replay.fine = fine + (replay.lead_s + 2 * INTERVAL_S if replay.lead_s else 0)
        replay.began = soon + replay.lead_s
    last = soon + max(one.lead_s + one.due_s / one.factor + 2 * GRACE_S + one.kept_s for one in replays)
    while not all(replay.over for replay in replays) and time.time() < last:
        told = fleet.told()
        for replay in replays:
            _follow(replay, replay.number in told)
        time.sleep(0.2)


def _follow(replay: Replay, told: bool) -> None:
    """One look at Alertmanager."""
    if replay.began is None or time.time() < replay.began:
        return
    if replay.cured is None:
        replay.told = told
        if told or time.time() > replay.began + replay.due_s / replay.factor + GRACE_S:
            replay.cured = time.time() + SOON_S
    elif not told:
        replay.over = True


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Replay, Seen]]:
    """Each case with what Prometheus has seen of it."""
    folder = tmp_path_factory.mktemp("replay")
    replays = [Replay(number, case, ALERTS[case.alert]) for number, case in enumerate(CASES)]
    with running(folder, written(folder), GROUPS, lanes(replays)) as fleet:
        _go(fleet)
        seen = fleet.seen()
    return {replay.number: (replay, seen[replay.number]) for replay in replays}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.alert}-{n}" for n, case in enumerate(CASES)])
def test_an_alert_fires_in_time_is_told_and_ends(replayed: dict[int, tuple[Replay, Seen]], number: int) -> None:
    assert complaints(*replayed[number]) == []


def test_every_alert_is_replayed_or_is_of_prometheus_itself() -> None:
    assert {case.alert for case in CASES} | set(BY_PROMETHEUS_ITSELF) == set(ALERTS)
