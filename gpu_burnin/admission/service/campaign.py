"""A service of which one process on each API-server host stands for election, and one leads at a time."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound
from gpu_burnin.admission.service.http import Pages
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.leader import RETRY_S, Leadership
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.trouble import Trouble
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError

# A slow answer is worth more than a second try: an overloaded API server would never give one to those who hang up.
# The leader's time goes on by when it sent its renewal, however late the answer comes.
_LEASE_TIMEOUT_S = (1.0, 5.0)
# A candidate asks so often at the least that it takes the Lease within seconds of its end.
_MOST_RETRY_S = 2.0


class Term(Protocol):
    """One leadership."""

    def start(self) -> None:
        """Begin to work."""

    def stop(self) -> None:
        """End: nothing is written from now on."""

    def dead_threads(self) -> list[str]:
        """Names of the threads that ended though the term goes on."""


T = TypeVar("T", bound=Term)


class Campaign(Generic[T]):
    """Campaigns for the Lease until stopped; while it leads, a term works.

    `what` is the service in words, `host` its host's name. `begin` makes a term, which asks its argument before each
    write: that raises NotLeader. Raises GpuBurninError at the start, and when a part of the term has ended by a fault.
    """

    def __init__(
        self,
        what: str,
        host: str,
        kubeconfig: Path,
        lease: str,
        address: tuple[str, int],
        journal: Journal,
        metrics: Metrics,
        begin: Callable[[Callable[[], None]], T],
    ) -> None:
        """Read the kubeconfig; raises ApiError when it cannot be used."""
        self._what, self._host, self._address, self._begin = what, host, address, begin
        self.journal, self.metrics = journal, metrics
        self.term: T | None = None
        # Not the host's name alone: a process that comes after this one on the same host is another candidate.
        self._lease_api = KubeApi(kubeconfig, retries=0, timeout_s=_LEASE_TIMEOUT_S)
        self.leadership = Leadership(self._lease_api, f"{host}_{uuid.uuid4()}", lease=lease)
        self._stopping = threading.Event()
        self._trouble = Trouble(journal.say)

    def run(self) -> None:
        """Until `stop`, or SIGTERM and SIGINT where this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        pages = Pages(self._address, self.metrics.text, self.unhealthy, self.leadership.held)
        self.journal.say(
            f"{self._host}: {self._what} stands for election at {self._lease_api.server}; health and metrics "
            f"at {self._address[0]}:{pages.port}",
            identity=self.leadership.identity,
        )
        try:
            self._campaign()
        finally:
            self._end_term()
            self.leadership.release()
            pages.close()
            self.journal.say(f"{self._host}: {self._what} has ended")

    def stop(self) -> None:
        """End; the Lease is given back."""
        self._stopping.set()

    def unhealthy(self) -> str:
        """Why this process should be started again; a lost API server is no reason."""
        term = self.term
        dead = term.dead_threads() if term is not None else []
        return f"threads that ended: {', '.join(dead)}" if dead else ""

    def _campaign(self) -> None:
        retry_s = RETRY_S
        while not self._stopping.is_set():
            if why := self.unhealthy():
                # It would lead on and do only a part of the work.
                raise GpuBurninError(
                    f"{self._host}: {why}; {self._what} ends, so that systemd starts it again and "
                    "another one may lead; report it with the lines before",
                    EXIT_INCONCLUSIVE,
                )
            try:
                delay_s = self.leadership.campaign()
                retry_s = RETRY_S
                self._trouble.end("the Lease can be read and written again")
                if self.leadership.held() and self.term is None:
                    self._begin_term()
            except ApiError as error:
                self._say(error)
                delay_s = retry_s
                retry_s = min(_MOST_RETRY_S, retry_s * 1.5)
            if self.term is not None and not self.leadership.held():
                self.journal.say("leads no more: its time is over, and it writes nothing; it stands for election again")
                self._end_term()
            self._stopping.wait(delay_s)

    def _say(self, error: ApiError) -> None:
        sentence = str(error)
        if isinstance(error, NotFound):
            sentence = (
                f"{self._lease_api.server}: the namespace {SYSTEM_NAMESPACE} of the Lease {self.leadership.lease} is "
                "missing, so nobody leads; site.yml makes it, and where attached `muster attach`"
            )
        self._trouble.begin(error.status, sentence)

    def _begin_term(self) -> None:
        self.term = self._begin(self.leadership.check)
        self.metrics.add("leaderships")
        self.term.start()

    def _end_term(self) -> None:
        term, self.term = self.term, None
        if term is not None:
            term.stop()
