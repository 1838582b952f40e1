"""The agent's heartbeat: made in the loop that judges, while the threads that see go round, and sent by one that cannot
make any. So an agent that is stopped, hangs, or no longer sees, falls silent.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime

from gpu_burnin.api.heartbeat import RENEW_JITTER, RENEW_S, Heartbeat
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.api import NodeApi, NotYet
from gpu_burnin.node.watch.cluster import NO_CERTIFICATE_S, Backoff
from gpu_burnin.system.clock import rfc3339


class Turns:
    """How long ago a thread last went round: it turns, others ask. `begun`: it has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last_s = clock, clock()
        self.begun = False

    def turn(self) -> None:
        """Once more."""
        self._last_s, self.begun = self._clock(), True

    def since_s(self) -> float:
        """Seconds since the last turn; before the first, since it could have come."""
        return self._clock() - self._last_s


class Pulse:
    """When a heartbeat is due, of one boot and one process of the agent."""

    def __init__(
        self,
        boot_id: str,
        started: datetime,
        send: Callable[[Heartbeat], None],
        rng: random.Random | None = None,
    ) -> None:
        self._boot_id, self._started_at, self._send = boot_id, rfc3339(started), send
        self._rng, self._due_s = rng or random.Random(), -math.inf

    def beat(self, now_s: float, now: datetime) -> None:
        """Send one when it is time. Called for as long as all goes round, and not else."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + RENEW_S * self._rng.uniform(1 - RENEW_JITTER, 1 + RENEW_JITTER)
        self._send(Heartbeat(self._boot_id, self._started_at, rfc3339(now)))


class Sender:
    """Sends the newest heartbeat that it was given, once; what could not be sent while it was new is dropped."""

    def __init__(
        self,
        api: NodeApi,
        on_trouble: Callable[[str], None],
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._on_trouble, self._clock = api, on_trouble, clock
        self._backoff = Backoff(rng or random.Random())
        self._given = threading.Condition()
        self._next: tuple[float, Heartbeat] | None = None
        self._retry_s = 0.0
        self._troubled = False

    def give(self, heartbeat: Heartbeat) -> None:
        """Send this one instead of what is not sent yet."""
        with self._given:
            self._next = self._clock(), heartbeat
            self._given.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set."""
        while not stop.is_set():
            with self._given:
                left_s = self._retry_s - self._clock()
                if self._next is None or left_s > 0:
                    self._given.wait(left_s if self._next is not None else RENEW_S)
                    continue
            self.once()

    def once(self) -> bool:
        """Send what there is; whether nothing is left."""
        with self._given:
            given = self._next
            if given is not None and self._clock() - given[0] > RENEW_S:
                # Nobody makes them any more: to send it now would be a sign of life without life.
                given = self._next = None
        if given is None:
            return True
        try:
            self._api.renew(given[1])
        except (NotYet, GpuBurninError) as error:
            certificate = getattr(error, "certificate", True)
            self._log_once(str(error) if certificate else "")
            with self._given:
                self._retry_s = self._clock() + (self._backoff.next_s() if certificate else NO_CERTIFICATE_S)
            return False
        self._backoff.good()
        self._log_once("")
        with self._given:
            if self._next == given:
                self._next = None
        return True

    def _log_once(self, why: str) -> None:
        if why or self._troubled:
            self._on_trouble(why)
        self._troubled = bool(why)
