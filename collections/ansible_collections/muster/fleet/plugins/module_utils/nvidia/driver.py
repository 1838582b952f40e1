"""The kernel modules of the NVIDIA driver: loaded, and on the disk for each kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run

OPEN, PROPRIETARY = "open", "proprietary"
# nvidia.ko; Debian's packages call it nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-535.ko.
_MODULE = re.compile(
    r"nvidia(-(current|tesla|legacy)[a-z0-9-]*?)?(?<!-modeset)(?<!-drm)(?<!-uvm)(?<!-peermem)\.ko(\.(xz|gz|zst))?"
)
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03 ..."; that of the open modules says "Open Kernel Module
# for x86_64  580.105.08". A tab or several blanks stand before the version.
_VERSION_LINE = re.compile(
    r"^NVRM version:.*?(?P<flavour>Open )?Kernel Module(?: for \S+)?\s+(?P<version>\d+(?:\.\d+)+)"
)
# Debian's /etc/nvidia/current/nvidia-modprobe.conf: "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS".
_OTHER_NAME = re.compile(r"(?:\S*/)?modprobe\s(?:\S+\s+)*?(?P<name>nvidia[a-z0-9_-]*)(?:\s|$)")


@dataclass(frozen=True)
class Loaded:
    """The module that runs; `flavour` is open or proprietary. Both empty: none is loaded."""

    version: str
    flavour: str


@dataclass(frozen=True)
class Module:
    """A module on the disk that modprobe would load. `signer` is empty for one that nobody signed.

    `key`: the serial number of the certificate that it is signed with, in hexadecimal digits; empty where modinfo tells
    none.
    """

    version: str
    flavour: str
    signer: str
    path: str
    key: str = ""


def loaded(root: Path) -> Loaded:
    """What /proc/driver/nvidia/version says. Raises OSError, ValueError for a file of another form."""
    path = root / "proc/driver/nvidia/version"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Loaded("", "")
    line = next((match for match in map(_VERSION_LINE.match, text.splitlines()) if match), None)
    if line is None:
        raise ValueError(f"{path} names no version: {text.strip()[:80]!r}")
    return Loaded(line["version"], OPEN if line["flavour"] else PROPRIETARY)


def nouveau_loaded(root: Path) -> bool:
    """Whether the kernel's own driver for NVIDIA GPUs is loaded. Raises OSError."""
    text = (root / "proc/modules").read_text(encoding="utf-8")
    return any(line.startswith("nouveau ") for line in text.splitlines())


def on_disk(root: Path, run: Run) -> dict[str, Module]:
    """The module that modprobe would load in each kernel release that has one. Raises OSError, CommandError."""
    kernels = root / "lib/modules"
    releases = sorted(path for path in kernels.iterdir() if path.is_dir()) if kernels.is_dir() else []
    found: dict[str, Module] = {}
    for kernel in releases:
        if any(_modules(kernel)) and (path := _chosen(root, kernel.name, run)):
            found[kernel.name] = _describe(path, run)
    return found


def _chosen(root: Path, release: str, run: Run) -> Path | None:
    """The file that `modprobe nvidia` would load; None where the kernel's modules.dep has none. Raises CommandError."""
    folders = () if root == Path("/") else ("-d", str(root), "-C", str(root / "etc/modprobe.d"))
    what, by = _depends_on(("-S", release, *folders), run, "nvidia")
    if what == "install":
        name = _OTHER_NAME.match(by)
        if name is None:
            raise CommandError(f"modprobe.d has `install nvidia {by}`, so the module is not loaded; remove that line")
        what, by = _depends_on(("-S", release, *folders, "--ignore-install"), run, name["name"])
    return Path(by.split(" ")[0]) if what == "insmod" else None


def _depends_on(options: Sequence[str], run: Run, name: str) -> tuple[str, str]:
    """The last line of modprobe(8)'s --show-depends, which is the module's own: `insmod FILE` or `install COMMAND`."""
    done = run(["modprobe", "--show-depends", *options, name])
    if done.code != 0 and "not found in directory" in done.err:
        return "", ""
    lines = done.out.strip().splitlines()
    if done.code != 0 or not lines:
        raise CommandError(f"modprobe --show-depends {name} failed: {done.err.strip() or 'it printed nothing'}")
    what, _, by = lines[-1].partition(" ")
    return what, by.strip()


def _modules(kernel: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(kernel):
        # `build` and `source` are links to headers; the rest of a kernel's own drivers is not where NVIDIA's are.
        subfolders[:] = [name for name in subfolders if name not in ("build", "source")]
        yield from (Path(folder, name) for name in names if _MODULE.fullmatch(name))


def _describe(path: Path, run: Run) -> Module:
    done = run(["modinfo", str(path)])
    if done.code != 0:
        raise CommandError(f"modinfo {path} failed: {done.err.strip() or done.out.strip()}")
    fields: dict[str, str] = {}
    for line in done.out.splitlines():
        key, found, value = line.partition(":")
        if found:
            fields.setdefault(key.strip(), value.strip())
    if not fields.get("version"):
        raise CommandError(f"modinfo {path} names no version")
    # The open modules are "Dual MIT/GPL", the proprietary ones "NVIDIA".
    flavour = OPEN if "GPL" in fields.get("license", "") else PROPRIETARY
    key = fields.get("sig_key", "").replace(":", "").lower().lstrip("0")
    return Module(fields["version"], flavour, fields.get("signer", ""), str(path), key)
