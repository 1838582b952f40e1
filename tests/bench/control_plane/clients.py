"""Clients that write through the balancer while something is done to the fleet, and what that cost them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from tests.integration.fleet import Fleet, wait_until
from tests.integration.writer import Writer

from .health import wait_for_health
from .table import Cost

CLIENTS = 3
# One more asks anew after so long; the others wait for an answer as long as they have to.
PROBE_TIMEOUT_S = 2.0
GO_ON_S = 120
# A namespace goes with all that is in it: so long, and the longer the more was written.
REMOVED_S, REMOVED_PER_S = 180, 20


class Clients:
    """Writers, each in a namespace of its own, and a probe, which asks anew where they wait, while the block runs."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.writers = [Writer(fleet, f"writer-{number}") for number in range(CLIENTS)]
        self.probe = Writer(fleet, "probe", PROBE_TIMEOUT_S)
        self._stack = ExitStack()

    def __enter__(self) -> Clients:
        # What a run that was killed has left, or what is still being removed.
        self.remove()
        with ExitStack() as stack:
            for writer in self._all():
                stack.enter_context(writer)
            self.write_on(1)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write_on(self, writes: int) -> None:
        """Wait until each has had so many more writes acknowledged."""
        wanted = [(writer, len(writer.seen.acknowledged) + writes) for writer in self._all()]

        def there() -> bool:
            return all(len(writer.seen.acknowledged) >= want for writer, want in wanted)

        wait_until(f"each client to have {writes} more writes acknowledged", there, timeout_s=GO_ON_S)

    def acknowledged(self) -> set[tuple[str, str]]:
        """Namespace and name of each write that was acknowledged until now."""
        return {(writer.namespace, name) for writer in self._all() for name in list(writer.seen.acknowledged)}

    def there(self) -> set[tuple[str, str]]:
        """Namespace and name of each that is there."""
        names = [writer.namespace for writer in self._all()]
        found = [(name, one) for name in names for one in self.fleet.get("configmaps", "-n", name)["items"]]
        return {(namespace, one["metadata"]["name"]) for namespace, one in found}

    def lost(self) -> int:
        """How many of those that were acknowledged until now are not there."""
        return len(self.acknowledged() - self.there())

    def cost(self, lost: int, took_s: float) -> Cost:
        """What they met. The requests that the probe gave up are no failed ones: it was told nothing."""
        seen = [writer.seen for writer in self.writers]
        failed = [len(one.errors) for one in seen]
        acknowledged = len(self.acknowledged())
        errors = Counter(error for one in seen for error in one.errors)
        gaps_s = max(one.longest_gap_s for one in seen), self.probe.seen.longest_gap_s
        return Cost(acknowledged, lost, sum(failed), max(failed), *gaps_s, took_s, dict(errors))

    def remove(self) -> None:
        """Remove what they wrote, to its end."""
        names = [writer.namespace for writer in self._all()]
        timeout_s = REMOVED_S + len(self.acknowledged()) // REMOVED_PER_S
        done = self.fleet.kubectl("delete", "namespace", *names, "--ignore-not-found", f"--timeout={timeout_s}s")
        assert done.rc == 0, done.err

    def _all(self) -> list[Writer]:
        return [*self.writers, self.probe]


def under_clients(fleet: Fleet, act: Callable[[Clients], str]) -> tuple[Cost, str]:
    """Do it while clients write, until the fleet is healthy and each of them has written again."""
    clients = Clients(fleet)
    try:
        with clients:
            started_s = time.monotonic()
            seen = act(clients)
            wait_for_health(fleet)
            took_s = time.monotonic() - started_s
            clients.write_on(10)
        return clients.cost(clients.lost(), took_s), seen
    finally:
        clients.remove()
