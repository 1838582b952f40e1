"""The first cause of what happened: not the last message, but what set it off. Pure.

The rules. Each kind of thing has kinds that set it off by what they are (CAUSES), in ranks: a task that has a machine
boot, an XID, an eviction. From the end one goes back:

1. Of the first rank in which something lies within reach, that which is nearest in time is the cause; then its own
   cause is looked for in the same way, until nothing is left. What was found last is the first cause.
2. A rank of its own, before all others, is what kubelet itself says of a pod's end: memory, preemption, pressure.
3. An XID that also follows when a process is killed (AFTERMATH) explains an end only when nothing else does.
4. An XID within ten minutes of another one is of the same burst: the earliest is the cause.
5. A cause lies before its effect. Some are told of later than they do harm (a reboot, an XID, a fault): they may lie
   behind it by `after_s`. To both bounds comes `skew_s`, by which the clocks of the sources may differ.
6. What is of another node, or of another pod, is no cause.
7. What merely lies before the first of the chain (BEFORE), as a play that changed something else, is told as that, and
   never as its cause: nothing links them.
8. Events are told in full seconds: within one of them whatever may be the cause is taken to come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.fleet.why.entry import Entry, Source, What

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
# A pod's hold is respected for seven days (Rules.hold_deadline_s): so long may a drain take to its end.
_HOLD_S = 8 * _DAY_S


@dataclass(frozen=True)
class Reach:
    """How long before its effect a cause may lie, and how long after it, since it is told of late."""

    kind: What
    before_s: float
    after_s: float = 0.0


_FINDINGS = (Reach(What.XID, 15 * _MINUTE_S, _MINUTE_S), Reach(What.FAULT, 15 * _MINUTE_S, _MINUTE_S))
_RESOLUTION_S = 1.0
_LATE_BOOT = Reach(What.BOOTED, 15 * _MINUTE_S, 30 * _MINUTE_S)
CAUSES: Mapping[What, tuple[tuple[Reach, ...], ...]] = {
    What.ENDED: (
        (
            Reach(What.OUT_OF_MEMORY, 2 * _MINUTE_S, _MINUTE_S),
            Reach(What.PREEMPTED, 10 * _MINUTE_S, _MINUTE_S),
            Reach(What.PRESSURE, 10 * _MINUTE_S, _MINUTE_S),
        ),
        (
            Reach(What.DRAINED, 15 * _MINUTE_S, _MINUTE_S),
            Reach(What.PERSON, 10 * _MINUTE_S),
            Reach(What.LOST, 15 * _MINUTE_S, 10 * _MINUTE_S),
            Reach(What.QUARANTINED, 15 * _MINUTE_S, _MINUTE_S),
            Reach(What.DOUBTED, 15 * _MINUTE_S, _MINUTE_S),
            _LATE_BOOT,
            *_FINDINGS,
        ),
        (Reach(What.DRAINED, _HOLD_S), Reach(What.QUARANTINED, _HOLD_S)),
        (Reach(What.MAINTENANCE, _HOUR_S),),
        (Reach(What.AFTERMATH, _MINUTE_S, _MINUTE_S),),
    ),
    What.DRAINED: (
        (Reach(What.PERSON, 10 * _MINUTE_S), Reach(What.QUARANTINED, 10 * _MINUTE_S, _MINUTE_S)),
        (Reach(What.QUARANTINED, _HOLD_S), Reach(What.DRAINED, _HOLD_S)),
        (Reach(What.MAINTENANCE, 2 * _HOUR_S),),
    ),
    # It names its finding: what else happened before is no cause of that.
    What.QUARANTINED: (_FINDINGS,),
    What.DOUBTED: (
        _FINDINGS,
        (Reach(What.LOST, 15 * _MINUTE_S), _LATE_BOOT),
    ),
    What.LOST: (
        (_LATE_BOOT, *_FINDINGS),
        (Reach(What.REBOOT, 15 * _MINUTE_S, _MINUTE_S),),
        (Reach(What.MAINTENANCE, 2 * _HOUR_S),),
    ),
    What.BOOTED: (
        (Reach(What.REBOOT, 30 * _MINUTE_S, _MINUTE_S),),
        (Reach(What.MAINTENANCE, 2 * _HOUR_S),),
        _FINDINGS,
    ),
    What.FAULT: ((Reach(What.XID, _HOUR_S, _MINUTE_S),),),
    What.XID: ((Reach(What.XID, 10 * _MINUTE_S),),),
    What.AFTERMATH: ((Reach(What.XID, 10 * _MINUTE_S, _MINUTE_S),),),
}
BEFORE: Mapping[What, tuple[Reach, ...]] = {
    What.ENDED: (Reach(What.PLAY, 10 * _MINUTE_S),),
    What.DRAINED: (Reach(What.PLAY, 10 * _MINUTE_S),),
    What.LOST: (Reach(What.PERSON, 15 * _MINUTE_S), Reach(What.PLAY, 15 * _MINUTE_S)),
    What.BOOTED: (Reach(What.PERSON, 30 * _MINUTE_S), Reach(What.PLAY, 30 * _MINUTE_S)),
}
# What leads to what, as far as kinds tell: things of one second are told by it. TOLD is mostly of an end's course.
ORDER = (
    What.MAINTENANCE, What.PERSON, What.PLAY, What.REBOOT, What.XID, What.FAULT, What.BOOTED, What.LOST, What.DOUBTED,
    What.QUARANTINED, What.OUT_OF_MEMORY, What.PREEMPTED, What.PRESSURE, What.DRAINED, What.AFTERMATH, What.TOLD,
    What.ENDED,
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """`chain` begins with the first cause and ends with what is explained; of one that nothing explains it has one.

    `before` is what lies before the first of it, with nothing that links them.
    """

    chain: tuple[Entry, ...] = ()
    before: Entry | None = None

    @property
    def effect(self) -> Entry | None:
        """What is explained."""
        return self.chain[-1] if self.chain else None

    @property
    def first(self) -> Entry | None:
        """The first cause, None where nothing that is known explains the effect."""
        return self.chain[0] if len(self.chain) > 1 or (self.chain and explains_itself(self.chain[0])) else None


def explains_itself(entry: Entry) -> bool:
    """Whether it says itself why it came: all but ends, drains and losses do, and a finding's code says what it was."""
    return entry.what not in (What.ENDED, What.DRAINED, What.LOST, What.TOLD)


def first_cause(timeline: Sequence[Entry], effect: Entry | None, skew_s: float = 0.0) -> Cause:
    """The chain that leads to `effect`, which is an entry of the time line; see the rules above."""
    if effect is None:
        return Cause()
    chain = [effect]
    while (found := _cause_of(timeline, chain[0], effect, skew_s, chain)) is not None:
        chain.insert(0, found)
    return Cause(tuple(chain), _nearest(timeline, BEFORE.get(chain[0].what, ()), chain[0], effect, skew_s, chain))


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """By time, each once; within one second causes before effects, and the admitter's own in the order of its ledger.

    Entries of the admitter come in that order.
    """
    found = [*dict.fromkeys(entries)]
    seconds = [entry.at.replace(microsecond=0) for entry in found]
    ranks = [ORDER.index(entry.what) for entry in found]
    least: dict[datetime, int] = {}
    for number in reversed(range(len(found))):
        if found[number].source is Source.ADMISSION:
            second = seconds[number]
            ranks[number] = least[second] = min(ranks[number], least.get(second, ranks[number]))
    return tuple(
        found[number] for number in sorted(range(len(found)), key=lambda n: (seconds[n], ranks[n], found[n].at))
    )


def _cause_of(
    timeline: Sequence[Entry], effect: Entry, last: Entry, skew_s: float, chain: Sequence[Entry]
) -> Entry | None:
    for rank in CAUSES.get(effect.what, ()):
        if (found := _nearest(timeline, rank, effect, last, skew_s, chain)) is not None:
            return found
    return None


def _nearest(
    timeline: Sequence[Entry], rank: Sequence[Reach], effect: Entry, last: Entry, skew_s: float, chain: Sequence[Entry]
) -> Entry | None:
    found = [
        entry
        for entry in timeline
        if any(_within(reach, entry, effect, skew_s) for reach in rank)
        and entry not in chain
        and _of_the_same(entry, last)
    ]
    return min(found, key=lambda entry: abs(_before_s(entry, effect)), default=None)


def _within(reach: Reach, entry: Entry, effect: Entry, skew_s: float) -> bool:
    before_s = _before_s(entry, effect)
    # Of two alike the earlier one is the cause.
    after_s = (0.0 if entry.what is effect.what else max(reach.after_s, _RESOLUTION_S)) + skew_s
    return entry.what is reach.kind and -after_s <= before_s <= reach.before_s + skew_s


def _before_s(entry: Entry, effect: Entry) -> float:
    return (effect.at - entry.at).total_seconds()


def _of_the_same(entry: Entry, last: Entry) -> bool:
    """Whether it is of the same node, and of the same pod or of none."""
    return entry.node in ("", last.node) and (entry.pod in ("", last.pod) if last.pod else True)
