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
7. Ranks of a gang end when one of them does: what happened to a node of another rank (`gang`) is the cause where the
   pod's own node has none. That its program ended itself is one where nothing else is.
8. What merely lies before the first of the chain (BEFORE), as a play that changed something else, is told as that, and
   never as its cause: nothing links them.
9. Events are told in full seconds: within one of them whatever may be the cause is taken to come first.
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
    """How long before its effect a cause may lie, and how long after it, since it is told of late.

    `gang`: it may be of another node of the job.
    """

    kind: What
    before_s: float
    after_s: float = 0.0
    gang: bool = False


_FINDINGS = (Reach(What.XID, 15 * _MINUTE_S, _MINUTE_S), Reach(What.FAULT, 15 * _MINUTE_S, _MINUTE_S))
# Of another node of the gang: a collective operation ends, or waits for its own timeout, soon after.
_OF_GANG = (
    Reach(What.LOST, 5 * _MINUTE_S, 10 * _MINUTE_S, gang=True),
    Reach(What.QUARANTINED, 5 * _MINUTE_S, 2 * _MINUTE_S, gang=True),
    Reach(What.DOUBTED, 5 * _MINUTE_S, _MINUTE_S, gang=True),
)
# Why a node that was chosen is not let: nodes that are out now, since whenever.
_OUT_NOW = tuple(
    Reach(kind, 30 * _DAY_S, _DAY_S, gang=True) for kind in (What.QUARANTINED, What.DOUBTED, What.LOST, What.PERSON)
)
_RESOLUTION_S = 1.0
_LATE_BOOT = Reach(What.BOOTED, 15 * _MINUTE_S, 30 * _MINUTE_S)
CAUSES: Mapping[What, tuple[tuple[Reach, ...], ...]] = {
    What.ENDED: (
        (
            Reach(What.OUT_OF_MEMORY, 2 * _MINUTE_S, _MINUTE_S),
            Reach(What.PREEMPTED, 10 * _MINUTE_S, _MINUTE_S),
            Reach(What.PRESSURE, 10 * _MINUTE_S, _MINUTE_S),
            Reach(What.EVICTED, 10 * _MINUTE_S, _MINUTE_S),
            Reach(What.DEADLINE, 2 * _MINUTE_S, _MINUTE_S),
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
        _OF_GANG,
        (Reach(What.AFTERMATH, _MINUTE_S, _MINUTE_S),),
        (Reach(What.EXITED, _MINUTE_S, _MINUTE_S),),
    ),
    What.WAITS: (
        (Reach(What.PREEMPTED, 10 * _MINUTE_S, _MINUTE_S), Reach(What.EVICTED, 10 * _MINUTE_S, _MINUTE_S)),
        _OUT_NOW,
    ),
    What.EVICTED: (
        (Reach(What.IMAGE, _HOUR_S), Reach(What.REFUSED, _HOUR_S)),
        _OF_GANG,
        (Reach(What.UNPLACED, _HOUR_S),),
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
    What.QUARANTINED, What.IMAGE, What.REFUSED, What.UNPLACED, What.OUT_OF_MEMORY, What.PREEMPTED, What.PRESSURE,
    What.EVICTED, What.DEADLINE, What.DRAINED, What.AFTERMATH, What.EXITED, What.TOLD, What.ENDED, What.WAITS,
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


def first_cause(
    timeline: Sequence[Entry], effect: Entry | None, skew_s: float = 0.0, gang: frozenset[str] = frozenset()
) -> Cause:
    """The chain that leads to `effect`, which is an entry of the time line; see the rules above.

    `gang` are the nodes of the job that it is of.
    """
    if effect is None:
        return Cause()
    chain = [effect]
    while (found := _cause_of(timeline, skew_s, chain, gang)) is not None:
        chain.insert(0, found)
    return Cause(tuple(chain), _nearest(timeline, BEFORE.get(chain[0].what, ()), skew_s, chain, gang))


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


def _cause_of(timeline: Sequence[Entry], skew_s: float, chain: Sequence[Entry], gang: frozenset[str]) -> Entry | None:
    for rank in CAUSES.get(chain[0].what, ()):
        if (found := _nearest(timeline, rank, skew_s, chain, gang)) is not None:
            return found
    return None


def _nearest(
    timeline: Sequence[Entry], rank: Sequence[Reach], skew_s: float, chain: Sequence[Entry], gang: frozenset[str]
) -> Entry | None:
    """Of those that may be the cause of the first of the chain."""
    effect, last = chain[0], chain[-1]
    found = [
        entry
        for entry in timeline
        if any(
            _within(reach, entry, effect, skew_s)
            and _of_the_same(entry, effect, last, gang if reach.gang else frozenset())
            for reach in rank
        )
        and entry not in chain
    ]
    return min(found, key=lambda entry: abs(_before_s(entry, effect)), default=None)


def _within(reach: Reach, entry: Entry, effect: Entry, skew_s: float) -> bool:
    before_s = _before_s(entry, effect)
    # Of two alike the earlier one is the cause.
    after_s = (0.0 if entry.what is effect.what else max(reach.after_s, _RESOLUTION_S)) + skew_s
    return entry.what is reach.kind and -after_s <= before_s <= reach.before_s + skew_s


def _before_s(entry: Entry, effect: Entry) -> float:
    return (effect.at - entry.at).total_seconds()


def _of_the_same(entry: Entry, effect: Entry, last: Entry, gang: frozenset[str]) -> bool:
    """Whether it is of the same node, or of another of the gang, and of the same pod or of none."""
    of_node = entry.node in ("", effect.node or last.node) or entry.node in gang
    # What a job waits for, or was taken off its nodes for, is of no node: each pod of it counts.
    of_node = of_node or bool(entry.pod and not (last.pod or effect.node))
    return of_node and (entry.pod in ("", last.pod) if last.pod else True)
