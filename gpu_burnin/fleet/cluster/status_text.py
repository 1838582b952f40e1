"""The state of a fleet as text: the counts, why nodes are not ready, then each of them as far as there is room."""

from __future__ import annotations

from gpu_burnin.admission.decide.fabric import FABRIC_ALONE
from gpu_burnin.admission.decide.finding import LEDGER_RESTORED
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.record import State
from gpu_burnin.api.remedies import admitters
from gpu_burnin.fleet.cluster.admissions import Snapshot
from gpu_burnin.fleet.cluster.rows import NEEDS_PERSON, Row, names_of
from gpu_burnin.fleet.cluster.times import ago, to_the_minute
from gpu_burnin.fleet.monitoring.numbers import Numbers
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, table_with_text, wrap

# More nodes than these are told in groups alone.
_MOST_ROWS, _MOST_COMING = 30, 10
_MOST_NAMES = 4
_MOST_ALERTS = 12
_LEAST_REASON = 40
_WOULD_CLOSE = (State.NEW, State.SUSPECT, State.QUARANTINED, State.HELD)
COMING = "Comes by itself, or with a burn-in that passes"
# A first burn-in that failed leaves no Node and no evidence: only the node and the controller's reports know of it.
UNHEARD = "No evidence yet: not tested, or no PASS; `muster why NODE` says which"


def render(fleet: Snapshot, width: int = STANDARD_WIDTH, numbers: Numbers | None = None) -> str:
    """Lines of at most `width` characters, but for longer words. `numbers` is what monitoring said, where asked."""
    lines = [line for text in (summary(fleet), *notes(fleet)) for line in wrap(text, width, rest="  ")]
    if not fleet.rows:
        who = "site.yml writes one for each GPU node of the inventory"
        if fleet.attached is not None:
            who = "`muster attach approve` writes one for each node that you approve"
        lines += wrap(f"There is no NodeAdmission: {who}.", width, rest="  ")
    if numbers is not None and numbers.source:
        lines += ["", *_alerts(numbers, width)]
    if fleet.waiting:
        lines += ["", *_reasons(fleet, width)]
        person = [row for row in fleet.waiting if row.needs_person]
        coming = [row for row in fleet.waiting if not row.needs_person]
        for title, rows, most in (
            ("A person is needed:", person, _MOST_ROWS),
            (f"{COMING}:", [row for row in coming if row.state != State.NEW], _MOST_COMING),
            (f"{UNHEARD}:", [row for row in coming if row.state == State.NEW], _MOST_COMING),
        ):
            if rows:
                lines += ["", title, *_rows(rows[:most], width)]
            if len(rows) > most:
                lines += wrap(f"and {len(rows) - most:,} more: --json or --html has all", width, "  ", "  ")
        first = (person or fleet.waiting)[0]
        lines += ["", f"All of one node: `muster why {first.name}`"]
    return "\n".join(lines) + "\n"


def summary(fleet: Snapshot) -> str:
    """How many nodes there are, in which states."""
    count = len(fleet.rows)
    states = ", ".join(f"{number:,} {state}" for state, number in fleet.states.items())
    return f"{count:,} node{'s' * (count != 1)}{': ' if states else ''}{states}"


def notes(fleet: Snapshot) -> tuple[str, ...]:
    """The pause, the leader and the oldest proof, each in a sentence; what keeps nodes out comes first."""
    found = [*_attached(fleet)]
    if fleet.pause is not None:
        until = f" until {fleet.pause['until']}" if fleet.pause.get("until") else ""
        found.append(
            f"PAUSED by {fleet.pause.get('who') or 'somebody'}{until}: {fleet.pause.get('why') or 'no reason given'}; "
            "no node is let in or tested until `muster resume`; what is faulty is still taken out"
        )
    if doubted := [row.name for row in fleet.rows if row.code == LEDGER_RESTORED]:
        verb, whose = ("take", "their agents have") if len(doubted) > 1 else ("takes", "its agent has")
        found.append(
            f"RESTORED: etcd was restored to an older state; {names_of(doubted, _MOST_NAMES)} {verb} no new work "
            f"until {whose} spoken or a test is done"
        )
    if alone := [row for row in fleet.rows if row.code == FABRIC_ALONE]:
        open_ = sum(row.state == State.READY for row in alone)
        found.append(
            f"ALONE: no test with another node came about in time for "
            f"{names_of([row.name for row in alone], _MOST_NAMES)}; "
            f"{open_:,} of {len(alone):,} were let in all the same, as fabric.alone says"
        )
    if fleet.brake:
        found.append(f"BRAKE: {fleet.brake}")
    found += [f"SHORT: {text}" for text in fleet.short]
    leader = fleet.leader
    if leader.alive:
        found.append(f"leader: {leader.name}, renewed {ago(leader.renewed_s or 0.0)} ago")
    else:
        who = f"the last was {leader.name}," if leader.name else "the last one left"
        last = f"; {who} {ago(leader.renewed_s)} ago" if leader.renewed_s is not None else ""
        found.append(f"NO LEADER: no admitter works on this fleet{last}; {admitters(fleet.mode)}")
    oldest = fleet.oldest_proof
    if oldest is not None:
        found.append(f"oldest proof of a ready node: {oldest.name}, {to_the_minute(oldest.proven) or 'none'}")
    return tuple(found)


def _attached(fleet: Snapshot) -> tuple[str, ...]:
    """That the cluster is of others, what is weaker there, and what would happen."""
    if fleet.attached is None:
        return ()
    of = fleet.attached
    where = f"attached to a cluster of others, {of.mode}: GPU Nodes are {of.gpu_nodes.words}"
    if of.mode is Mode.OBSERVING:
        would = [row.name for row in fleet.waiting if row.state in _WOULD_CLOSE]
        whom = f"; with --enforce {names_of(would, _MOST_NAMES)} would be kept from work" if would else ""
        said = f"{where}; no node is kept from work{whom}"
    else:
        said = f"{where}; an admin can take the gate away, no kubelet waits for a PASS (docs/operations/attach.md)"
    alarms = (("GATE OPEN", fleet.gate), ("NO NODE JOINS", fleet.joins), ("AUTHORITY ENDS", fleet.authority))
    return (*(f"{what}: {why}" for what, why in alarms if why), said)


def reason(row: Row) -> str:
    """Why a node is as it is, and what comes next."""
    message = row.message.removeprefix(f"{row.name}: ")
    said = short_uuids(": ".join(part for part in (row.code, message) if part)) or "-"
    coming = f"; next: {short_uuids(row.next)}" if row.next else ""
    return f"{said}{coming}"


def _alerts(numbers: Numbers, width: int) -> list[str]:
    lines = [line for text in numbers.problems for line in wrap(f"MISSING: {text}", width, rest="  ")]
    if numbers.alerts is None:
        return lines
    active = numbers.active
    lines.append(f"{len(active):,} alert{'s' * (len(active) != 1)} by {numbers.source}{':' if active else ''}")
    if active:
        rows = [
            (alert.severity, to_the_minute(alert.since), alert.name, alert.summary) for alert in active[:_MOST_ALERTS]
        ]
        lines += table_with_text([("severity", "since", "alert", "what"), *rows], width, least=_LEAST_REASON)
    if len(active) > _MOST_ALERTS:
        lines.append(f"and {len(active) - _MOST_ALERTS:,} more: --json has all")
    return lines


def _reasons(fleet: Snapshot, width: int) -> list[str]:
    rows = [("state", "reason", "nodes", "")]
    for (state, code), nodes in fleet.reasons.items():
        marked = f"{state} *" if state in NEEDS_PERSON else state
        rows.append((marked, code or "-", f"{len(nodes):,}", names_of(nodes, _MOST_NAMES)))
    return ["Not ready (* a person is needed):", *table_with_text(rows, width)]


def _rows(rows: list[Row], width: int) -> list[str]:
    shown = [("node", "state", "since", "why")]
    shown += [(row.name, row.state, to_the_minute(row.since) or "-", reason(row)) for row in rows]
    return table_with_text(shown, width, least=_LEAST_REASON)
