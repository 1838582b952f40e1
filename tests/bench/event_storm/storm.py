"""Those who make the storm, in a process of its own that gives way to the writer."""

from __future__ import annotations

import base64
import http.client
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

from tests.bench.admission.api import Api
from tests.bench.event_storm.site import SECOND_CORE, STORMS_NICENESS
from tests.integration.kube import until

# An event of a kubelet is about 0.7 KiB in etcd; one transaction of the storm holds several.
EVENT_BYTES, EVENTS_A_TRANSACTION = 700, 20
STORM_THREADS = 4
EVENTS = "/api/v1/namespaces/default/events"


def straight(url: str, per_s: float, over: Event, counted: Synchronized[int]) -> None:
    """Write events into an etcd through its JSON gateway, several a transaction, no faster than asked."""
    _yield_to_others()
    value = base64.b64encode(os.urandom(EVENT_BYTES)).decode()
    period_s = STORM_THREADS * EVENTS_A_TRANSACTION / per_s

    def write(thread: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        due_s, number = time.monotonic(), 0
        while not over.is_set():
            names = [f"/registry/events/storm/{os.getpid()}-{thread}-{number + n}" for n in range(EVENTS_A_TRANSACTION)]
            keys = [base64.b64encode(name.encode()).decode() for name in names]
            puts = ",".join(f'{{"requestPut":{{"key":"{key}","value":"{value}"}}}}' for key in keys)
            connection.request("POST", "/v3/kv/txn", f'{{"success":[{puts}]}}')
            number += EVENTS_A_TRANSACTION
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"etcd refused an event: {answer.status} {body[:200]!r}")
            with counted.get_lock():
                counted.value += EVENTS_A_TRANSACTION
            due_s += period_s
            over.wait(max(0.0, due_s - time.monotonic()))

    in_threads(write, STORM_THREADS)


def through(apis: Sequence[Api], over: Event, counted: Synchronized[int]) -> None:
    """Create events as kubelets do, as many as the API server takes."""
    _yield_to_others()

    def write(thread: int) -> None:
        number = 0
        while not over.is_set():
            apis[thread].request("POST", EVENTS, an_event(f"gpu-{thread}", f"{os.getpid()}-{thread}-{number}"))
            with counted.get_lock():
                counted.value += 1
            number += 1

    in_threads(write, STORM_THREADS)


def an_event(node: str, name: str) -> dict[str, Any]:
    """As a kubelet writes it of its node."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "metadata": {"name": f"{node}.{name}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node, "namespace": "default"},
        "reason": "NodeHasDiskPressure",
        "message": f"Node {node} status is now: NodeHasDiskPressure",
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": "Warning",
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }


def _yield_to_others() -> None:
    os.sched_setaffinity(0, {SECOND_CORE})
    os.setpriority(os.PRIO_PROCESS, 0, STORMS_NICENESS)


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do it in so many threads, each with its number; raises what the first that failed raised."""
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))


@dataclass
class Storm:
    """A storm that runs within the block; `counted` are its events that were acknowledged."""

    target: Callable[..., None] | None
    arguments: Sequence[Any] = ()
    over: Event = field(default_factory=multiprocessing.Event)
    counted: Synchronized[int] = field(default_factory=lambda: multiprocessing.Value("q", 0))

    @property
    def pids(self) -> list[int]:
        """Its process, where there is one."""
        return [] if self.target is None or self.process.pid is None else [self.process.pid]

    def __enter__(self) -> Storm:
        """Start it, and wait until it blows."""
        if self.target is not None:
            arguments = (*self.arguments, self.over, self.counted)
            self.process = multiprocessing.Process(target=self.target, args=arguments)
            self.process.start()
            until("the first events", lambda: self.counted.value > 0 or not self.process.is_alive(), 60)
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Raises RuntimeError when it has failed."""
        if self.target is not None:
            self.over.set()
            self.process.join()
            if self.process.exitcode:
                raise RuntimeError("the storm has failed: its error is above")
