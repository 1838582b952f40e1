"""The running kernel: its release, its headers, and whether it loads unsigned modules."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import x509

# Variables of the firmware: SecureBoot of the UEFI specification, MokSBStateRT of shim ("validation disabled").
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM_OFF = "MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
# Four bytes of attributes stand before the value of a variable.
_VALUE = 4
# A package without a release in its name needs the newest one that has it: Debian's linux-image-amd64 and
# linux-image-cloud-amd64, Ubuntu's linux-image-generic and linux-image-generic-hwe-24.04. Those of symbols are none.
_METAPACKAGE = re.compile(r"linux-image-(?!unsigned-|extra-|uc-)([a-z][a-z0-9.+-]*)(?<!-dbg)(?<!-dbgsym)")
# Where DKMS keeps the key that it signs with: its own, and Ubuntu's.
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")


@dataclass(frozen=True)
class Kernel:
    """The running kernel. What could not be read is None.

    `installed`: the releases that a boot could take, oldest first; a boot without a choice takes the last.
    `headers`: whether modules can be built for it. `secure_boot`: on, off. `signing_keys`: paths of the keys with
    which DKMS signs modules, each with whether the firmware trusts it; looked for only with Secure Boot on.
    `packages`: names of the packages of kernels and headers that dpkg has whole. `key_serials`: by path of a signing
    key the serial number of its certificate, where that can be read.
    """

    release: str | None
    headers: bool | None
    secure_boot: str | None
    signing_keys: dict[str, bool] | None
    cmdline: str | None
    installed: tuple[str, ...] | None
    packages: tuple[str, ...] | None
    key_serials: dict[str, str] | None = None

    @property
    def followed(self) -> tuple[str, ...]:
        """The flavours whose newest kernel apt brings by itself: `amd64` for the metapackage linux-image-amd64."""
        found = (_METAPACKAGE.fullmatch(name) for name in self.packages or ())
        return tuple(match[1] for match in found if match)


def release(root: Path) -> str:
    """The running kernel's release, as `uname -r`. Raises OSError."""
    return (root / "proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()


def cmdline(root: Path) -> str:
    """The running kernel's command line. Raises OSError."""
    return (root / "proc/cmdline").read_text(encoding="utf-8", errors="replace").strip()


def installed(root: Path) -> tuple[str, ...]:
    """The kernels on the disk, oldest first. Raises OSError.

    Where boot/ has kernels they decide: DKMS leaves folders below lib/modules behind for those that were removed.
    """
    folders = {path.name for path in (root / "lib/modules").glob("*") if path.is_dir()}
    bootable = {path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")}
    return tuple(sorted(folders & bootable if bootable else folders, key=_by_version))


def _by_version(kernel_release: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in re.findall(r"\d+", kernel_release)), kernel_release


def has_headers(root: Path, kernel_release: str) -> bool:
    """Whether a module can be built for the kernel: a link that points nowhere is what removed headers leave."""
    return (root / "lib/modules" / kernel_release / "build/Makefile").is_file()


def secure_boot(root: Path) -> str:
    """`on` or `off`: whether the kernel refuses modules that nobody signed. Raises OSError when it cannot be told."""
    if not (root / "sys/firmware/efi").is_dir():
        return "off"  # A machine started without UEFI has no Secure Boot.
    variables = root / "sys/firmware/efi/efivars"
    if not any(variables.glob("*")):
        raise OSError(f"{variables} is empty; mount efivarfs there")
    return "on" if _is_set(variables / _SECURE_BOOT) and not _is_set(variables / _SHIM_OFF) else "off"


def _is_set(variable: Path) -> bool:
    try:
        return variable.read_bytes()[_VALUE : _VALUE + 1] == b"\x01"
    except FileNotFoundError:
        return False


def signing_keys(root: Path, run: Run) -> dict[str, bool]:
    """The keys that DKMS signs with, and whether the firmware trusts each. Raises CommandError."""
    keys = [str(root / name) for name in SIGNING_KEYS if (root / name).is_file()]
    return {key: _is_enrolled(key, run) for key in keys}


def key_serials(root: Path) -> dict[str, str]:
    """The serial numbers of the certificates that DKMS signs with; one that cannot be read is left out."""
    found: dict[str, str] = {}
    for name in SIGNING_KEYS:
        with contextlib.suppress(OSError, ValueError):
            found[str(root / name)] = x509.serial((root / name).read_bytes())
    return found


def _is_enrolled(key: str, run: Run) -> bool:
    # The exit code differs between releases of mokutil, the sentence does not.
    done = run(["mokutil", "--test-key", key])
    said = done.out + done.err
    if "is already enrolled" in said or "is already in" in said:
        return True
    if "is not enrolled" in said:
        return False
    raise CommandError(f"mokutil --test-key {key} said {said.strip()!r}")
