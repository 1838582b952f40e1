"""For jobs: whether this node asks the work on it to leave. Standard library alone, and nothing of this package:
the file may be copied into an image by itself.

    from gpu_burnin.job import asked_to_leave

    for step, batch in enumerate(batches):
        train(batch)
        if leave := asked_to_leave():
            save_checkpoint(step)
            sys.exit(42)  # with `muster run`: saved, start me again

The node's agent writes the file, and takes it away when the node stays after all. A pod sees it where the folder
/run/muster of the node is mounted, read-only, at the same place. A pod that may mount no folder of the node gets the
same by the downward API, as a file at that place, which is empty while nothing is asked.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FILE = "/run/muster/leave.json"
# Names another place of the file, inside the container.
FILE_VARIABLE = "MUSTER_LEAVE_FILE"
_MOST_BYTES = 65536


@dataclass(frozen=True)
class Leave:
    """The node's work is asked to leave: since when, by when at the latest, and why.

    Times are RFC 3339 UTC, "" where the file does not say.
    """

    since: str = ""
    deadline: str = ""
    why: str = ""


# What the file said when it was last read: its path and identity, and what it holds.
_newest: tuple[object, Leave] | None = None


def asked_to_leave(path: str | None = None) -> Leave | None:
    """What the node asks, None while it asks nothing. Never raises; a call costs one stat while nothing changes.

    The file is `path`, $MUSTER_LEAVE_FILE or /run/muster/leave.json. A file that is there asks, whatever it holds, but
    for an empty one, which the downward API makes of an annotation that is not there; no node writes one.
    """
    global _newest
    file = Path(path or os.environ.get(FILE_VARIABLE) or DEFAULT_FILE)
    try:
        found = file.stat()
        # Where a pod mounts the file and not its folder, the container runtime makes a folder of that name.
        if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            return None
    except (OSError, ValueError):
        return None
    identity = (file, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    newest = _newest
    if newest is None or newest[0] != identity:
        newest = _newest = (identity, _read(file))
    return newest[1]


def _read(file: Path) -> Leave:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            document = json.loads(opened.read(_MOST_BYTES))
        return Leave(**{key: str(document.get(key, "")) for key in ("since", "deadline", "why")})
    except (OSError, ValueError, AttributeError, RecursionError):
        return Leave()
