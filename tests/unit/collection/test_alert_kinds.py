"""Which alerts are replayed: one of each kind, and a rule of a new kind brings its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.integration.alert_cases.case import Case
from tests.integration.alert_courses import words_of_time
from tests.integration.alert_kinds import kinds_of, of_each_kind
from tests.integration.alert_replay import RECORDED, Replay, alerts_of, targets_of

GAUGE, OTHER = 'node_bad{instance="a"}', 'DCGM_bad{instance="a"}'
JOBS = {"node": re.compile("node_.*"), "gpu": re.compile("DCGM_.*")}


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("max by (group) (increase(a[15m])) >= 3 and on (x) floor(b) == 1", {"increase"}),
        ("time() - timestamp(a) > 3", {"time", "timestamp"}),
        ("a unless on (instance) b offset 1h or absent(c)", {"unless", "offset", "absent"}),
        ('a{what="rate (of) offset"}', set()),
        ("deriv(a[5m])", {"deriv"}),
    ],
)
def test_what_an_expression_asks_for_beside_one_moment(expression: str, words: set[str]) -> None:
    assert words_of_time(expression) == words


def _replay(
    number: int,
    expression: str = "node_bad == 1",
    wrong: Mapping[str, str] | None = None,
    fine: Mapping[str, str] | None = None,
    **rule: str,
) -> Replay:
    record = {"record": "a:b", "expr": "rate(node_bad[5m])"}
    written = {"alert": "MusterBad", "expr": expression, "labels": {"severity": "page"}, **rule}
    case = Case("MusterBad", wrong or {GAUGE: "1x60"}, fine or {GAUGE: "0x60"}, "10m", "", {"instance": "a"})
    replay = Replay(number, case, alerts_of([{"name": "g", "rules": [record, written]}])["MusterBad"])
    replay.targets = {True: targets_of(replay, case.wrong, JOBS), False: targets_of(replay, case.fine, JOBS)}
    return replay


def test_of_two_of_one_kind_the_shorter_one_is_taken() -> None:
    long, short = _replay(1, **{"for": "5m"}), _replay(2, **{"for": "1m"})
    assert kinds_of(long) == kinds_of(short)
    assert of_each_kind([long, short]) == [short]


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        (_replay(2, "absent(node_bad)"), "asks absent"),
        (_replay(2, "changes(node_bad[5m]) > 1"), "asks changes"),
        (_replay(2, "a:b > 1"), f"asks {RECORDED}"),
        (_replay(2, keep_firing_for="5m"), "fires on, by its keep_firing_for"),
        (_replay(2, **{"for": "5m"}), "fires after its `for`"),
        (_replay(2, wrong={GAUGE: "1+1x60"}), "counts on"),
        (_replay(2, wrong={GAUGE: "1x10 2x50"}), "counts once"),
        (_replay(2, wrong={GAUGE: "1x60", 'up{job="node",instance="a"}': "0x60"}), "has a host that does not answer"),
        (_replay(2, wrong={OTHER: "1x60"}, fine={OTHER: "0x60"}), "read by the job gpu"),
        (_replay(2, fine={GAUGE: "0x60", OTHER: "0x60"}), "misses a series"),
    ],
)
def test_a_rule_or_a_course_of_a_new_kind_brings_its_own_case(new: Replay, kind: str) -> None:
    plain = _replay(1)
    assert kind in kinds_of(new) - kinds_of(plain)
    assert new in of_each_kind([plain, new, _replay(3)])


def test_what_later_ones_have_too_is_left_out_again() -> None:
    """The rarest first: each has one that no other has, and the plain one has none of its own."""
    counts, absent = _replay(2, wrong={GAUGE: "1+1x60"}), _replay(3, "absent(node_bad)")
    assert of_each_kind([_replay(1), counts, absent]) == [counts, absent]
