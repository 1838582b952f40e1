"""Bring a systemd unit up, enabled and not older than the files it reads.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils import systemd_unit

LOG_LINES = 15


@dataclass(frozen=True)
class Wanted:
    """A unit and the files, or folders of files, whose change needs a restart or (by the marker) a reload."""

    unit: str
    restart_after: Sequence[str] = ()
    reload_after: Sequence[str] = ()
    reload_marker: str | None = None


def decide(wanted: Wanted, unit: systemd_unit.Unit) -> list[str]:
    """What is to be done, of enable, start, restart, reload; at most one of the last three."""
    actions = [] if unit.enabled else ["enable"]
    if not unit.running:
        return [*actions, "start"]
    if unit.needs_reload or systemd_unit.stale_because(unit, wanted.restart_after):
        return [*actions, "restart"]
    return [*actions, "reload"] if reload_owed(wanted) else actions


def reload_owed(wanted: Wanted) -> bool:
    """Whether a file is newer than the marker that the unit touches at start and reload, or that is missing."""
    if wanted.reload_marker is None:
        return False
    marker = Path(wanted.reload_marker)
    if not marker.exists():
        return True
    loaded_at = marker.stat().st_mtime
    return any(at > loaded_at for at in systemd_unit.modification_times(wanted.reload_after).values())


def bring_up(wanted: Wanted, *, act: bool) -> list[str]:
    """Do what `decide` says (or with `act` false only tell). Raises systemd_unit.UnitError."""
    unit = systemd_unit.show(wanted.unit)
    actions = decide(wanted, unit)
    if act and actions:
        # A new unit file is unknown to systemd, and a changed one not read, until it reloads.
        systemd_unit.systemctl(["daemon-reload"])
        for action in actions:
            systemd_unit.systemctl([action, "--", wanted.unit])
    return actions


def log_tail(unit: str) -> str:
    """The unit's last log lines, for an error message."""
    command = ["journalctl", "--unit", unit, "--lines", str(LOG_LINES), "--no-pager", "--output", "cat"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
