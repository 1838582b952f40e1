"""The fleet's pause switch: a ConfigMap that a person writes (muster pause)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_burnin.admission.client import Object
from gpu_burnin.api.names import PAUSE
from gpu_burnin.system.clock import parse_rfc3339


@dataclass
class Pause:
    """Whether the fleet is paused; see cache.Store."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _data: Mapping[str, str] | None = None
    _key: str = field(default="", init=False)

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        self._key = f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}".lstrip("/")
        data = {str(key): str(value) for key, value in (item.get("data") or {}).items()}
        changed, self._data = data != self._data, data
        return PAUSE if changed else ""

    def drop(self, name: str) -> str:
        """See cache.Store."""
        self._data = None
        return PAUSE

    def known(self) -> set[str]:
        """See cache.Store."""
        return set() if self._data is None else {self._key}

    def why(self) -> str:
        """Who paused the fleet until when and why; "" when it is not paused. An end that cannot be read is none."""
        if self._data is None:
            return ""
        until = self._data.get("until", "")
        try:
            if until and self.now() >= parse_rfc3339(until):
                return ""
        except ValueError:
            pass
        words = f"by {self._data.get('who') or 'somebody'}"
        words += f" until {until}" if until else ""
        return f"{words}: {self._data.get('why') or 'no reason given'}"[:300]
