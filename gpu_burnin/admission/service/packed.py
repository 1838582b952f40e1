"""Objects as compressed JSON: as they are, 7,500 Nodes and NodeAdmissions would take three times the memory."""

from __future__ import annotations

import json
import threading
import zlib
from typing import Any

from gpu_burnin.admission.client import Object


def newer(version: str, than: str) -> bool:
    """Whether one resourceVersion follows another: they are integers that count up (KEP-5504)."""
    return int(version or 0) > int(than or 0)


class Packed:
    """Objects with their version; our own writes are kept before the watch brings them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, bytes]] = {}
        # Of what is being written: the newest version that has come, and the newest of our own.
        self._writing: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def news(self, name: str, version: str, listed: bool) -> bool:
        """Whether keep() would keep it; the watch brings our own writes once more, which need no packing."""
        old = self._kept.get(name)
        return old is None or (version != old[0] if listed else newer(version, old[0]))

    def keep(self, name: str, version: str, document: object, listed: bool) -> tuple[bool, bool]:
        """Whether it is newer than what was kept, and whether what is new is to be looked at now."""
        data = zlib.compress(json.dumps(document, separators=(",", ":"), sort_keys=True).encode(), 1)
        with self._lock:
            if not self.news(name, version, listed):
                return False, False
            old = self._kept.get(name)
            self._kept[name] = (version, data)
            changed = old is None or old[1] != data
            writing = self._writing.get(name)
            if changed and writing is not None and not listed:
                self._writing[name] = version, writing[1]
                return True, False
            return True, changed

    def get(self, name: str) -> tuple[str, Any] | None:
        """Version and object."""
        kept = self._kept.get(name)
        return None if kept is None else (kept[0], json.loads(zlib.decompress(kept[1])))

    def drop(self, name: str) -> bool:
        """Forget it; whether it was there."""
        with self._lock:
            return self._kept.pop(name, None) is not None

    def begin(self, name: str) -> None:
        """See PackedStore.begin_writing."""
        with self._lock:
            self._writing[name] = "", ""

    def wrote(self, name: str, version: str) -> None:
        """See PackedStore.wrote."""
        with self._lock:
            self._writing[name] = self._writing[name][0], version

    def end(self, name: str) -> bool:
        """See PackedStore.end_writing."""
        with self._lock:
            return newer(*self._writing.pop(name))

    def names(self) -> set[str]:
        """All."""
        with self._lock:
            return set(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class PackedStore:
    """What the stores of packed objects have in common."""

    def __init__(self) -> None:
        self._packed = Packed()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        raise NotImplementedError

    def begin_writing(self, name: str) -> None:
        """One thread writes this object from now on.

        Until its end the watch's word is no news: most often it is that very write, which came back before its answer.
        """
        self._packed.begin(name)

    def wrote(self, item: Object) -> None:
        """The answer to a write of ours."""
        metadata = item["metadata"]
        self._packed.wrote(str(metadata["name"]), str(metadata["resourceVersion"]))
        self.put(item)

    def end_writing(self, name: str) -> bool:
        """Whether there is news all the same: something newer than the last write of ours.

        Nothing of others lies before that one: each write tests the version that it follows.
        """
        return self._packed.end(name)

    def known(self) -> set[str]:
        """See cache.Store."""
        return self._packed.names()

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def __len__(self) -> int:
        return len(self._packed)
