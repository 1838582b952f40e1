"""One leader by a Lease, as client-go's leader election does it; and what keeps a leader that is none from writing.

A leader may write until `WRITE_S` after it *sent* its last renewal, by three clocks: monotonic (which NTP does not
set), boottime (which goes on while the machine sleeps) and realtime. Others take the Lease when they have seen no
renewal for `LEASE_S` by their own clock, so that clocks that differ do no harm. In between nobody writes.
A write that was sent in time and comes late meets its `test` of the object's version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi
from gpu_burnin.api.names import LEASE, SYSTEM_NAMESPACE

# Of a takeover in 15 s at the most three are for the election and the first lists.
LEASE_S = 12.0
WRITE_S = 9.0
RENEW_S = 4.0
RETRY_S = 1.0
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
_CLOCKS = (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME)


class NotLeader(Exception):
    """This process may not write (any more)."""


def clocks() -> tuple[float, ...]:
    """The clocks by which a leader's time ends, in seconds."""
    return tuple(map(time.clock_gettime, _CLOCKS))


@dataclass
class Leadership:
    """Whether this process may write now. No other process, of this host or before this one, has its `identity`.

    `api` must not ask this object before it writes: it writes the Lease, of the name `lease`.
    """

    api: KubeApi
    identity: str
    clocks: Callable[[], tuple[float, ...]] = clocks
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    lease: str = LEASE
    _sent: tuple[float, ...] | None = None
    _version: str = ""
    _seen: tuple[str, float] = ("", 0.0)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _path(self) -> str:
        return f"{LEASES}/{self.lease}"

    def held(self) -> bool:
        """Whether the last renewal was sent less than WRITE_S ago, by every clock, none of which went back."""
        sent = self._sent
        return sent is not None and all(
            -1.0 < now - then < WRITE_S for now, then in zip(self.clocks(), sent, strict=True)
        )

    def check(self) -> None:
        """Raises NotLeader unless this process may write now."""
        if not self.held():
            raise NotLeader(f"{self.identity}: the Lease {self.lease} is not (or no longer) its own")

    def campaign(self) -> float:
        """Take or renew the Lease, once. Returns the seconds after which to do so again.

        Raises ApiError when the API server refuses or does not answer; what was held is held until its time is over.
        """
        with self._lock:
            sent = self.clocks()
            lease = self.api.find(self._path, f"read the Lease {SYSTEM_NAMESPACE}/{self.lease}")
            if lease is None:
                return self._take(sent, None)
            spec = lease.get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            if holder == self.identity:
                return self._take(sent, lease)
            self._sent = None
            version, monotonic_s = str(lease["metadata"].get("resourceVersion", "")), sent[0]
            if version != self._seen[0]:
                self._seen = (version, monotonic_s)
            lasts_s = float(spec.get("leaseDurationSeconds") or LEASE_S)
            left_s = self._seen[1] + lasts_s - monotonic_s
            if holder and left_s > 0:
                return min(RETRY_S, left_s)
            return self._take(sent, lease)

    def release(self) -> None:
        """Give the Lease back, so that another process need not wait; best effort."""
        with self._lock:
            if not self.held():
                return
            self._sent = None
            try:
                lease = self.api.find(self._path)
                spec = (lease or {}).get("spec") or {}
                if lease is not None and spec.get("holderIdentity") == self.identity:
                    self.api.replace(
                        self._path, {**lease, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}}
                    )
            except (ApiError, Conflict):
                return

    def _take(self, sent: tuple[float, ...], lease: Mapping[str, Any] | None) -> float:
        old = (lease or {}).get("spec") or {}
        again = old.get("holderIdentity") == self.identity
        time_text = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(LEASE_S),
            "renewTime": time_text,
            "acquireTime": old.get("acquireTime") if again else time_text,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if again or lease is None else 1),
        }
        try:
            if lease is None:
                meta = {"name": self.lease, "namespace": SYSTEM_NAMESPACE}
                document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
                self.api.create(LEASES, document, f"create the Lease {SYSTEM_NAMESPACE}/{self.lease}")
            else:
                document = {**lease, "spec": {**old, **spec}}
                self.api.replace(self._path, document, f"write the Lease {SYSTEM_NAMESPACE}/{self.lease}")
        except Conflict:
            # Somebody else wrote it between: he has it, or the next try will tell.
            self._sent = None
            return RETRY_S
        self._sent = sent
        return RENEW_S
