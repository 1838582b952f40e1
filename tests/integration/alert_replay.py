"""The faults of alert_cases as targets of a real Prometheus, for a fleet whose time runs faster than ours.

Each case has hosts of its own, so all go wrong at once. Cases that would disturb each other, as two of the one admitter
that leads, belong to lanes: each is a Prometheus of its own, with all rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from .alert_cases.case import Case
from .alert_courses import STEP_S, Course, course, is_time, offsets_s, parts, seconds, shown, windows_s, words_of_time

# Of Prometheus, in real time: it reads and evaluates that often, and a busy machine has as long for an answer.
INTERVAL_S = 2.0
# How much faster than in a fleet the time runs: each case has the first of these with which it takes LONGEST_S at most.
# An hour takes two minutes by the first, and the shortest window, of five minutes, holds five reads; a day, which is
# the longest `for`, takes one minute by the last.
FACTORS, LONGEST_S = (30, 120, 1440), 160
# Prometheus' times are whole milliseconds.
_ROUNDING_S = 0.001
# A rate over fewer reads is none.
FEWEST_READS = 4
# Faults that show after a while, as those of ages do: their cases say by when.
SLOW = frozenset(
    {
        # Joins that end, and those that add up.
        "MusterJoinsStalled", "MusterJoinsFast",
        # Rates that are over their limit after two reads.
        "MusterApiThrottled", "MusterMemoryLow", "MusterTrafficOverLimit",
        # What was not there an hour ago: here it was, a replay before.
        "MusterXidWarned",
    }
)  # fmt: skip
RECORDED = "a record"
_TOKEN = re.compile(r"[a-zA-Z_:][\w:]*")


@dataclass(frozen=True)
class Target:
    """What Prometheus reads of one host by one job: whether it answers, and what it then shows."""

    job: str
    labels: Mapping[str, str]
    up: Course | None
    series: Mapping[str, Course]


@dataclass(frozen=True)
class Alert:
    """An alert of the rules with what it takes: words in it and in what it reads, its `for`, windows and offsets.

    `asks` are the words of PromQL that look at times or at what is not there, with RECORDED where it reads a record.
    """

    name: str
    group: str
    severity: str
    for_s: float
    keep_s: float
    words: frozenset[str]
    windows_s: tuple[float, ...]
    offset_s: float = 0
    asks: frozenset[str] = frozenset()

    @property
    def memory_s(self) -> float:
        """How long it knows of what is over."""
        return max((*self.windows_s, self.offset_s))


@dataclass
class Replay:
    """One case with an alert: fine, then wrong, then fine again. Times are real ones, None before they came.

    `told` is whether Alertmanager had its alert, `over` whether it has it no more.
    """

    number: int
    case: Case
    alert: Alert
    fine: float | None = None
    began: float | None = None
    cured: float | None = None
    told: bool = False
    over: bool = False
    targets: Mapping[bool, Sequence[Target]] = field(default_factory=dict)

    @cached_property
    def factor(self) -> float:
        """How much faster its time runs."""
        return next((factor for factor in FACTORS if self._takes_s / factor <= LONGEST_S), FACTORS[-1])

    @property
    def takes_s(self) -> float:
        """In real time: from its beginning until its alert can be over."""
        return self._takes_s / self.factor

    @property
    def _takes_s(self) -> float:
        return self.alert.offset_s + self.due_s + self.alert.memory_s

    @property
    def lead_s(self) -> float:
        """In real time: how long all is fine before anything goes wrong."""
        return self.alert.offset_s / self.factor

    @cached_property
    def slow(self) -> bool:
        """Whether its fault shows after a while: as a time that stands still, and gets old."""
        times = [course(values) for name, values in self.case.wrong.items() if is_time(name)]
        return self.alert.name in SLOW or any(not one.growth for one in times)

    @cached_property
    def known(self) -> int:
        """The step at which promtool has seen that the wrong one fires and the fine one does not."""
        return int(seconds(self.case.after) // STEP_S)

    @cached_property
    def settled_s(self) -> float:
        """Until the fault is there as a whole, from the beginning of the wrong series."""
        return STEP_S * max(course(values).settled for values in self.case.wrong.values())

    @property
    def begins_to_count(self) -> bool:
        """Whether a counter of the fault was not there before: its first value is no growth."""
        new = self.case.wrong.keys() - self.case.fine.keys()
        return any(course(self.case.wrong[name]).growth for name in new)

    @property
    def due_s(self) -> float:
        """When it is to fire: in the time of the fleet, from the beginning of the wrong series."""
        return seconds(self.case.after) if self.slow else self.settled_s + self.alert.for_s

    @property
    def kept_s(self) -> float:
        """In real time: how long its alert may fire after the fault."""
        return (self.alert.memory_s + self.alert.keep_s) / self.factor

    def expected(self) -> dict[str, str]:
        """Labels of its alert."""
        labels = {"alertname": self.alert.name, "severity": self.alert.severity, **self.case.labels}
        return labels | ({"instance": self.host(labels["instance"])} if "instance" in labels else {})

    def hosts(self) -> dict[tuple[str, str], Mapping[str, str]]:
        """The labels of each target, by job and host."""
        return {(one.job, one.labels["instance"]): one.labels for some in self.targets.values() for one in some}

    def host(self, instance: str) -> str:
        """The name that a host of the case has here, where other cases have hosts too."""
        return f"{instance}.{self.number}" if instance else ""

    def pages(self, now: float) -> tuple[bool, int]:
        """Whether it is wrong now, and the step at which it is."""
        if self.began is None or now < self.began:
            return False, self.known
        if self.cured is None or now < self.cured:
            return True, int((now - self.began) * self.factor / STEP_S)
        return False, self.known + int((now - self.cured) * self.factor / STEP_S)


def alerts_of(groups: Iterable[Mapping[str, Any]]) -> dict[str, Alert]:
    """The alerts of groups of rules, by name."""
    rules = [(group["name"], rule) for group in groups for rule in group["rules"]]
    records: dict[str, list[str]] = {}
    for _, rule in rules:
        if "record" in rule:
            records.setdefault(rule["record"], []).append(rule["expr"])

    def read(expression: str, seen: frozenset[str] = frozenset()) -> list[str]:
        """Its own text and those of the records below it; one that goes on from what it was itself is read once."""
        names = (set(_TOKEN.findall(expression)) & set(records)) - seen
        below = [text for name in names for text in records[name]]
        return [expression, *(text for one in below for text in read(one, seen | names))]

    alerts = {}
    for group, rule in rules:
        if "alert" in rule:
            texts = read(rule["expr"])
            alerts[rule["alert"]] = Alert(
                rule["alert"],
                group,
                rule["labels"]["severity"],
                seconds(rule.get("for", "0s")),
                seconds(rule.get("keep_firing_for", "0s")),
                frozenset(word for text in texts for word in _TOKEN.findall(text)),
                tuple(window for text in texts for window in windows_s(text)),
                max((offset for text in texts for offset in offsets_s(text)), default=0),
                frozenset(word for text in texts for word in words_of_time(text))
                | ({RECORDED} if len(texts) > 1 else set()),
            )
    return alerts


def targets_of(replay: Replay, series: Mapping[str, str], jobs: Mapping[str, re.Pattern[str]]) -> list[Target]:
    """The hosts of a case with its series. `jobs` are the names that each job keeps.

    Raises ValueError for a series that no job keeps: its alert could never fire.
    """
    made: dict[tuple[str, str], tuple[dict[str, str], list[Course], dict[str, Course]]] = {}
    for text, values in series.items():
        name, labels = parts(text)
        job = labels.pop("job", None) or next((job for job, kept in jobs.items() if kept.fullmatch(name)), None)
        if job is None:
            raise ValueError(f"{replay.alert.name}: no job of Prometheus keeps {name}")
        host = replay.host(labels.pop("instance"))
        of_target, up, rest = made.setdefault((job, host), ({}, [], {}))
        if name == "up":
            of_target.update(labels)
            up.append(course(values))
        else:
            inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
            rest[f"{name}{{{inside}}}"] = course(values)
    return [
        Target(job, {**labels, "instance": host}, up[0] if up else None, rest)
        for (job, host), (labels, up, rest) in made.items()
    ]


def page(replay: Replay, job: str, host: str, now: float) -> str | None:
    """What a host of a case shows now; None is no answer."""
    wrong, step = replay.pages(now)
    for target in replay.targets[wrong]:
        if (target.job, target.labels["instance"]) == (job, host):
            if target.up is not None and not target.up.at(step, replay.known):
                return None
            lines = shown(target.series, step, replay.known, now)
            return "".join(f"{name} {value!r}\n" for name, value in lines)
    return ""


def lanes(replays: Sequence[Replay]) -> list[list[Replay]]:
    """The cases so that none disturbs another one of its lane, and all of a lane run equally fast.

    Raises ValueError where a window would hold fewer reads than a rate needs.
    """
    made: list[list[Replay]] = []
    for replay in replays:
        shortest_s = min(replay.alert.windows_s, default=float("inf")) / replay.factor
        if shortest_s < FEWEST_READS * INTERVAL_S:
            raise ValueError(f"{replay.alert.name}: a window of {shortest_s:g} s holds fewer than {FEWEST_READS} reads")
        fits = [lane for lane in made if all(_agree(replay, other) for other in lane)]
        if fits:
            fits[0].append(replay)
        else:
            made.append([replay])
    return made


def _agree(one: Replay, other: Replay) -> bool:
    return one.factor == other.factor and not _disturbs(one, other) and not _disturbs(other, one)


def _disturbs(one: Replay, other: Replay) -> bool:
    """Whether the second one's alert looks at all hosts together, and at something that the first one shows."""
    names = {parts(text)[0] for text in (*one.case.wrong, *one.case.fine)}
    return "instance" not in other.case.labels and bool(names & other.alert.words)


@dataclass(frozen=True)
class Evaluation:
    """One of the alert's group: when it was, and the oldest of each host's last reads of which it knew.

    Of a read that began before it and is not written yet it knows nothing.
    """

    at: float
    read: float


@dataclass(frozen=True)
class Seen:
    """What Prometheus itself has of a replay: the evaluations of the alert's group in their order; those that raised
    it, with its state; the times of the reads that it gave up."""

    evaluations: Sequence[Evaluation]
    raised: Sequence[tuple[float, str]]
    given_up: Sequence[float] = ()

    def evaluated(self, *, at: float = 0, read: float = 0) -> Evaluation:
        """The first evaluation from a time on that knew of a read of each host since another."""
        late = (one for one in self.evaluations if one.at > at - _ROUNDING_S and one.read > read - _ROUNDING_S)
        return next(late, Evaluation(inf, inf))

    def read_since(self, since: float, until: float) -> float:
        """The time of which a read has to be, for all hosts to have been read from then until that evaluation.

        What Prometheus has given up is not there for it, and an alert of it begins anew with the next read.
        """
        return max([since, *(at + _ROUNDING_S * 2 for at in self.given_up if at < until)])


def complaints(replay: Replay, seen: Seen) -> list[str]:
    """What is wrong with how its alert went.

    The evaluation that first knows of a fault has to raise it; the one at which its `for` is over, to fire it.
    Reads that were given up are no fault of the rules: both count from the next one.
    """
    told = _complaints(replay, seen)
    if told and seen.given_up:
        told.append(
            f"{len(seen.given_up)} reads of its hosts were given up: this machine may be too busy for this test"
        )
    return told


def _complaints(replay: Replay, seen: Seen) -> list[str]:
    fine, began, cured = replay.fine, replay.began, replay.cured
    if fine is None or began is None or cured is None:
        return ["it was not replayed"]
    # Before all is read nobody knows anything.
    raised = [(at, state) for at, state in seen.raised if at > fine]
    firing = [at for at, state in raised if state == "firing"]
    if not firing:
        return [f"it never fired; it was {' and '.join(sorted({state for _, state in raised})) or 'not even pending'}"]
    told = []
    for_s = replay.alert.for_s / replay.factor
    if firing[0] < began + for_s:
        told.append(f"it fired {firing[0] - began:.2f} s after the fault began; its `for` is {for_s:g} s")
    shown_s = replay.due_s - replay.alert.for_s
    known = seen.evaluated(read=seen.read_since(began + shown_s / replay.factor, firing[0]))
    if replay.begins_to_count:
        known = seen.evaluated(read=known.read + _ROUNDING_S * 2)
    due = seen.evaluated(at=known.at + for_s).at
    if firing[0] > due:
        told.append(f"it fired {firing[0] - due:.2f} s after the evaluation that should have fired it")
    fine_again = seen.evaluated(read=seen.read_since(cured, firing[-1]))
    if firing[-1] >= (ended := seen.evaluated(at=fine_again.read + replay.kept_s, read=cured).at):
        told.append(f"it fired until {firing[-1] - ended:.2f} s after the evaluation that should have ended it")
    if not replay.told:
        told.append("Alertmanager was not told")
    if not replay.over:
        told.append("Alertmanager was not told that it is over")
    return told
