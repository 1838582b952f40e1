"""Compiled kernels that the workers of one run share: the first that needs some compiles them, the others wait.

A file each in a directory of the run's own, named by all that decides its content (compiler's version, target, options,
source) and with the SHA-256 of its content in front. What does not match is not used: it is compiled again, and
said.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_burnin.device import nvrtc
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic

# Compiling takes 1.5 s of one core: a process that holds the lock longer is stopped or stuck; nobody waits for it.
WAIT_S = 15.0
_LOOK_EVERY_S = 0.02
_MOST_BYTES = 64 << 20

Compile = Callable[[str, str], bytes]


class Refused(Exception):
    """A file in the store that is not what its name says."""


class KernelStore:
    """Compiled sources of one process, and where those of the run's other processes are (None: it shares with none).

    `compile(source, target)` gives machine code. `refused` says in one sentence each what was found damaged.
    """

    def __init__(self, compile: Compile, version: str, target: str, folder: Path | None, wait_s: float = WAIT_S):
        self._compile, self._folder, self._wait_s = compile, folder, wait_s
        self.version, self.target = version, target
        self.compiled = self.shared = 0
        self.refused: list[str] = []
        self._images: dict[str, bytes] = {}

    def prepare(self, sources: Sequence[str]) -> None:
        """Have all of these compiled. What another process is compiling is left to it until the rest is done."""
        left = [source for source in sources if not self._take(source, 0.0)]
        for source in left:
            self.image(source)

    def image(self, source: str) -> bytes:
        """Machine code of a source. Raises DeviceError when it cannot be compiled."""
        if not self._take(source, self._wait_s):
            self._make(source)
        return self._images[self.key(source)]

    def key(self, source: str) -> str:
        """Name of what is compiled from a source: a hash of all that decides it."""
        parts = (self.version, self.target, *nvrtc.OPTIONS, source)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _take(self, source: str, wait_s: float) -> bool:
        """Get it from this process, from the store, or compile it for all; False when another is still at it."""
        key = self.key(source)
        if key in self._images:
            return True
        if self._folder is None:
            self._make(source)
            return True
        if self._load(key):
            return True
        try:
            with _locked(self._folder / f"{key}.lock", wait_s) as free:
                if free and not self._load(key):
                    image = self._make(source)
                    write_atomic(self._folder / key, _framed(key, image))
                return free
        except OSError as error:  # nothing can be shared there: each process compiles for itself
            self._folder = None
            self.refused.append(f"kernels cannot be shared between the workers: {error}")
            return self._take(source, wait_s)

    def _load(self, key: str) -> bool:
        """Whether the store had it, whole and right."""
        assert self._folder is not None
        try:
            image = read_image(self._folder / key, key)
        except FileNotFoundError:
            return False
        except (Refused, OSError) as error:
            message = f"the compiled kernels in {self._folder / key} were compiled again: {error}"
            if message not in self.refused:
                self.refused.append(message)
            return False
        self._images[key] = image
        self.shared += 1
        return True

    def _make(self, source: str) -> bytes:
        key = self.key(source)
        if key not in self._images:
            self._images[key] = self._compile(source, self.target)
            self.compiled += 1
        return self._images[key]


def read_image(path: Path, key: str) -> bytes:
    """The content of a file of the store. Raises Refused with the reason, OSError when it cannot be read."""
    content, owner = read_bytes(path, _MOST_BYTES, follow=False), path.lstat().st_uid
    if owner != os.geteuid():
        raise Refused(f"it belongs to user {owner}")
    head, _, image = content.partition(b"\n")
    try:
        header = parse_json(head)
    except ValueError:
        raise Refused("its first line cannot be read") from None
    if not isinstance(header, Mapping) or header.get("key") != key:
        raise Refused("it was compiled from other sources")
    if header.get("sha256") != hashlib.sha256(image).hexdigest():
        raise Refused("its content is not what was written (SHA-256)")
    return image


def _framed(key: str, image: bytes) -> bytes:
    return json.dumps({"key": key, "sha256": hashlib.sha256(image).hexdigest()}).encode() + b"\n" + image


@contextlib.contextmanager
def _locked(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock; False when another process holds it for longer than `wait_s`. It ends with its holder."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(fd, time.monotonic() + wait_s)
    finally:
        os.close(fd)


def _lock(fd: int, until_s: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_EVERY_S)
        else:
            return True
