"""MachinePowers and ProvisioningRequests as the watches bring them: see admission/service/cache.py."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.service.cache import key_of
from gpu_burnin.admission.service.packed import newer
from gpu_burnin.api.machine_power import MachineError, MachinePower, parse_machine
from gpu_burnin.scaler.requests import Asking, asking


class Machines:
    """MachinePowers by name. One that cannot be read is kept as none, and told once."""

    def __init__(self, tell: Callable[[str], None] = lambda sentence: None) -> None:
        self._tell = tell
        self._kept: dict[str, MachinePower] = {}
        self._versions: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        name, version = str(item["metadata"]["name"]), str(item["metadata"]["resourceVersion"])
        with self._lock:
            known = self._versions.get(name, "")
            if version == known or not (listed or newer(version, known)):
                return ""
            self._versions[name] = version
            try:
                self._kept[name] = parse_machine(item)
            except MachineError as error:
                self._kept.pop(name, None)
                self._tell(str(error))
        return name

    def drop(self, name: str) -> str:
        """See cache.Store."""
        with self._lock:
            self._versions.pop(name, None)
            self._kept.pop(name, None)
        return name

    def known(self) -> set[str]:
        """See cache.Store."""
        with self._lock:
            return set(self._versions)

    def get(self, name: str) -> MachinePower | None:
        """One of them."""
        return self._kept.get(name)

    def all(self) -> dict[str, MachinePower]:
        """All of them by name."""
        with self._lock:
            return dict(self._kept)


class Askings:
    """The ProvisioningRequests of our class, by namespace and name."""

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name
        self._kept: dict[str, Asking] = {}
        self._versions: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        key, version = key_of(item), str(item["metadata"]["resourceVersion"])
        with self._lock:
            known = self._versions.get(key, "")
            if version == known or not (listed or newer(version, known)):
                return ""
            self._versions[key] = version
            try:
                found = asking(item, self._class_name)
            except (AttributeError, KeyError, TypeError, ValueError):
                found = None
            had = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
        return key if had is not None or found is not None else ""

    def drop(self, name: str) -> str:
        """See cache.Store."""
        with self._lock:
            self._versions.pop(name, None)
            return name if self._kept.pop(name, None) is not None else ""

    def known(self) -> set[str]:
        """See cache.Store."""
        with self._lock:
            return set(self._versions)

    def get(self, key: str) -> Asking | None:
        """One of them."""
        return self._kept.get(key)

    def all(self) -> dict[str, Asking]:
        """All of them by namespace and name."""
        with self._lock:
            return dict(self._kept)
