"""The agent's two ways to the API server: it watches its own Node by name, and keeps the own annotations as wanted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.api import GONE, NOT_FOUND, NodeApi, NotYet, annotations_of

# Each watch ends after a time of its own, so that agents that began together do not stay together.
WATCH_S = (240.0, 480.0)
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 1.0, 60.0
# Where a certificate is missing there is nobody to spare.
NO_CERTIFICATE_S = 2.0
_IDLE_S = 30.0
_LEAST_BETWEEN_S = 1.0


class Backoff:
    """How long to wait after failures in a row: doubling, and each time a random part of it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._failures = rng, 0

    def good(self) -> None:
        """Something worked."""
        self._failures = 0

    def next_s(self) -> float:
        """The wait after one more failure, in seconds."""
        most = min(_MOST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return self._rng.uniform(most / 2, most)


class Watcher:
    """Follows the own Node. `on_node` gets it with each change, None where there is none; `on_trouble` why not."""

    def __init__(
        self,
        api: NodeApi,
        on_node: Callable[[dict[str, Any] | None], None],
        on_trouble: Callable[[str, bool], None],
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._on_node, self._on_trouble = api, on_node, on_trouble
        self._rng = rng or random.Random()
        self._backoff = Backoff(self._rng)

    def run(self, stop: threading.Event) -> None:
        """List and watch until `stop` is set."""
        while not stop.is_set():
            stop.wait(self.once())

    def once(self) -> float:
        """One list and one watch to its end; how long to wait then, in seconds.

        Listed each time, which is one object: an etcd that was restored counts its versions from an older one, and a
        watch from ours would hear nothing until they have caught up.
        """
        try:
            found = self._api.listed()
            self._on_node(found.node)
            for change in self._api.watch(found.version, self._rng.uniform(*WATCH_S)):
                self._on_node(change.node)
            self._backoff.good()
        except NotYet as error:
            if error.status != GONE:
                self._on_trouble(str(error), error.certificate)
                return self._backoff.next_s() if error.certificate else NO_CERTIFICATE_S
        except GpuBurninError as error:
            self._on_trouble(str(error), True)
            return self._backoff.next_s()
        return self._rng.uniform(0.0, _FIRST_BACKOFF_S)


class Writer:
    """Keeps annotations of the own Node as they are wanted: what differs is written, and tried until it is."""

    def __init__(self, api: NodeApi, on_trouble: Callable[[str, bool], None], rng: random.Random | None = None) -> None:
        self._api, self._on_trouble = api, on_trouble
        self._backoff = Backoff(rng or random.Random())
        self._changed = threading.Condition()
        self._wanted: dict[str, str | None] = {}
        self._found: Mapping[str, Any] | None = None
        self._retry_s = 0.0

    def want(self, wanted: Mapping[str, str | None]) -> None:
        """What the annotations should be from now on; None for none. Other keys are left alone."""
        with self._changed:
            if wanted != self._wanted:
                self._wanted = dict(wanted)
                # What is new does not wait for what went wrong before.
                self._retry_s = 0.0
                self._changed.notify_all()

    def found(self, node: Mapping[str, Any] | None) -> None:
        """How the Node is now, None where there is none."""
        with self._changed:
            self._found = None if node is None else annotations_of(node)
            self._changed.notify_all()

    def missing(self) -> dict[str, str | None]:
        """What has to be written."""
        with self._changed:
            return self._missing()

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set."""
        while not stop.is_set():
            with self._changed:
                left_s = self._retry_s - time.monotonic()
                if not self._missing() or left_s > 0:
                    self._changed.wait(left_s if left_s > 0 else _IDLE_S)
                    continue
            self.once()

    def once(self) -> bool:
        """Write what has to be written; whether that is done."""
        missing = self.missing()
        if not missing:
            return True
        try:
            self._api.annotate(missing)
        except (NotYet, GpuBurninError) as error:
            if not (isinstance(error, NotYet) and error.status == NOT_FOUND):
                self._on_trouble(str(error), getattr(error, "certificate", True))
            with self._changed:
                self._retry_s = time.monotonic() + self._backoff.next_s()
            return False
        self._backoff.good()
        with self._changed:
            # Somebody else who keeps changing them is answered once a second.
            self._retry_s = time.monotonic() + _LEAST_BETWEEN_S
            if self._found is not None:
                self._found = {**self._found, **missing}
        return True

    def _missing(self) -> dict[str, str | None]:
        if self._found is None:
            return {}
        return {key: value for key, value in self._wanted.items() if self._found.get(key) != value}
