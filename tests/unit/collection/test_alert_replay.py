"""How faults of alert_cases become pages in a faster time; what is told of an alert that does not go as it must."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.integration.alert_cases.case import Case
from tests.integration.alert_courses import course, faster, faster_groups, seconds, shown
from tests.integration.alert_replay import (
    FACTORS,
    Alert,
    Evaluation,
    Replay,
    Seen,
    alerts_of,
    complaints,
    lanes,
    page,
    targets_of,
)

UP = 'up{job="node",instance="a",rack="r"}'
GAUGE = 'node_bad{instance="a",what="disk"}'
JOBS = {"node": re.compile("node_.*|muster_.*"), "gpu": re.compile("DCGM_.*")}


def _alert(
    name: str = "MusterBad",
    for_s: float = 60,
    windows_s: tuple[float, ...] = (),
    words: frozenset[str] = frozenset({"node_bad"}),
) -> Alert:
    return Alert(name, "group", "page", for_s, 0, words, windows_s)


def _replay(
    alert: Alert | None = None,
    wrong: Mapping[str, str] | None = None,
    fine: Mapping[str, str] | None = None,
    after: str = "2m",
    number: int = 1,
    labels: Mapping[str, str] | None = None,
) -> Replay:
    case = Case(
        "MusterBad",
        {GAUGE: "1x60"} if wrong is None else wrong,
        {GAUGE: "0x60"} if fine is None else fine,
        after,
        "",
        {"instance": "a"} if labels is None else labels,
    )
    return Replay(number, case, alert or _alert())


@pytest.mark.parametrize(
    ("notation", "values", "later", "settled"),
    [
        ("1x2", (1, 1, 1), 1, 0),
        ("0x2 5", (0, 0, 0, 5), 5, 3),
        ("0+2x2", (0, 2, 4), 8, 1),
        ("7e9 1-0.5x1", (7e9, 1, 0.5), -0.5, 2),
        ("1 _x2 1", (1, None, None, 1), 1, 3),
        ("1 _", (1, None), None, 1),
    ],
)
def test_a_course_is_what_promtool_reads(
    notation: str, values: tuple[float | None, ...], later: float | None, settled: int
) -> None:
    one = course(notation)
    assert one.values == values
    assert one.settled == settled
    assert one.at(len(values) + 1, known=0) == later
    # One that is over before its alert is looked at stays away.
    assert one.at(len(values) + 1, known=len(values)) is None


@pytest.mark.parametrize("notation", ["1x", "one", "1+x2", "1xx2"])
def test_another_notation_is_refused(notation: str) -> None:
    with pytest.raises(ValueError, match="is no run of values"):
        course(notation)


def test_a_time_is_as_long_ago_as_it_is_for_promtool() -> None:
    series = {"node_seen_timestamp_seconds{}": course("0x9"), "node_new_timestamp_seconds{}": course("0+30x9")}
    assert shown({**series, "node_bad{}": course("0+1x9")}, 4, 0, 1e9) == [
        ("node_seen_timestamp_seconds{}", 1e9 - 120),
        ("node_new_timestamp_seconds{}", 1e9),
        ("node_bad{}", 4),
    ]


def test_windows_rates_and_for_are_those_of_a_faster_time() -> None:
    assert faster('sum(rate(a{b=~"x|(y)"}[5m])) / rate(c[1h30m]) > 1', 30) == (
        'sum((rate(a{b=~"x|(y)"}[10000ms]) / 30)) / (rate(c[180000ms]) / 30) > 1'
    )
    assert faster("increase(a[15m]) > 2", 30) == "increase(a[30000ms]) > 2"
    assert faster("(a unless a offset 1h)", 30) == "(a unless a offset 120000ms)"
    rule = {"alert": "A", "expr": "up == 0", "for": "1m", "keep_firing_for": "5m", "labels": {}}
    assert faster_groups([{"name": "g", "rules": [rule]}], 30) == [
        {"name": "g", "rules": [{**rule, "for": "2000ms", "keep_firing_for": "10000ms"}]}
    ]
    assert seconds("1d") == 86400


@pytest.mark.parametrize("expression", ["irate(a[5m])", "deriv(a[5m])", "a @ 1"])
def test_what_looks_at_times_in_another_way_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="say in faster"):
        faster(expression, 30)


def test_a_window_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="5m:30s is no duration"):
        faster("max_over_time(a[5m:30s])", 30)


def test_an_alert_reads_what_its_records_read() -> None:
    rules = [
        {"record": "a:b", "expr": "rate(c[5m])"},
        {"record": "d:e", "expr": "a:b / f"},
        {"alert": "MusterA", "expr": "d:e > 1", "for": "1m", "labels": {"severity": "page"}},
    ]
    alert = alerts_of([{"name": "g", "rules": rules}])["MusterA"]
    assert {"a:b", "c", "f"} <= alert.words
    assert (alert.group, alert.for_s, alert.windows_s) == ("g", 60, (300,))


def test_a_record_that_goes_on_from_itself_is_read_once() -> None:
    rules = [
        {"record": "a:b", "expr": "max(c) or a:b"},
        {"alert": "MusterA", "expr": "a:b > 1", "labels": {"severity": "page"}},
    ]
    assert {"a:b", "c"} <= alerts_of([{"name": "g", "rules": rules}])["MusterA"].words


def test_a_host_answers_shows_its_series_and_goes_down() -> None:
    replay = _replay(wrong={UP: "0x60", GAUGE: "1x60"}, fine={UP: "1x60", GAUGE: "0x60"})
    replay.targets = {
        True: targets_of(replay, replay.case.wrong, JOBS),
        False: targets_of(replay, replay.case.fine, JOBS),
    }
    assert replay.hosts() == {("node", "a.1"): {"rack": "r", "instance": "a.1"}}
    replay.began, replay.cured = 100.0, 110.0
    assert page(replay, "node", "a.1", 99) == page(replay, "node", "a.1", 111) == 'node_bad{what="disk"} 0.0\n'
    assert page(replay, "node", "a.1", 101) is None


def test_a_series_that_no_job_keeps_is_refused() -> None:
    with pytest.raises(ValueError, match="no job of Prometheus keeps etcd_bad"):
        targets_of(_replay(), {'etcd_bad{instance="a"}': "1x60"}, JOBS)


def test_what_looks_at_all_hosts_is_in_a_lane_without_others_that_show_the_same() -> None:
    one, two = _replay(number=1), _replay(number=2)
    of_all, of_others = _replay(number=3, labels={}), _replay(_alert(words=frozenset({"up"})), number=4, labels={})
    assert [[each.number for each in lane] for lane in lanes([one, two, of_all, of_others])] == [[1, 2, 4], [3]]


def test_what_takes_a_day_runs_faster_and_by_itself() -> None:
    slow = _replay(_alert(for_s=86400), number=2)
    assert slow.factor == FACTORS[-1]
    assert len(lanes([_replay(), slow])) == 2


def test_what_was_there_an_hour_ago_is_fine_for_an_hour_first() -> None:
    rule = {"alert": "MusterBad", "expr": "node_bad unless node_bad offset 1h", "labels": {"severity": "page"}}
    replay = _replay(alerts_of([{"name": "g", "rules": [rule]}])["MusterBad"])
    assert replay.lead_s == replay.kept_s == 3600 / replay.factor


def test_a_time_that_stands_still_is_a_fault_that_shows_after_a_while() -> None:
    name = 'muster_seen_timestamp_seconds{instance="a"}'
    assert _replay(wrong={name: "0x60"}, after="5m").due_s == 300
    assert _replay(wrong={name: "0+30x60", GAUGE: "1x60"}).due_s == 30 + 60


def test_a_window_that_holds_too_few_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a window of 6 s holds fewer than 4 reads"):
        lanes([_replay(_alert(windows_s=(180,)))])


# An evaluation at each full second, which knows of the read 0.6 s before it.
EVALUATIONS = [Evaluation(float(second), second - 0.6) for second in range(200)]
FIRED = [(12.0, "pending"), (13.0, "pending"), (14.0, "firing"), (15.0, "firing")]


def _complaints(
    raised: list[tuple[float, str]],
    told: bool = True,
    over: bool = True,
    given_up: Sequence[float] = (),
    evaluations: Sequence[Evaluation] = EVALUATIONS,
) -> list[str]:
    replay = _replay()
    replay.fine, replay.began, replay.cured, replay.told, replay.over = 2.0, 10.5, 14.5, told, over
    return complaints(replay, Seen(evaluations, raised, given_up))


def test_a_counter_that_was_not_there_has_grown_at_its_second_read() -> None:
    late = [(at + 2, state) for at, state in FIRED]
    for fine, complains in (({GAUGE: "0x60"}, True), ({}, False)):
        replay = _replay(wrong={GAUGE: "0+1x60"}, fine=fine)
        replay.fine, replay.began, replay.cured, replay.told, replay.over = 2.0, 10.5, 16.5, True, True
        seen = Seen(EVALUATIONS, late)
        # A second is the step of the fleet here, in which it grows once.
        assert bool(complaints(replay, seen)) == complains


def test_an_alert_that_goes_as_it_must_is_no_complaint() -> None:
    # Wrong at 10.5, read at 11.4, evaluated at 12, and fires 2 s later; fine at 14.5, read at 15.4, evaluated at 16.
    assert _complaints(FIRED) == []
    # Before everything was read nobody knows anything.
    assert _complaints([(1.0, "firing"), *FIRED]) == []


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ([], "it never fired; it was not even pending"),
        ([(12.0, "pending"), (13.0, "pending")], "it never fired; it was pending"),
        ([(9.0, "firing"), *FIRED], "it fired -1.50 s after the fault began; its `for` is 2 s"),
        ([(15.0, "firing")], "it fired 1.00 s after the evaluation that should have fired it"),
        ([*FIRED, (16.0, "firing")], "it fired until 0.00 s after the evaluation that should have ended it"),
    ],
)
def test_an_alert_that_does_not_is_told(raised: list[tuple[float, str]], told: str) -> None:
    assert _complaints(raised) == [told]


def test_an_evaluation_that_did_not_know_of_a_read_yet_may_still_fire() -> None:
    late = [replace(one, read=one.read - (one.at == 16)) for one in EVALUATIONS]
    assert _complaints([*FIRED, (16.0, "firing")], evaluations=late) == []
    assert _complaints([*FIRED, (17.0, "firing")], evaluations=late) != []


def test_an_alertmanager_that_was_not_told_is_a_complaint() -> None:
    assert _complaints(FIRED, told=False) == ["Alertmanager was not told"]
    assert _complaints(FIRED, over=False) == ["Alertmanager was not told that it is over"]


def test_reads_that_were_given_up_explain_a_complaint_and_are_none() -> None:
    assert _complaints(FIRED, given_up=[1.4, 11.4]) == []
    assert _complaints(FIRED, told=False, given_up=[1.4, 11.4])[-1].startswith("2 reads of its hosts were given up")


def test_after_a_read_that_was_given_up_an_alert_begins_anew() -> None:
    late = [(13.0, "pending"), (14.0, "pending"), (15.0, "firing")]
    assert _complaints(late) != [] and _complaints(late, given_up=[11.4]) == []
    assert _complaints([*late[:2], (16.0, "firing")], given_up=[11.4]) != []
    # A host that was not read may be one that is down; one that was given up later explains nothing.
    assert _complaints([*FIRED, (16.0, "firing")], given_up=[15.4]) == []
    assert _complaints([*FIRED, (16.0, "firing")], given_up=[16.4]) != []
    assert _complaints([*FIRED, (17.0, "firing")], given_up=[15.4]) != []
