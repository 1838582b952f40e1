"""The kinds of alerts, by what their rules ask and by what their cases show; and a few cases that have each kind.

promtool computes every case in test_alert_rules.py. How a kind goes in a real Prometheus depends on its reads and its
evaluations, and for that one alert of the kind is enough. A rule of a new kind brings its case by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .alert_courses import Course, course, is_time, parts
from .alert_replay import Replay, lanes


def kinds_of(replay: Replay) -> frozenset[str]:
    """What a case with its alert is of; `replay.targets` are set."""
    return frozenset(
        {
            f"a rule of {replay.alert.group}",
            *(f"read by the job {target.job}" for some in replay.targets.values() for target in some),
            *_asked(replay),
            *_shown(replay),
        }
    )


def _asked(replay: Replay) -> Iterable[str]:
    alert = replay.alert
    yield from (f"asks {word}" for word in alert.asks)
    yield "fires after its `for`" if alert.for_s else "fires at once"
    if alert.keep_s:
        yield "fires on, by its keep_firing_for"
    if "{{" in alert.severity:
        yield "has its severity by host"
    if "instance" not in replay.case.labels:
        yield "is of the whole fleet"


def _shown(replay: Replay) -> Iterable[str]:
    if replay.slow:
        yield "shows after a while"
    if replay.begins_to_count:
        yield "begins to count"
    wrong, fine = ({name: course(values) for name, values in some.items()} for some in _series(replay))
    if fine.keys() - wrong.keys():
        yield "misses a series"
    if wrong.keys() - fine.keys():
        yield "has one more series"
    for name, one in wrong.items():
        yield from _of_series(name, one)


def _series(replay: Replay) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return replay.case.wrong, replay.case.fine


def _of_series(name: str, one: Course) -> Iterable[str]:
    if parts(name)[0] == "up" and 0 in one.values:
        yield "has a host that does not answer"
    if is_time(name):
        yield "tells a time"
    elif one.growth:
        yield "counts on"
    elif len(set(one.values)) > 1:
        yield "counts once"


def of_each_kind(replays: Sequence[Replay]) -> list[Replay]:
    """A few of these that have all their kinds, in their order.

    For the rarest kind first, that one is taken which fits with the others in the fewest lanes, then the shortest;
    what later ones have made superfluous is left out again.
    """
    kinds = {replay.number: kinds_of(replay) for replay in replays}
    with_it: dict[str, list[Replay]] = {}
    for replay in replays:
        for kind in kinds[replay.number]:
            with_it.setdefault(kind, []).append(replay)
    taken: list[Replay] = []
    for kind in sorted(with_it, key=lambda kind: (len(with_it[kind]), kind)):
        if not any(kind in kinds[one.number] for one in taken):
            taken.append(min(with_it[kind], key=lambda one: (len(lanes([*taken, one])), one.takes_s, one.number)))
    for one in list(taken):
        if kinds[one.number] <= {kind for other in taken if other is not one for kind in kinds[other.number]}:
            taken.remove(one)
    return sorted(taken, key=lambda one: one.number)
