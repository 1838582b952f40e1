"""The heartbeats of all agents: when each was last seen to change, by a clock that counts the time of listening.

No time of another host is compared with this one's, as in client-go's leader election and in the node lifecycle
controller. And what nobody could hear is no silence: the clock stands still while the watch is not heard of.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.view import HeartbeatState

# A watch that is well says something each minute (bookmarks): a longer pause was not listened to.
MOST_PAUSE_S = 90.0


@dataclass(slots=True)
class _Beat:
    """What a heartbeat says and when it began to say it, by the listening clock; `text` None: there is none."""

    text: str | None
    boot_id: str
    changed_s: float
    fresh: bool = False
    # The node waits for it, and is looked at when it comes: its silence was told, or nobody lets it in before.
    awaited: bool = False
    reported: bool = False
    # Whether its agent is of a version that sends them: an older one, taken back, leaves the object as it is.
    counts: bool = True


class Heartbeats:
    """AgentHeartbeats by node. `silent_after_s` is when silence is told."""

    def __init__(self, silent_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_after_s, self._clock = silent_after_s, clock
        self._beats: dict[str, _Beat] = {}
        self._listened_s = 0.0
        self._heard_s = -math.inf
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store. A node is looked at when its agent is heard in a new boot, or when it waits for that.

        A list tells what there is and not since when, so it is no sign of life.
        """
        name, spec = str(item["metadata"]["name"]), item.get("spec") or {}
        text = "\0".join(str(spec.get(key, "")) for key in ("bootID", "startedAt", "renewTime"))
        with self._lock:
            self._advance(self._clock())
            old = self._beats.get(name)
            if old is not None and old.text == text:
                return ""
            beat = _Beat(text, str(spec.get("bootID", "")), self._listened_s, fresh=not listed)
            beat.counts = old is None or old.counts
            new_boot = old is None or old.boot_id != beat.boot_id
            if listed and old is not None:
                # It may be of any age, and older than what was heard: an etcd may have been restored.
                beat.changed_s, beat.reported, beat.awaited = old.changed_s, old.reported, old.awaited
                beat.fresh = old.fresh and not new_boot
            self._beats[name] = beat
            awaited = not listed and old is not None and (old.awaited or old.reported)
            return name if new_boot or awaited else ""

    def drop(self, name: str) -> str:
        """See cache.Store."""
        with self._lock:
            self._beats.pop(name, None)
        return name

    def known(self) -> set[str]:
        """See cache.Store."""
        with self._lock:
            return {name for name, beat in self._beats.items() if beat.text is not None}

    def state_of(self, name: str, *, expected: bool, awaited: bool) -> HeartbeatState | None:
        """What was heard of a node; None where nobody expects yet that its agent sends heartbeats, and none was seen.

        The silence of one that never came begins when it is first expected. `awaited`: the node waits for the next.
        """
        with self._lock:
            beat = self._beats.get(name)
            if beat is None:
                if not expected:
                    return None
                beat = self._beats[name] = _Beat(None, "", self._listened_s)
            if not beat.counts:
                beat.counts = True
                if not beat.fresh:
                    beat.changed_s, beat.reported = self._listened_s, False
            beat.awaited = awaited
            return HeartbeatState(beat.boot_id, self._listened_s - beat.changed_s, beat.fresh)

    def sends_none(self, name: str) -> None:
        """Its agent says that it is of a version without heartbeats: what came before counts no more.

        The silence of the next version begins when it is first expected.
        """
        with self._lock:
            if (beat := self._beats.get(name)) is not None and beat.counts:
                beat.counts, beat.fresh = False, False

    def forget(self, name: str) -> None:
        """The node is gone, and so is what was expected of it."""
        with self._lock:
            if (beat := self._beats.get(name)) is not None and beat.text is None:
                del self._beats[name]

    def listened(self, heard_s: float) -> list[str]:
        """The watch was last heard of at `heard_s` of the clock; the nodes whose agents have fallen silent since."""
        with self._lock:
            self._advance(heard_s)
            limit_s = self._listened_s - self._silent_after_s
            silent = {n: beat for n, beat in self._beats.items() if not beat.reported and beat.changed_s < limit_s}
            for beat in silent.values():
                beat.reported = True
            return list(silent)

    def _advance(self, heard_s: float) -> None:
        pause_s = heard_s - self._heard_s
        if pause_s > 0:
            self._heard_s = heard_s
            self._listened_s += pause_s if pause_s <= MOST_PAUSE_S else 0.0
