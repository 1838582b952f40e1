"""Who this node is in a test, and the files that it is given: for nobody else to write, and no links."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.signing import own_public_key
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.files import MOST_BYTES, read_bytes, write_atomic


@dataclass(frozen=True)
class Own:
    """This node: its name, the public half of its SSH host key, this boot, and where key and state are."""

    name: str
    key: str
    boot_id: str
    host_key: Path
    state_dir: Path


def own_identity(config: Config) -> Own:
    """By configuration, host key and kernel. Raises GpuBurninError."""
    return Own(config.node_name, own_public_key(config.host_key), host.boot_id(), config.host_key, config.state_dir)


def read_given(path: Path, what: str) -> bytes:
    """A file that the controller has put here. Raises GpuBurninError where another user could have."""
    try:
        # In a folder of root, or of sticky mode, nobody can put another one in its place meanwhile.
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and (found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022):
            raise GpuBurninError(
                f"{path}: {what} could have been written by another user; copy it into a folder of root, mode 0600"
            )
        return read_bytes(path, MOST_BYTES, follow=False)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise GpuBurninError(f"{path}: {what} cannot be read ({why}); copy the file itself there") from error


def check_output(path: Path) -> None:
    """Raise GpuBurninError where write_output could not write: before anything is begun for it."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise GpuBurninError(f"{path} cannot be written; name a file in a folder that is there and can be written")


def write_output(path: Path, content: bytes) -> None:
    """Write it whole, for root alone, in the place of what stands there; a link is replaced and not followed."""
    try:
        write_atomic(path, content, 0o600)
    except OSError as error:
        raise GpuBurninError(f"{path} cannot be written ({error.strerror}); make room, or name another file") from error
