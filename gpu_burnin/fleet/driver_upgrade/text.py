"""A run in words: what it would do, why it stops, what became of each host and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_burnin.fleet.driver_upgrade.book import Entry, Outcome, Run
from gpu_burnin.fleet.driver_upgrade.plan import HostView
from gpu_burnin.fleet.roll import batches

_WORDS = {
    Outcome.DONE: "done",
    Outcome.GIVEN_BACK: "NOT DONE",
    Outcome.FAILED: "FAILED",
    Outcome.UNDER_WAY: "FAILED",
}


def planned(run: Run, hosts: Sequence[HostView]) -> list[str]:
    """One line for each host: what is loaded and asked for, what works on it, in which batch it is."""
    views = {host.name: host for host in hosts}
    names, lines = iter(run.hosts), []
    for number, size in enumerate(run.batches, 1):
        for _ in range(size):
            host = views[next(names)]
            loaded, work = host.loaded or "none", ", ".join(host.work) or "none"
            # Without what to do about it, which is this run.
            why = host.differs.partition(";")[0] or "a run before has begun it"
            lines.append(f"{host.name}  batch {number}  driver {loaded} -> {host.wanted}: {why}; work on it: {work}")
    return [*lines, *(f"{left.node}  left as it is: {left.why}" for left in run.left)]


def failed(run: Run, entries: Mapping[str, Entry]) -> list[Entry]:
    """The hosts of the run that stay out of work. Asked between two batches, or at the end: nothing is under way."""
    return [entry for entry in _of(run, entries) if entry.open]


def stop(run: Run, entries: Mapping[str, Entry], most_failures: int) -> str:
    """Why no further batch is begun, "" where one may be."""
    return batches.stop([entry.node for entry in failed(run, entries)], most_failures, "driver_upgrade_max_failures")


def summary(run: Run, entries: Mapping[str, Entry], command: str) -> list[str]:
    """One line for each host, then what to do next. `command` is how the playbook is called, without its hosts."""
    mine = {entry.node: entry for entry in _of(run, entries)}
    lines = [_line(name, mine.get(name)) for name in run.hosts]
    lines += [f"{left.node}  left as it is: {left.why}" for left in run.left]
    bad = [entry.node for entry in failed(run, entries)]
    again = [name for name in run.hosts if name not in mine or mine[name].outcome is not Outcome.DONE]
    if again:
        ready = f"mend what {', '.join(bad)} failed of, then " if bad else ""
        lines.append(f"to go on: {ready}{command} -l {','.join(again)}")
    changed = [entry for entry in mine.values() if entry.outcome is not Outcome.GIVEN_BACK]
    old = sorted({entry.before for entry in changed if entry.before not in ("", run.wanted)})
    if bad and old:
        hosts = ",".join(entry.node for entry in changed)
        lines.append(
            f"to go back: set fleet_nvidia_driver_version: {' or '.join(old)} for {hosts}, then {command} -l {hosts}"
        )
    return lines


def _of(run: Run, entries: Mapping[str, Entry]) -> list[Entry]:
    return [entry for name in run.hosts if (entry := entries.get(name)) is not None and entry.run == run.id]


def _line(name: str, entry: Entry | None) -> str:
    if entry is None:
        return f"{name}  untouched: the run ended before it"
    versions = f"{entry.before or 'none'} -> {entry.wanted}"
    why = entry.why or (f"it was lost at the step {entry.step}" if entry.outcome is Outcome.UNDER_WAY else "")
    out = "; it stays out of work" if entry.open else ""
    return f"{name}  {_WORDS[entry.outcome]}  driver {versions}{f': {why}' if why else ''}{out}"
