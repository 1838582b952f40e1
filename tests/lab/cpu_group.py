"""Processor time by control group: of a command with all that it starts, and of the lab's hosts that it has started.

A group counts what is in it and what was: children, processes that nobody waited for, hosts that are gone. There are
two of one name, `here` and `hosts`, since podman's are to have controllers, beside which version 2 allows no processes
(cgroups(7)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .error import LabError

# Of the environment: the group below which the lab starts its hosts, and the folder where it is counted.
HOSTS_GROUP, HOSTS_COUNTER = "MUSTER_HOSTS_GROUP", "MUSTER_HOSTS_COUNTER"
# A group is weighed as one process is, against all processes beside it: a lab of a dozen hosts would get no answer from
# its own servers on a busy machine. So it weighs as one process a host (cpu.shares of version 1; 1024 is one).
HOSTS_SHARES = 12 * 1024


@dataclass(frozen=True)
class Used:
    """Seconds of processor time: of processes of this machine, and of the lab's hosts."""

    here_s: float = 0.0
    hosts_s: float = 0.0

    @property
    def all_s(self) -> float:
        """Both."""
        return self.here_s + self.hosts_s


class CpuGroup:
    """The two groups of one name, which may lie below others; a context manager that makes them and removes them.

    Raises LabError where this machine lets nobody make one: without it nobody could say what a stage costs.
    """

    def __init__(self, name: str, roots: Sequence[Path] | None = None) -> None:
        self._name = name
        self._roots = roots if roots is not None else group_roots()
        if not self._roots:
            raise LabError(
                "/proc/self/mounts has no control groups that count processor time: mount cgroup2 or cpuacct"
            )
        self._counter = self._roots[0]

    def __enter__(self) -> CpuGroup:
        try:
            for kind in ("here", "hosts"):
                (self._counter / self._name / kind).mkdir(parents=True, exist_ok=True)
            for weight in (root / self._name / "cpu.shares" for root in self._roots):
                if (weight.parents[1] / weight.name).exists():
                    weight.parent.mkdir(parents=True, exist_ok=True)
                    weight.write_text(f"{HOSTS_SHARES}\n")
        except OSError as error:
            raise LabError(f"{self._counter / self._name} cannot be made ({error}): run it as root") from None
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them, wherever podman has made them too. What still runs in them, as SSH's masters do, leaves them; a
        host that is kept keeps its group."""
        for process in (self._counter / self._name / "here/cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                (self._counter / "cgroup.procs").write_text(process)
        for root in self._roots:
            folders = sorted((root / self._name).rglob("*/"), key=lambda path: -len(path.parts))
            for folder in [*folders, root / self._name]:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words in the group `here`."""
        join = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", join, str(self._counter / self._name / "here/cgroup.procs"), *words]

    def environment(self) -> dict[str, str]:
        """What has the lab start its hosts in the group `hosts`, and tests read what these use."""
        return {HOSTS_GROUP: f"/{self._name}/hosts", HOSTS_COUNTER: str(self._counter / self._name / "hosts")}

    def used(self) -> Used:
        """So far."""
        here, hosts = (usage_s(self._counter / self._name / kind) for kind in ("here", "hosts"))
        return Used(here, hosts)


def hosts_group(environment: Mapping[str, str] = os.environ) -> str:
    """The group for the hosts that are started now; "" when nobody counts."""
    return environment.get(HOSTS_GROUP, "")


def hosts_used_s() -> float:
    """What the hosts of this environment's group have used so far, in seconds; 0 when nobody counts."""
    folder = os.environ.get(HOSTS_COUNTER)
    return usage_s(Path(folder)) if folder else 0.0


def usage_s(folder: Path) -> float:
    """What a group and all below it have used, in seconds: nanoseconds in version 1, microseconds in version 2."""
    if (folder / "cpuacct.usage").exists():
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    words = (folder / "cpu.stat").read_text().split()
    return int(words[words.index("usage_usec") + 1]) / 1e6


def group_roots(mounts: Path = Path("/proc/self/mounts")) -> list[Path]:
    """Where groups are mounted: first the one that counts processor time, then all others that podman uses.

    Nothing when none counts.
    """
    found = [line.split()[1:4] for line in mounts.read_text().splitlines()]
    groups = [(Path(path), kind, options.split(",")) for path, kind, options in found if kind.startswith("cgroup")]
    # A mount of version 2 beside version 1 counts nothing.
    if any(kind == "cgroup" for _, kind, _ in groups):
        counting = [path for path, kind, options in groups if kind == "cgroup" and "cpuacct" in options]
    else:
        counting = [path for path, _, _ in groups]
    first = counting[:1]
    return [*first, *(path for path, _, _ in groups if path not in first)] if first else []
