"""A systemd unit: enabled, running, and not older than the files it read at start.

A handler is lost when a run is killed between writing a file and the restart; comparing times
instead finds the restart that is still owed, whoever wrote the file. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

LOG_LINES = 15
# Longer than any unit's own deadline (the fabric manager's is 720 s): for units without one, and a systemd that hangs.
TIMEOUT_S = 1800.0
_LOG_TIMEOUT_S = 30.0
# Option of the modules that restart a unit.
RESTART_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "restart_after": {"type": "list", "elements": "path", "default": []},
}

# Where unit files lie, in the order of systemd.unit(5), and the folders whose units go before all of these.
_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
_BEFORE = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
)
# A link there ends with the boot.
_VOLATILE = "/run/"
# What [Install] may ask for, and the ending of the folders with its links.
_LINKS = {"WantedBy": "wants", "RequiredBy": "requires", "UpheldBy": "upholds"}

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "NeedDaemonReload",
    "MainPID",
    "FragmentPath",
    "DropInPaths",
)


@dataclass(frozen=True)
class Unit:
    """What `systemctl show` says about a unit. `started_at` is the main process' start (Unix time) or None."""

    name: str
    loaded: bool
    active: str
    sub: str
    result: str
    enabled: bool
    needs_reload: bool
    files: tuple[str, ...]
    started_at: float | None

    @property
    def running(self) -> bool:
        """Up, or on its way up (systemd keeps trying)."""
        return self.active in ("active", "activating", "reloading")


@dataclass(frozen=True)
class Wanted:
    """How a unit should be, and the files, or folders of files, whose change needs a restart or a reload.

    `reload_marker` is a file that the unit touches at start and reload. `start` and `restart` false leave a start or a
    restart to somebody else; `wait` false does not wait until systemd says that the unit is up. `restart_because` is a
    reason to restart that no file shows, "" when there is none.
    """

    unit: str
    restart_after: Sequence[str] = ()
    reload_after: Sequence[str] = ()
    reload_marker: str | None = None
    enabled: bool = True
    start: bool = True
    restart: bool = True
    restart_because: str = ""
    wait: bool = True


@dataclass(frozen=True)
class Decision:
    """What is to be done, of daemon-reload, enable and one of start, restart, reload; and what makes the unit stale."""

    actions: tuple[str, ...]
    stale: tuple[str, ...]


def parse_show(name: str, text: str, started_at: float | None) -> Unit:
    """Read `systemctl show -p ...` output."""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    files = [pairs.get("FragmentPath", ""), *pairs.get("DropInPaths", "").split()]
    return Unit(
        name=name,
        loaded=pairs.get("LoadState") == "loaded",
        active=pairs.get("ActiveState", ""),
        sub=pairs.get("SubState", ""),
        result=pairs.get("Result", ""),
        enabled=pairs.get("UnitFileState") in ("enabled", "static", "alias", "indirect", "generated"),
        needs_reload=pairs.get("NeedDaemonReload") == "yes",
        files=tuple(path for path in files if path),
        started_at=started_at,
    )


def process_started_at(stat_line: str, uptime_s: float, now: float, ticks_per_second: int) -> float:
    """Unix time at which a process started, from its /proc/PID/stat line (field 22, proc(5)).

    The command name in field 2 may hold spaces and brackets, so fields count from the last bracket.
    """
    ticks = int(stat_line.rsplit(")", 1)[1].split()[19])
    return now - uptime_s + ticks / ticks_per_second


def newer_files(started_at: float, modified: Mapping[str, float], now: float) -> list[str]:
    """Files changed after the start. A time in the future is a clock that was set back, and proves nothing."""
    return sorted(path for path, at in modified.items() if started_at < at <= now)


def modification_times(paths: Iterable[str]) -> dict[str, float]:
    """{file: Unix time} of the files that exist; a folder stands for all files under it."""
    found: dict[str, float] = {}
    for path in map(Path, paths):
        files = path.rglob("*") if path.is_dir() else [path]
        found.update({str(file): file.stat().st_mtime for file in files if file.is_file()})
    return found


def show(name: str) -> Unit:
    """Ask systemd. Raises FleetError when it cannot be reached."""
    text = systemctl(["show", "--property", ",".join(_PROPERTIES), "--", name])
    shown = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    pid, fragment = shown.get("MainPID", "0"), shown.get("FragmentPath", "")
    unit = parse_show(name, text, _started_at(int(pid)) if pid != "0" else None)
    return replace(
        unit,
        enabled=unit.enabled and has_links(name, fragment),
        needs_reload=unit.needs_reload or is_overtaken(name, fragment),
    )


def is_overtaken(name: str, fragment: str) -> bool:
    """Whether systemd would read the unit from another file than from `fragment`, which it has read.

    NeedDaemonReload tells of changes of the files that it has read, and of none in a folder that goes before theirs.
    """
    if str(Path(fragment).parent) in _BEFORE:
        return False
    first = next((path for folder in _FOLDERS if (path := Path(folder, name)).exists()), None)
    return first is not None and (not fragment or first.resolve() != Path(fragment).resolve())


def has_links(name: str, fragment: str) -> bool:
    """Whether a boot starts the unit as its file's [Install] asks for.

    UnitFileState is "enabled" where a link of an alias is left and those of the targets are gone.
    """
    try:
        lines = Path(fragment).read_text(encoding="utf-8", errors="replace").splitlines() if fragment else []
    except OSError:
        lines = []
    # The link of an instance has its name, that of an alias the name of its file.
    linked = name if "@" in name else Path(fragment).name
    wanted = [
        f"{target}.{_LINKS[key.strip()]}"
        for key, _, targets in (line.partition("=") for line in lines)
        if key.strip() in _LINKS
        for target in targets.split()
        if "%" not in target
    ]
    kept = [folder for folder in _FOLDERS if not folder.startswith(_VOLATILE)]
    return all(any(Path(folder, place, linked).is_symlink() for folder in kept) for place in wanted)


def main_pid(name: str) -> int:
    """The process of a unit, 0 for one without. Raises FleetError when systemd cannot be reached."""
    return int(systemctl(["show", "--property", "MainPID", "--value", "--", name]).strip() or 0)


def active_at(name: str) -> float | None:
    """Unix time at which a unit last became active in this boot; None where it has not. Raises FleetError."""
    shown = systemctl(["show", "--property", "ActiveEnterTimestampMonotonic", "--value", "--", name]).strip()
    if not int(shown or 0):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + int(shown) / 1e6


def booted_at() -> float:
    """Unix time at which systemd started: that of the boot, also in a container."""
    return _started_at(1) or time.time()


def stale_because(unit: Unit, paths: Sequence[str]) -> list[str]:
    """Files (the unit's own included) that are newer than its running process; empty when it is up to date."""
    if unit.started_at is None:
        return []
    return newer_files(unit.started_at, modification_times([*unit.files, *paths]), time.time())


def decide(wanted: Wanted, unit: Unit) -> Decision:
    """Compare a unit with what is wanted."""
    actions = ["daemon-reload"] if unit.needs_reload else []
    if wanted.enabled and not unit.enabled:
        actions.append("enable")
    stale = stale_because(unit, wanted.restart_after)
    if unit.needs_reload and unit.started_at is not None and not stale:
        # What is gone, or what systemd has not read, has no time to compare.
        stale = [f"a file of {wanted.unit} that systemd has not read, or that is gone"]
    if not unit.running:
        actions += ["start"] if wanted.start else []
    elif wanted.restart and (stale or (wanted.restart_because and unit.started_at is not None)):
        actions.append("restart")
    elif reload_owed(wanted):
        actions.append("reload")
    return Decision(tuple(actions), tuple(stale))


def reload_owed(wanted: Wanted) -> bool:
    """Whether a file of `reload_after` is newer than the marker, or the marker missing."""
    if wanted.reload_marker is None:
        return False
    marker = Path(wanted.reload_marker)
    if not marker.exists():
        return True
    loaded_at = marker.stat().st_mtime
    return any(at > loaded_at for at in modification_times(wanted.reload_after).values())


def bring_up(wanted: Wanted, *, act: bool) -> Decision:
    """Do what `decide` says (or with `act` false only tell). Raises FleetError."""
    unit = show(wanted.unit)
    # A new unit file is "not-found" until systemd reads it; reloading first is how one learns.
    if act and (unit.needs_reload or not unit.loaded):
        systemctl(["daemon-reload"])
        unit = replace(show(wanted.unit), needs_reload=unit.needs_reload)
        if not unit.loaded:
            raise FleetError(f"systemd knows no {wanted.unit}; install what provides it")
    decision = decide(wanted, unit)
    for action in decision.actions if act else ():
        if action == "enable":
            systemctl(["enable", "--", wanted.unit])
        elif action != "daemon-reload":
            systemctl([action, *([] if wanted.wait else ["--no-block"]), "--", wanted.unit])
    return decision


def take_down(name: str, *, act: bool, folder: str = _FOLDERS[0]) -> tuple[str, ...]:
    """Stop a unit of ours, have no boot start it, and remove its file; what was done (or with `act` false would be).

    Raises FleetError, OSError.
    """
    unit, path = show(name), Path(folder, name)
    if not unit.loaded and not path.exists():
        return ()
    actions = ["stop"] if unit.running else []
    actions += ["disable", "remove"] if path.exists() else []
    for action in (*actions, "daemon-reload") if act else ():
        if action == "remove":
            path.unlink()
        else:
            systemctl([action] if action == "daemon-reload" else [action, "--", name])
    return (*actions, "daemon-reload")


def log_tail(unit: str) -> str:
    """The unit's last log lines, for an error message."""
    return _journal(["--unit", unit, "--lines", str(LOG_LINES)])


def last_words(unit: str, *programs: str) -> str:
    """The last line of the unit's program, without those of systemd and of the unit's other commands, which follow it.

    `programs` are the files that ExecStart= may name.
    """
    said_by = [f"SYSLOG_IDENTIFIER={Path(program).name}" for program in programs]
    return _journal([f"_SYSTEMD_UNIT={unit}", *said_by, "--lines", "1"])


def _journal(which: Sequence[str]) -> str:
    command = ["journalctl", *which, "--no-pager", "--output", "cat"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LOG_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"journalctl gave no answer in {_LOG_TIMEOUT_S:g} s"
    return done.stdout.strip()


def systemctl(arguments: Sequence[str]) -> str:
    """Run systemctl and give its output. Raises FleetError with systemd's own words."""
    command = ["systemctl", "--no-pager", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        said = f"`systemctl {' '.join(arguments)}` gave no answer in {TIMEOUT_S:g} s"
        raise FleetError(f"{said}; look at `systemctl list-jobs`") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        log = f"journalctl -u {arguments[-1]}" if "--" in arguments else "journalctl -b"
        raise FleetError(f"`systemctl {' '.join(arguments)}` failed: {reason}; see `{log}`")
    return done.stdout


def _started_at(pid: int) -> float | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None  # ended between the two looks
    return process_started_at(line, time.clock_gettime(time.CLOCK_BOOTTIME), time.time(), os.sysconf("SC_CLK_TCK"))
