"""Packages of one part of the stack in exact versions and held, at the cost of one dpkg-query when they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt, driver
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import Package, installed, lacking

REPOSITORY_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "repository_url": {"type": "str", "default": ""},
    "repository_key": {"type": "str", "default": "", "no_log": False},
    "repository_fingerprint": {"type": "str", "default": ""},
}


class Held(Exception):
    """Why a host is not as it was asked for, as a clause: a result, and no failure of the task."""


def repository(given: Mapping[str, str]) -> apt.Repository | None:
    """NVIDIA's repository or a mirror of it as the module was given it; None without a URL."""
    if not given["repository_url"]:
        return None
    return apt.Repository(given["repository_url"], given["repository_key"], given["repository_fingerprint"])


def loaded(kernel_root: Path) -> str:
    """The version of the driver that is loaded; empty for none. Raises Held."""
    try:
        return driver.loaded(kernel_root).version
    except (OSError, ValueError) as error:
        raise Held(f"which driver is loaded cannot be told: {error}") from error


def ensure(
    name: str,
    wanted: Mapping[str, str],
    source: apt.Repository | None,
    run: Run,
    *,
    act: bool,
    numbered: Sequence[str] = (),
) -> tuple[str, ...]:
    """Have the packages of a part in their versions (without epoch and revision, or whole; empty: any), and held.

    `numbered`: names to which a branch may be added, such as nvidia-imex of nvidia-imex-575. A host has one of each: it
    takes the place of the others, which were held too. Gives the names of those that were (with `act` false: would be)
    installed, and the files that changed. Raises FleetError.
    """
    known = _installed([*wanted, *(f"{stem}*" for stem in numbered)], run)
    have = {package: known[package] for package in wanted if package in known}
    missing = lacking(wanted, have)
    folders = [files.DirectorySpec("/etc/apt/keyrings"), files.DirectorySpec("/etc/apt/preferences.d")]
    sources = apt.repository_files(source) if source is not None else ()
    changed = list(files.apply(sources, folders if sources else (), check=not act).changed_files)
    loose = [package for package in wanted if package in missing or not have[package].held]
    if missing and act:
        apt.update(apt.run_apt, source)
        exact = apt.resolve({package: wanted[package] for package in missing}, run)
        # Named, they go in spite of their hold; and stay held where apt cannot do it.
        apt.install(exact, apt.run_apt, giving_way=_replaced(wanted, known, numbered))
        have = _installed(wanted, run)
    if act or not missing:
        pins = {package: have[package].version for package in wanted}
        changed += files.apply([apt.preferences(name, pins)], check=not act).changed_files
    if loose and act:
        apt.hold(loose, run)
    return (*changed, *loose)


def _replaced(wanted: Iterable[str], known: Iterable[str], numbered: Iterable[str]) -> tuple[str, ...]:
    """Of the installed packages those of another branch than the wanted ones; nothing of what is not wanted at all."""
    patterns = [re.compile(rf"{re.escape(stem)}(-?\d+)?") for stem in numbered]
    counted = [pattern for pattern in patterns if any(map(pattern.fullmatch, wanted))]
    return tuple(name for name in known if name not in wanted and any(one.fullmatch(name) for one in counted))


def _installed(names: Iterable[str], run: Run) -> dict[str, Package]:
    try:
        return {package.name: package for package in installed(run, names)}
    except CommandError as error:
        raise FleetError(str(error)) from error
