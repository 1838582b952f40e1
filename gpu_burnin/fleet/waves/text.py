"""A roll in words: what it would do, how far it is, what became of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_burnin.fleet.waves.model import HostResult, Outcome, Roll, StepResult
from gpu_burnin.fleet.waves.workers import Workers
from gpu_burnin.system.host_names import name_hosts
from gpu_burnin.system.prose import listed, table_with_text

# Nodes of one kind that are named with their reason; the file has all.
_REASONS = 10
_WORDS = {
    Outcome.DONE: "done",
    Outcome.HELD: "held",
    Outcome.LEFT: "left behind",
    Outcome.FAILED: "FAILED",
}


def planned(roll: Roll, workers: Workers) -> list[str]:
    """What the roll will do."""
    shards = sum(map(len, roll.waves))
    lines = [
        f"{roll.order.playbook} on {_nodes(len(roll.hosts))} in {_count(len(roll.waves), 'wave')} of "
        f"{_count(shards, 'shard')}, {workers.count} at a time ({'; '.join(workers.bounds)})",
        f"it stops when {_limit(roll.order.most_failed)} of the nodes tried have failed; a burn-in's FAIL is a result, "
        "and a node that does not answer is left behind",
    ]
    lines += _before(roll)
    rows = []
    for number, wave in enumerate(roll.waves, 1):
        hosts = [host for shard in wave for host in shard]
        words = f"{_count(len(wave), 'shard')}: {name_hosts(hosts)}"
        if number == 1:
            words = ", ".join(f"{host} ({roll.canaries.get(host) or 'no GPU model'})" for host in hosts)
        rows.append((f"wave {number}", _nodes(len(hosts)), words))
    return [*lines, *table_with_text(rows, 120)]


def planned_to_json(
    roll: Roll, bounds: Sequence[str], at_once: int, results: Mapping[str, HostResult] | None
) -> dict[str, object]:
    """The waves for programs. `at_once` shards run; `results` are those of a roll that has begun, None of a new one."""
    return {
        "playbook": roll.order.playbook,
        "begun": results is not None,
        "nodes": len(roll.hosts),
        "before": roll.before,
        "tried": len(results or ()),
        "most_failed": roll.order.most_failed,
        "at_once": at_once,
        "bounds": list(bounds),
        "canaries": dict(roll.canaries),
        "waves": [[list(shard) for shard in wave] for wave in roll.waves],
    }


def progress(roll: Roll, results: Mapping[str, HostResult], wave: int, running: Sequence[str], left: str) -> str:
    """Where the roll is, in one line. `running` are shards with their plays."""
    counts = ", ".join(f"{count:,} {_WORDS[outcome]}" for outcome, count in tally(results).items() if count)
    parts = [
        f"wave {wave} of {len(roll.waves)}" if wave else "control plane",
        f"{len(results):,} of {_nodes(len(roll.hosts))} tried{f' ({counts})' if counts else ''}",
        *([f"running: {listed(running)}"] if running else []),
        left,
    ]
    return "; ".join(part for part in parts if part)


def summary(roll: Roll, results: Mapping[str, HostResult], stopped: str, command: str) -> list[str]:
    """What became of the nodes, and what to do next."""
    counts = tally(results)
    untried = len(roll.hosts) - len(results)
    told = [f"{counts[outcome]:,} {_WORDS[outcome]}" for outcome in Outcome if counts[outcome]]
    told += [f"{untried:,} not tried"] * bool(untried)
    lines = [f"roll {roll.id} of {_nodes(len(roll.hosts))}: {', '.join(told) or 'nothing was done'}"]
    lines += _before(roll)
    for outcome in (Outcome.FAILED, Outcome.LEFT, Outcome.HELD):
        found = [(host, result.why) for host, result in results.items() if result.outcome is outcome]
        lines += [f"  {host}  {_WORDS[outcome]}: {why}" for host, why in found[:_REASONS]]
        if len(found) > _REASONS:
            more = [host for host, _ in found[_REASONS:]]
            lines.append(f"  {len(more):,} more {_WORDS[outcome]}: {name_hosts(more)}")
    if stopped:
        lines.append(f"stopped: {stopped}")
    if stopped or untried or counts[Outcome.FAILED]:
        lines.append(f"to go on, when that is mended: {command}")
    elif counts[Outcome.LEFT]:
        lines.append(f"to have those that were left behind too, when they answer: {command}")
    return lines


def listing(results: Mapping[str, HostResult]) -> list[str]:
    """A line for each node."""
    return [f"{host}\t{result.outcome}\t{result.why}" for host, result in sorted(results.items())]


def by_worker(shards: Sequence[StepResult]) -> dict[str, list[StepResult]]:
    """The shards that each worker has done, "" for the controller."""
    found: dict[str, list[StepResult]] = {}
    for shard in sorted(shards, key=lambda one: (one.worker, one.name)):
        found.setdefault(shard.worker, []).append(shard)
    return found


def where(shards: Sequence[StepResult]) -> list[str]:
    """Which machine did how much, in words; nothing where there was no worker."""
    found = by_worker(shards)
    if not any(found):
        return []
    words = (
        f"{name or 'this controller'} {_count(len(done), 'shard')} of {_nodes(sum(len(one.hosts) for one in done))}"
        for name, done in found.items()
    )
    return [f"done by {', '.join(words)}"]


def to_json(
    roll: Roll, results: Mapping[str, HostResult], stopped: str, shards: Sequence[StepResult]
) -> dict[str, object]:
    """The report for programs: each node with its outcome, and each machine with its shards."""
    return {
        "roll": roll.id,
        "playbook": roll.order.playbook,
        "stopped": stopped,
        "nodes": len(roll.hosts),
        "untried": len(roll.hosts) - len(results),
        "outcomes": {str(outcome): count for outcome, count in tally(results).items()},
        "workers": {
            name or "localhost": {"shards": len(done), "nodes": sum(len(one.hosts) for one in done)}
            for name, done in by_worker(shards).items()
        },
        "hosts": {host: {"outcome": str(one.outcome), "why": one.why} for host, one in sorted(results.items())},
    }


def tally(results: Mapping[str, HostResult]) -> dict[Outcome, int]:
    """How many nodes ended in which way."""
    counts = dict.fromkeys(Outcome, 0)
    for result in results.values():
        counts[result.outcome] += 1
    return counts


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min" if hours else f"{rest} min"


def minutes(seconds: float | None) -> str:
    """A time left in words, "" for none."""
    if seconds is None:
        return ""
    return f"about {duration(seconds)} left"


def _limit(most_failed: str) -> str:
    """A count is reached, a share is passed: plan.stop."""
    return f"more than {most_failed}" if most_failed.endswith("%") else most_failed


def _before(roll: Roll) -> list[str]:
    were = "was" if roll.before == 1 else "were"
    said = f"{_nodes(roll.before)} {were} done by the calls before, and not among them; --again has all"
    return [said] if roll.before else []


def _nodes(count: int) -> str:
    return _count(count, "node")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
