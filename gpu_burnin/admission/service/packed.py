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


class PackedStore:
    """What the stores of packed objects have in common; our own writes are kept before the watch brings them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, bytes]] = {}
        # Of what is being written: the newest version that has come, and the newest of our own.
        self._writing: dict[str, tuple[str, str]] = {}
        self._guard = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        raise NotImplementedError

    def begin_writing(self, name: str) -> None:
        """One thread writes this object from now on.

        Until its end the watch's word is no news: most often it is that very write, which came back before its answer.
        """
        with self._guard:
            self._writing[name] = "", ""

    def wrote(self, item: Object) -> None:
        """The answer to a write of ours."""
        name, version = str(item["metadata"]["name"]), str(item["metadata"]["resourceVersion"])
        with self._guard:
            self._writing[name] = self._writing[name][0], version
        self.put(item)

    def end_writing(self, name: str) -> bool:
        """Whether there is news all the same: something newer than the last write of ours.

        Nothing of others lies before that one: each write tests the version that it follows.
        """
        with self._guard:
            return newer(*self._writing.pop(name))

    def known(self) -> set[str]:
        """See cache.Store."""
        with self._guard:
            return set(self._kept)

    def version_of(self, name: str) -> str:
        """The version that is kept, "" for none."""
        kept = self._kept.get(name)
        return kept[0] if kept is not None else ""

    def drop(self, name: str) -> str:
        """See cache.Store."""
        with self._guard:
            return name if self._kept.pop(name, None) is not None else ""

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def _is_news(self, name: str, version: str, listed: bool) -> bool:
        """Whether it would be kept; the watch brings our own writes once more, which need no packing."""
        old = self._kept.get(name)
        return old is None or (version != old[0] if listed else newer(version, old[0]))

    def _keep(self, name: str, version: str, document: object, listed: bool) -> tuple[bool, bool]:
        """Whether it is newer than what was kept, and whether what is new is to be looked at now."""
        data = zlib.compress(json.dumps(document, separators=(",", ":"), sort_keys=True).encode(), 1)
        with self._guard:
            if not self._is_news(name, version, listed):
                return False, False
            old = self._kept.get(name)
            self._kept[name] = (version, data)
            changed = old is None or old[1] != data
            writing = self._writing.get(name)
            if changed and writing is not None and not listed:
                self._writing[name] = version, writing[1]
                return True, False
            return True, changed

    def _find(self, name: str) -> dict[str, Any] | None:
        """The object, with its version."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        found: dict[str, Any] = json.loads(zlib.decompress(kept[1]))
        found["metadata"]["resourceVersion"] = kept[0]
        return found
