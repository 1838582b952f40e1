"""The files that keep the tuning over a reboot, and which other file of the same kind would win over them.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.tuning.table import MANAGER, MODULE, SYSCTL, SYSFS, Wanted

SYSCTL_FILE = "etc/sysctl.d/90-muster.conf"
MANAGER_FILE = "etc/systemd/system.conf.d/90-muster.conf"
SYSFS_FILE = "etc/tmpfiles.d/muster-tuning.conf"
MODULE_FILE = "etc/modprobe.d/muster-tuning.conf"
# In the order in which systemd looks for them: of two files of one name the first is read (sysctl.d(5)).
_SYSCTL_FOLDERS = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d")
_MANAGER_FOLDERS = tuple(
    f"{top}/systemd/system.conf.d" for top in ("etc", "run", "usr/local/lib", "usr/lib")
)  # systemd-system.conf(5)
_HEAD = "# Made by the role node_tuning. What each value is for: docs/reference/tuning.md.\n"


@dataclass(frozen=True)
class Assignment:
    """A line KEY = VALUE of a file."""

    key: str
    value: str
    file: str
    line: int


def contents(settings: Sequence[Wanted]) -> dict[str, str]:
    """{file below /: its text} for the settings; a file of which nothing is left has no text."""
    by_kind = {
        kind: [item for item in settings if item.setting.kind == kind] for kind in (SYSCTL, SYSFS, MANAGER, MODULE)
    }
    lines = {
        SYSCTL_FILE: [f"{item.setting.where} = {item.value}" for item in by_kind[SYSCTL]],
        SYSFS_FILE: [f"w /{item.setting.where} - - - - {item.value}" for item in by_kind[SYSFS]],
        MANAGER_FILE: [f"{item.setting.where}={item.value}" for item in by_kind[MANAGER]],
        # The second line holds for who asks for the module by its name.
        MODULE_FILE: [
            line
            for item in by_kind[MODULE]
            for line in (f"blacklist {item.setting.where}", f"install {item.setting.where} /bin/false")
        ],
    }
    lines[MANAGER_FILE] = ["[Manager]", *lines[MANAGER_FILE]] if lines[MANAGER_FILE] else []
    return {file: _HEAD + "".join(f"{line}\n" for line in found) if found else "" for file, found in lines.items()}


def overriding(item: Wanted, root: Path) -> Assignment | None:
    """The line that wins over ours at the next boot with another value; None when ours does."""
    if item.setting.kind == SYSCTL:
        key, found = sysctl_path(item.setting.where), _assignments(root, _SYSCTL_FOLDERS, sysctl=True)
    elif item.setting.kind == MANAGER:
        key, found = item.setting.where, _assignments(root, _MANAGER_FOLDERS)
    else:
        return None
    own = SYSCTL_FILE if item.setting.kind == SYSCTL else MANAGER_FILE
    # A glob gives way to a line that names the key (sysctl.d(5)), as ours does.
    last = next((line for line in reversed([*found]) if line.key == key), None)
    return last if last is not None and last.file != own and last.value != item.value else None


def sysctl_path(key: str) -> str:
    """The file of a sysctl key below /proc/sys: where the first separator is a dot, dots and slashes change places."""
    first = next((letter for letter in key if letter in "./"), "/")
    return key if first == "/" else key.translate(str.maketrans("./", "/."))


def _assignments(root: Path, folders: Iterable[str], *, sysctl: bool = False) -> Iterator[Assignment]:
    """All lines of the drop-in folders in the order in which they are applied, so that the last one wins."""
    files: dict[str, Path] = {}
    for folder in folders:
        for path in (root / folder).glob("*.conf"):
            files.setdefault(path.name, path)
    for name in sorted(files):
        try:
            text = files[name].read_text(errors="replace")
        except OSError:
            continue  # a link that leads nowhere sets nothing, and so does /dev/null
        for number, line in enumerate(text.splitlines(), 1):
            key, separator, value = line.strip().partition("=")
            if separator and key[:1] not in ("#", ";"):
                key = key.strip().removeprefix("-") if sysctl else key.strip()
                file = str(files[name].relative_to(root))
                yield Assignment(sysctl_path(key) if sysctl else key, " ".join(value.split()), file, number)
