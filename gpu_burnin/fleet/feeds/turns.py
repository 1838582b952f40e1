"""Turns of nodes to swing their power, which all plays of this controller take in one folder.

A turn is a file of a node: at which feed it stands, whose process it is, and when its waves are over at the latest.
It counts while that process runs; that for a shard on a worker, while the note exists that it may run there, and where
somebody has removed the note, as long again as waves may last. Shards on workers have one less than a feed bears, and
those that wait keep no node of this machine waiting.
That of a process which was killed counts until its waves are over, since the node swings on without it; so does one of
another machine, of which nobody here can tell.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.roll import documents
from gpu_burnin.fleet.roll.documents import SCHEMA
from gpu_burnin.fleet.roll.lock import Owner, alone, may_run, process
from gpu_burnin.system.clock import parse_rfc3339, rfc3339
from gpu_burnin.system.codec import to_json

# How much longer than planned waves may take; those of a node that was granted none have not begun by then.
SLACK_S = 60.0
_UNKNOWN = "nobody knows whether its node swings; look there with `gpu-burnin status`, then remove it"
# The queues of a feed: of all, and of those that wait for turns with notes before they come into it.
_QUEUE, _QUEUE_OF_NOTES = "queue", "workers"
# Most is said of so many nodes; the others are counted.
_NAMED = 3


@dataclass(frozen=True)
class Turn:
    """Of one node: since when, and until when its waves may last once its process is gone.

    `note`: the file that says that a shard may run on a worker, of whose nodes this is for one at a time; "" for none.
    `released`: the shard has ended, or its note is gone, and `until` counts from then.
    """

    node: str
    feed: str
    since: str
    until: str
    owner: Owner
    note: str = ""
    released: bool = False
    schema: str = SCHEMA


@dataclass(frozen=True)
class Turns:
    """The turns in a folder, under limits. `now`, `monotonic_s` and `pause` are the clocks.

    `pause` is between two looks: nobody tells that a turn has ended whose process was killed, or whose time is over.
    """

    directory: Path
    limits: Limits
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    pause: Callable[[], None] = lambda: time.sleep(1)

    def take(
        self,
        node: str,
        feed: str,
        waves_s: float,
        wait_s: float,
        waits: Callable[[str], None],
        note: Path | None = None,
    ) -> str:
        """Have a turn for waves of `waves_s` as soon as there is room; "" then, and why not after `wait_s`.

        `waits` is called once, with the nodes that are waited for, where there is no room at first. A turn that the
        node has from before is taken over. With a `note` it counts while that exists, and not this process. Raises
        GpuBurninError where the folder, or a turn in it, cannot be used.
        """
        until_s, told, first, ahead = self.monotonic_s() + wait_s, False, False, note is None
        with self._queue(feed, _QUEUE) as queue, self._queue(feed, _QUEUE_OF_NOTES if note else "") as behind:
            while True:
                # The first in the queue looks at the turns; all others look whether it is gone, which costs nothing.
                # Who waits for a turn with a note is in the queue of all only while there is room: nodes of this
                # machine do not wait behind it.
                ahead = ahead or _locked(behind)
                busy = self._noted(feed, node) if ahead and note else ""
                first = first or (ahead and not busy and _locked(queue))
                busy = self._try(node, feed, waves_s, note) if first else busy
                if first and not busy:
                    return ""
                if first and note:
                    fcntl.flock(queue, fcntl.LOCK_UN)
                    first = False
                late = self.monotonic_s() >= until_s
                if late or not told:
                    # Looked at without the lock, for a sentence alone: whoever takes a turn does so in _try, under it.
                    # A turn that is given back or written meanwhile is whole or gone, and in the sentence or not.
                    busy = busy or self._busy(feed, self.counted()) or f"{self._where(feed)} others wait before it"
                if late:
                    return busy
                if not told:
                    told = True
                    waits(busy)
                self.pause()

    def give_back(self, node: str) -> None:
        """End the turn of a node whose waves are over, where it is this process's. Raises GpuBurninError."""
        with alone(self.directory):
            path = self._path(node)
            if path.exists() and documents.read(Turn, path, _UNKNOWN).owner == process(os.getpid()):
                path.unlink()

    def counted(self) -> list[Turn]:
        """The turns that count now. Raises GpuBurninError for one that cannot be read."""
        return [turn for turn in self._all() if self._counts(turn)]

    def _try(self, node: str, feed: str, waves_s: float, note: Path | None) -> str:
        """Take the turn if there is room; else who has it."""
        with alone(self.directory):
            self._release_orphans()
            others = [one for one in self._all() if one.node != node]
            counted = [one for one in others if self._counts(one)]
            if busy := self._busy(feed, counted) or (self._busy_of_notes(feed, counted) if note else ""):
                return busy
            now = self.now()
            until = now + timedelta(seconds=waves_s + SLACK_S)
            mine = Turn(node, feed, rfc3339(now), rfc3339(until), process(os.getpid()), str(note or ""))
            documents.write(self._path(node), to_json(mine))
            for over in others:
                if over not in counted:
                    self._path(over.node).unlink(missing_ok=True)
        return ""

    def _noted(self, feed: str, node: str) -> str:
        """Who has all turns of a feed, or all that shards on workers may have; "" where one is left."""
        with alone(self.directory):
            self._release_orphans()
            others = [one for one in self.counted() if one.node != node]
            return self._busy_of_notes(feed, others) or self._busy(feed, others)

    def _busy(self, feed: str, counted: Iterable[Turn]) -> str:
        """Who has all turns of a feed, in words; "" where one is left."""
        return self._taken(feed, counted, self.limits.of(feed), "may swing")

    def _busy_of_notes(self, feed: str, counted: Iterable[Turn]) -> str:
        """Who has those of shards on workers, in words; one of the feed's is left to the plays of this machine."""
        noted = [one for one in counted if one.note]
        return self._taken(feed, noted, self.limits.of(feed) - 1, "may swing for shards on workers")

    def _taken(self, feed: str, counted: Iterable[Turn], most: int, what: str) -> str:
        there = [one for one in counted if self.limits.counted_as(one.feed) == self.limits.counted_as(feed)]
        if len(there) < most:
            return ""
        named = [self._describe(one) for one in there[:_NAMED]]
        more = [f"{len(there) - _NAMED} more"] if len(there) > _NAMED else []
        return f"{self._where(feed)} {most} {what} at a time: {', '.join([*named, *more])}"

    def _where(self, feed: str) -> str:
        if self.limits.counted_as(feed):
            return f"at the feed {feed}"
        return "at all feeds without a limit of their own" if self.limits.by_feed else "in the fleet"

    def _describe(self, turn: Turn) -> str:
        owner = turn.owner
        if turn.released:
            return f"{turn.node} until {turn.until} at the latest (a shard on a worker that has ended, by {turn.note})"
        if turn.note:
            return f"{turn.node} since {turn.since} (a shard on a worker, by {turn.note})"
        if _is_here(owner) and not may_run(owner):
            return f"{turn.node} until {turn.until} at the latest (its play, process {owner.pid}, is gone)"
        return f"{turn.node} since {turn.since} (process {owner.pid} on {owner.machine})"

    def _counts(self, turn: Turn) -> bool:
        over = _time(self._path(turn.node), "until", turn.until) <= self.now()
        if turn.note:
            # Without a release nobody knows since when its note is gone.
            return not turn.released or not over
        return (_is_here(turn.owner) and may_run(turn.owner)) or not over

    def _release_orphans(self) -> None:
        """Give turns whose note a person has removed an end: from now on, as its nodes may just have begun to swing."""
        for turn in self._all():
            if turn.note and not turn.released and not Path(turn.note).exists():
                path = self._path(turn.node)
                documents.write(path, to_json(_released(turn, path, self.now())))

    def _all(self) -> list[Turn]:
        found = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                found.append(documents.read(Turn, path, _UNKNOWN))
            except GpuBurninError:
                # Given back since it was listed: who only looks has no lock.
                if path.exists():
                    raise
        return found

    def _path(self, node: str) -> Path:
        return self.directory / f"{quote(node, safe='')}.json"

    @contextmanager
    def _queue(self, feed: str, kind: str) -> Iterator[int]:
        """The file by whose lock the first of those that wait at a feed is told from the others; -1 without a kind."""
        if not kind:
            yield -1
            return
        path = self.directory / f"{quote(self.limits.counted_as(feed), safe='')}.{kind}"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise GpuBurninError(f"{path} cannot be used ({error.strerror}); no node swings without it") from error
        try:
            yield fd
        finally:
            os.close(fd)


def end_of(directory: Path, note: Path, now: datetime, *, swings: bool) -> None:
    """End the turns of a shard of which nothing runs any more, before its note is removed. Raises GpuBurninError.

    `swings`: its nodes may swing on, so that the turns count until waves that begin now are over. Those that were
    released while the note stands keep their end, since the shard had ended: nobody has granted waves since.
    """
    if not directory.exists():
        return
    with alone(directory):
        for path in sorted(directory.glob("*.json")):
            turn = documents.read(Turn, path, _UNKNOWN)
            if turn.note != str(note):
                continue
            ended = turn.released and note.exists()
            if not swings or (ended and _time(path, "until", turn.until) <= now):
                path.unlink()
            elif not ended:
                documents.write(path, to_json(_released(turn, path, now)))


def _released(turn: Turn, path: Path, now: datetime) -> Turn:
    """The turn of a file, which ends when waves that begin now are over. Raises GpuBurninError."""
    lasts = _time(path, "until", turn.until) - _time(path, "since", turn.since)
    return replace(turn, since=rfc3339(now), until=rfc3339(now + lasts), released=True)


def _time(path: Path, key: str, text: str) -> datetime:
    """A time in the file of a turn. Raises GpuBurninError."""
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise GpuBurninError(f"{path}: {key} is {text!r}, and {error}; remove it") from error


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_here(owner: Owner) -> bool:
    return owner.machine == socket.gethostname()
