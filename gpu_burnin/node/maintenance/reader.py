"""The reader of the cloud's notices: it polls in a thread of its own, and `latest` never waits. Standard library only.

What it last heard is also in a file, for `gpu-burnin status` and whoever is about to start a burn-in.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import NONE, SCHEDULED, STARTED, UNKNOWN, first
from gpu_burnin.node.maintenance import aws, azure, gcp
from gpu_burnin.node.maintenance.service import NotKnown, Provider, Service, sentence, unknown
from gpu_burnin.node.unit import RUN_DIR
from gpu_burnin.settings.config import Config
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic

PROVIDERS: Mapping[str, tuple[str, Provider]] = {
    azure.NAME: (azure.BASE, azure.read),
    gcp.NAME: (gcp.BASE, gcp.read),
    aws.NAME: (aws.BASE, aws.read),
}
KEPT = RUN_DIR / "maintenance.json"
# Google's last notice comes 60 seconds ahead, Azure's of a preemption 30.
POLL_S = 20.0
# How long an answer holds while none follows: longer than Azure's slowest call.
FRESH_S = azure.DEADLINE_S + 2 * POLL_S


@dataclass(frozen=True)
class _Heard:
    """The last good answer and when (monotonic), and what has gone wrong since."""

    answer: Maintenance | None = None
    at_s: float = 0.0
    problem: str = ""


class Reader:
    """Asks one provider again and again. `now` and `monotonic_s` are the clocks."""

    def __init__(
        self,
        provider: str,
        base: str = "",
        kept: Path | None = KEPT,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        own_base, self._read = PROVIDERS[provider]
        self.provider = provider
        self._service = Service(base or own_base)
        self._kept, self._now, self._monotonic_s = kept, now, monotonic_s
        self._heard = _Heard()
        self._stop = threading.Event()

    def start(self) -> None:
        """Poll from now on, until `stop`."""
        threading.Thread(target=self._run, name="maintenance", daemon=True).start()

    def stop(self) -> None:
        """Poll no more; a call under way is left to its deadline."""
        self._stop.set()

    def latest(self) -> Maintenance:
        """What is known now: the same value as long as the provider says the same. `fetched_at` is since when."""
        heard = self._heard
        if heard.answer is None:
            return unknown(self.provider, heard.problem or "its metadata service has not answered yet")
        return believed(heard.answer, self._monotonic_s() - heard.at_s, self._now(), heard.problem)

    def poll(self) -> None:
        """Ask once, within the provider's deadline."""
        now, before = self._now(), self._heard.answer
        try:
            found = first(self._read(self._service, now)) or Maintenance(self.provider, NONE)
            if found.state == UNKNOWN:
                raise NotKnown(found.message.removeprefix(f"{self.provider}: "))
        except NotKnown as error:
            self._heard = replace(self._heard, problem=str(error))
            return
        if before is not None and replace(found, fetched_at=before.fetched_at) == before:
            found = before
        else:
            found = replace(found, fetched_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"))
        self._heard = _Heard(found, self._monotonic_s())
        if self._kept is not None:
            # Whoever misses the file takes it for unknown.
            with contextlib.suppress(OSError):
                keep(found, self._kept)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except Exception as error:
                # No answer, however strange, may end the thread: what follows would be silence.
                self._heard = replace(
                    self._heard, problem=f"its answer cannot be read ({type(error).__name__}: {error})"
                )
            self._stop.wait(POLL_S)


def reader(config: Config) -> Reader | None:
    """The reader that the configuration asks for, None where there is no provider to ask."""
    if config.maintenance_provider == "none":
        return None
    return Reader(config.maintenance_provider, config.maintenance_url)


def kept(config: Config, now: datetime, path: Path | None = None) -> Maintenance | None:
    """What the reader of another process last heard; None where there is no provider to ask."""
    if config.maintenance_provider == "none":
        return None
    try:
        file = path or KEPT
        found = from_json(Maintenance, parse_json(read_bytes(file)), tolerant=True)
        age_s = now.timestamp() - file.stat().st_mtime
    except (OSError, Misfit, ValueError):
        return unknown(config.maintenance_provider, "its notices are not read; is gpu-burnin-watch.service running?")
    if found.provider != config.maintenance_provider:
        return unknown(config.maintenance_provider, "its notices are not read yet")
    return believed(found, age_s, now, "its notices are not read any more; is gpu-burnin-watch.service running?")


def keep(maintenance: Maintenance, path: Path) -> None:
    """Write the file, or only its time where it says the same. Raises OSError."""
    content = canonical_json(to_json(maintenance)) + b"\n"
    with contextlib.suppress(OSError):
        if read_bytes(path) == content:
            os.utime(path)
            return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomic(path, content)


def believed(answer: Maintenance, age_s: float, now: datetime, problem: str) -> Maintenance:
    """What an answer of that age is worth: itself, or, when nothing has followed, "unknown".

    A window that was announced stays one until its end, or until its source says so: a service that has gone silent
    may be part of it.
    """
    if age_s <= FRESH_S:
        return answer
    problem = problem or "its metadata service does not answer any more"
    if answer.state in (SCHEDULED, STARTED) and not (answer.not_after and parse_rfc3339(answer.not_after) <= now):
        return replace(answer, message=sentence(f"{answer.message or 'a window'} (since then: {problem})"))
    return unknown(answer.provider, problem)
