"""One kind of object as the cluster has it: listed once, then watched, with bookmarks; listed again when it must be."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpu_burnin.admission.client import ApiError, Gone, KubeApi, NotFound, Object
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.packed import newer
from gpu_burnin.admission.service.trouble import Trouble

# How long one watch lasts: the server ends it, and the next goes on from the same version.
WATCH_S = (300, 600)
FIRST_DELAY_S = 0.5
MOST_DELAY_S = 30.0


class Sink(Protocol):
    """Who keeps the objects. Calls come from one thread."""

    def begin(self) -> None:
        """A list begins: what is not put until `end` is not there any more."""

    def put(self, item: Object) -> None:
        """An object as it is now."""

    def drop(self, item: Object) -> None:
        """An object that was deleted, as it was."""

    def end(self) -> None:
        """The list is whole."""


@dataclass
class Reflector:
    """Keeps `sink` as the cluster has the objects of `path`. `tell` gets one sentence for each new trouble and its end.

    `missing` is said when the API server does not know the resource at all.
    """

    api: KubeApi
    path: str
    what: str
    sink: Sink
    tell: Callable[[str], None]
    metrics: Metrics
    selectors: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    wait: Callable[[float], object] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    synced: threading.Event = field(default_factory=threading.Event)
    last_heard_s: float = 0.0
    _version: str = ""
    # Whether the last watch ended before its time.
    _broke: bool = False
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._trouble = Trouble(self.tell)

    def run(self) -> None:
        """List and watch until stopped; trouble is told once and tried again with growing delays."""
        delay_s = FIRST_DELAY_S
        while not self._stopped:
            try:
                self._once()
                delay_s = FIRST_DELAY_S
            except Gone:
                self._version = ""
            except Exception as error:
                if self._stopped:
                    return
                self.metrics.add("watch_restarts", {"resource": self.what})
                self._say(error)
                self.wait(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(MOST_DELAY_S, delay_s * 2)

    def read_once(self) -> None:
        """List the objects and do not watch. Raises ApiError."""
        self._list()

    def stop(self) -> None:
        """Take nothing more in."""
        self._stopped = True

    def _once(self) -> None:
        if not self._version or (self._broke and self._older()):
            self._list()
        if self._stopped:
            return
        self._broke = True
        began_s, watch_s = self.monotonic_s(), random.randint(*WATCH_S)
        for kind, item in self.api.watch(self.path, self._version, watch_s, f"watch {self.what}", **self.selectors):
            if self._stopped:
                return
            self._well()
            if kind == "DELETED":
                self.sink.drop(item)
            elif kind != "BOOKMARK":
                self.sink.put(item)
            self._version = str(item["metadata"]["resourceVersion"])
        lasted_s = self.monotonic_s() - began_s
        self._broke = lasted_s < watch_s - 1.0
        if lasted_s < FIRST_DELAY_S:
            self.wait(FIRST_DELAY_S)

    def _older(self) -> bool:
        """Whether the cluster is older than what was heard of it: an etcd that was restored counts from before.

        A watch from the newer version would hear nothing until the versions have caught up.
        """
        version = self.api.version_of(self.path, f"list {self.what}", **self.selectors)
        if not newer(self._version, version):
            return False
        self.tell(
            f"{self.what}: the cluster is at version {version}, and was heard of at {self._version}: its etcd was "
            "restored to an older state; all are listed anew (holds and admissions of the time between are lost: see "
            "`muster status` and ask for them again)"
        )
        return True

    def _list(self) -> None:
        version = ""
        self.sink.begin()
        for page, listed_at in self.api.pages(self.path, f"list {self.what}", **self.selectors):
            version = listed_at
            if self._stopped:
                return
            for item in page:
                self.sink.put(item)
        self.sink.end()
        self.metrics.add("lists", {"resource": self.what})
        self._version = version
        self._well()
        self.synced.set()

    def _well(self) -> None:
        self.last_heard_s = self.monotonic_s()
        self._trouble.end(f"{self.what}: the API server answers again")

    def _say(self, error: Exception) -> None:
        sentence = str(error)
        if isinstance(error, NotFound) and self.missing:
            sentence = self.missing
        elif not isinstance(error, ApiError):
            # An object that this program cannot take in: list again, since the next one may do.
            self._version = ""
            sentence = f"{self.what}: cannot be read ({error!r}); report it as a fault of muster"
        self._trouble.begin((type(error), getattr(error, "status", 0)), sentence)
