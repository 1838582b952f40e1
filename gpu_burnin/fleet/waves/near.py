"""A shard on a worker, from the controller: transmit it, process what comes back, and end what was left there."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import REPORTS, history
from gpu_burnin.fleet.feeds.limits import LIMITS, OTHERS, Limits
from gpu_burnin.fleet.feeds.turns import end_of
from gpu_burnin.fleet.roll import documents
from gpu_burnin.fleet.roll.documents import SCHEMA
from gpu_burnin.fleet.waves import far, grants, places, returned, sent, temporary
from gpu_burnin.fleet.waves.book import Book
from gpu_burnin.fleet.waves.grants import Swings
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, LIMIT, OUTCOMES, OUTPUT, PLAY
from gpu_burnin.fleet.waves.places import Place
from gpu_burnin.fleet.waves.stream import Expected, Log, Unfit, stream
from gpu_burnin.fleet.waves.workers import Workers
from gpu_burnin.report.file_names import REPORT, REPORT_HTML
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import write_atomic

# Of what came of a shard: what could not be ended on its worker, for whoever called.
WARNING = "warning"
# Of a state directory, as the role has it; notes of what runs on workers are in that of the roll.
_FEEDS, _NOTES = "feeds", "remote"
_UNKNOWN = "nobody knows what runs on a worker; look there, then remove it"
# Of all that is kept of a shard until it ends, for it and for each of its hosts: as much as one is said to need.
_MOST_KEPT_BYTES, _MOST_KEPT_OF_HOST_BYTES = 64 << 20, 1 << 20
# Of these, what became of the hosts.
_MOST_OUTCOMES_BYTES, _MOST_OUTCOMES_OF_HOST_BYTES = 1 << 20, 16 << 10
# Of what ansible-playbook prints there.
_MOST_OUTPUT_BYTES, _MOST_OUTPUT_OF_HOST_BYTES = 16 << 20, 64 << 10
_REPORT_FILES = (REPORT_HTML, REPORT)
# How long a shard waits until its worker ends what it left there.
_WAIT_S = 300.0


@dataclass(frozen=True)
class Far:
    """Where a shard runs: the worker, its home, and this controller's state directory and known_hosts."""

    place: Place
    home: str
    state_dir: str
    fleet_known_hosts: str
    # Nodes of its shards that take turns to swing their power; None where none does.
    swings: Swings | None = None


@dataclass(frozen=True)
class Note:
    """What may run on a worker. It is there before anything begins, and until all has ended.

    `swings`: nodes of it may swing their power on when it is ended, and their turns last until they do not.
    """

    step: str
    run: str
    project: str
    place: Place
    swings: bool = True
    schema: str = SCHEMA


class Lost(Exception):
    """The worker, or the connection to it, was lost, or what it sent is none: nobody knows how far the shard came."""


class NoTurn(Exception):
    """Some feed of a shard had no turn in time. Nothing was sent, its worker is well, and the shard can run here."""


def play(
    folder: Path, at: Far, playbook: str, project: str, arguments: Sequence[str], hosts: Sequence[str], inventory: Path
) -> tuple[int, Mapping[str, Any]]:
    """A shard's ansible-playbook on a worker; its exit code, and what the callback kept. Raises Lost, NoTurn and
    GpuBurninError.

    What comes back is of these hosts and of the names that are expected: a worker writes nothing else here.
    """
    run = f"{folder.name}-{uuid.uuid4().hex[:12]}"
    there = far.scratch(at.home, run)
    kept = folder.parents[1] / _NOTES / f"{run}.json"
    documents.write(kept, to_json(Note(folder.name, run, project, at.place)))
    asked = at.swings and at.swings.of(hosts)
    limits = _granted(folder, kept, asked) if asked and asked.feeds else None
    write_atomic(folder / PLAY, f"on {at.place.name}".encode())
    with temporary.runner(folder) as private, (folder / OUTPUT).open("ab") as output:
        made = Path(private) / "sent"
        made.mkdir()
        Book.keep_inventory(made, "inventory", sent.inventory(inventory.with_suffix(".json").read_bytes(), hosts))
        write_atomic(made / LIMIT, "".join(f"{host}\n" for host in hosts).encode())
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(at.fleet_known_hosts, made / "known_hosts")
        kwargs = _kwargs(there, at, playbook, project, arguments, limits)
        expected = {OUTCOMES, history.FILE, *(f"{REPORTS}/{host}/{name}" for host in hosts for name in _REPORT_FILES)}
        turns = {f"{_FEEDS}/{quote(host, safe='')}.json" for host in hosts}
        most_bytes = _MOST_KEPT_BYTES + len(hosts) * _MOST_KEPT_OF_HOST_BYTES
        log = Log(output, _MOST_OUTPUT_BYTES + len(hosts) * _MOST_OUTPUT_OF_HOST_BYTES)
        try:
            files = stream(at.place, project, run, private, kwargs, log, Expected(expected, turns, most_bytes))
        except Unfit as error:
            raise Lost(f"the worker {at.place.name} sent what no shard sends: {error}") from error
        rc = files.pop("rc", None)
    if rc is None:
        raise Lost(f"the worker {at.place.name} was lost")
    try:
        most_bytes = _MOST_OUTCOMES_BYTES + len(hosts) * _MOST_OUTCOMES_OF_HOST_BYTES
        outcomes = returned.outcomes(files.pop(OUTCOMES, b"{}"), hosts, most_bytes)
    except ValueError as error:
        raise Lost(f"the worker {at.place.name} sent an {OUTCOMES} that is none ({error})") from error
    problems = _keep(Path(at.state_dir), hosts, files)
    # A turn that was not given back there is of a node that may swing on.
    why = _end_after(folder, kept, swings=not turns.isdisjoint(files))
    problems += [why] * bool(why)
    if problems:
        with (folder / OUTPUT).open("ab") as output:
            output.write("".join(f"[WARNING]: {problem}\n" for problem in problems).encode())
    # A word of this machine, whatever the worker has sent under its name.
    return int(rc), {**outcomes, WARNING: why}


def slots(offered: Sequence[tuple[Far, Workers]], swings: Swings | None) -> tuple[list[Far], list[str]]:
    """A shard at a time each, and how many each worker has, in words.

    Of nodes that take turns no more run than have one at each feed: further ones would wait for those.
    """
    given = swings and swings.within()
    # One of each worker before a second one of any.
    every = sorted((number, at) for at, (_, bears) in enumerate(offered) for number in range(bears.count))
    kept = [at for _, at in every][: given.shards if given else None]
    turns = [given.bound] if given and len(kept) < len(every) else []
    lines = [
        f"on {one.place.name} {kept.count(at)} more at a time ({'; '.join([*turns, *bears.bounds])})"
        for at, (one, bears) in enumerate(offered)
    ]
    return [replace(offered[at][0], swings=given) for at in kept], lines


def left_by(roll: Path, steps: Sequence[str] | None = None) -> list[Path]:
    """The notes of what may run on workers, of these steps alone where they are named.

    Their names say of which step they are: none is read, since those of other steps may go meanwhile.
    """
    found = sorted((roll / _NOTES).glob("*.json"))
    return [path for path in found if steps is None or path.stem.rpartition("-")[0] in steps]


def end(path: Path) -> None:
    """End what a note says, and remove the note. Raises GpuBurninError where it may still run."""
    note = documents.read(Note, path, _UNKNOWN)
    try:
        places.ask(note.place, note.project, "end", note.run)
    except GpuBurninError as error:
        raise GpuBurninError(
            f"{note.step} may still run on {note.place.name}, so it does not run elsewhere: {error}; call this again "
            f"when that machine answers, or remove {path} when it is off for good"
        ) from error
    _release(path, swings=note.swings)


def _granted(folder: Path, note: Path, asked: Swings) -> Limits:
    """Turns for a shard, before anything of it runs. Raises NoTurn where a feed has none in time."""

    def waits(busy: str) -> None:
        write_atomic(folder / PLAY, f"waiting for turns to swing power: {busy}".encode())

    try:
        return grants.take(_feeds_of(note), note, asked, waits)
    except GpuBurninError as error:
        _release(note, swings=False)
        raise NoTurn(str(error)) from error


def _end_after(folder: Path, note: Path, *, swings: bool) -> str:
    """End what a shard left whose ansible-playbook has ended; why something may still run there, "" where nothing does.

    Its turns have an end from now on even where the worker does not answer: nobody grants waves there any more.
    """
    try:
        # Whoever ends it, this process or a later one, knows that no node swings on.
        documents.write(note, to_json(replace(documents.read(Note, note, _UNKNOWN), swings=swings)))
        end(note)
    except GpuBurninError:
        try:
            end_of(_feeds_of(note), note, datetime.now(UTC), swings=True)
        except GpuBurninError as error:
            return str(error)
        return end_patiently(folder)
    return ""


def _release(note: Path, *, swings: bool) -> None:
    end_of(_feeds_of(note), note, datetime.now(UTC), swings=swings)
    note.unlink(missing_ok=True)


def _feeds_of(note: Path) -> Path:
    """The folder of turns, in the state directory that has the note."""
    return note.parents[2] / _FEEDS


def end_patiently(folder: Path, wait_s: float = _WAIT_S, pause: Callable[[float], None] = time.sleep) -> str:
    """End what runs of a step left on workers; why it may still run there after `wait_s`, "" where all has ended."""
    until_s = time.monotonic() + wait_s
    for path in left_by(folder.parents[1], (folder.name,)):
        while path.exists():
            try:
                end(path)
            except GpuBurninError as error:
                if time.monotonic() >= until_s:
                    return str(error)
                write_atomic(folder / PLAY, b"waiting for its worker to end what it left there")
                pause(10)
    return ""


def _kwargs(
    there: str, at: Far, playbook: str, project: str, arguments: Sequence[str], limits: Limits | None
) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "fleet_state_dir": f"{there}/{far.STATE}",
        "fleet_known_hosts": f"{there}/sent/known_hosts",
        "gpu_burnin_wheelhouse": f"{at.home}/.cache/muster/wheelhouse",
        "gpu_burnin_reports_dir": f"{there}/{far.STATE}/{REPORTS}",
        **({} if limits is None else {LIMITS: dict(limits.by_feed), OTHERS: limits.others}),
    }
    words = ["--pdeathsig", "KILL", str(Path(sys.executable).with_name("ansible-playbook")), playbook]
    words += [*arguments, "-e", json.dumps(fixed), "--limit", f"@{there}/sent/{LIMIT}"]
    return {
        "project_dir": project,
        "binary": "setpriv",
        "cmdline": shlex.join(words),
        "inventory": "sent/inventory",
        "envvars": {
            FOLDER_VARIABLE: there,
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": far.sockets(there),
        },
        "only_failed_event_data": True,
        "suppress_env_files": True,
        "fact_cache_type": "memory",
    }


def _keep(state: Path, hosts: Sequence[str], files: Mapping[str, bytes]) -> list[str]:
    """Take a shard's reports, rates and history into the controller's own; what could not be taken into the last two.

    Raises OSError where a report cannot be written.
    """
    reports, problems = [], list[str]()
    for host in hosts:
        for name in _REPORT_FILES:
            if (content := files.get(f"{REPORTS}/{host}/{name}")) is not None:
                path = state / REPORTS / host / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, content)
                reports += [path] * (name == REPORT)
    try:
        if reports:
            from gpu_burnin.fleet.baseline import rates  # it needs numpy

            problems += rates.take_in(state / rates.FILE, reports, datetime.now(UTC)).problems
        if (content := files.get(history.FILE)) is not None:
            problems += _keep_history(state / history.FILE, hosts, content)
    except GpuBurninError as error:
        problems.append(str(error))
    return problems


def _keep_history(path: Path, hosts: Sequence[str], content: bytes) -> list[str]:
    now = datetime.now(UTC)
    plays = history.of_stranger(content, hosts, now)
    oldest = rfc3339(now - timedelta(seconds=history.KEPT_S))
    found = [history.record(path, one, results, oldest) for one, results in plays.items()]
    return [problem for problem in found if problem]
