"""Packages of a signed repository in exact versions: the key pinned, the versions preferred, the packages held."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import ENVIRONMENT, apt_errors, apt_get
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output, Run, run_command
from ansible_collections.muster.fleet.plugins.module_utils.host.files import FileSpec
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import openpgp
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import upstream

KEYRING = "/etc/apt/keyrings/muster-nvidia.asc"
SOURCES = "/etc/apt/sources.list.d/muster-nvidia.sources"
# What NVIDIA's Release file says, and a mirror that copies it.
ORIGIN = "NVIDIA"
# Over 1000 apt also goes to an older version (apt_preferences(5)).
PRIORITY = 1001
# A driver of 500 MB over a slow line, and its modules built for several kernels.
INSTALL_TIMEOUT_S = 3600.0
UPDATE_TIMEOUT_S = 600.0

run_apt: Run = partial(run_command, environment=ENVIRONMENT)


@dataclass(frozen=True)
class Repository:
    """A flat repository: the folder with InRelease, the armoured key that signs it, and that key's fingerprint."""

    url: str
    key: str
    fingerprint: str


def repository_files(repository: Repository) -> tuple[FileSpec, ...]:
    """Keyring and source, for files.apply. Raises FleetError for a key that is not the one of the fingerprint."""
    wanted = re.sub(r"\s", "", repository.fingerprint).upper()
    try:
        found = openpgp.fingerprints(repository.key)
    except ValueError as error:
        raise FleetError(f"fleet_nvidia_repository_key is no public key: {error}; give it as armoured text") from error
    if found != (wanted,):
        raise FleetError(
            f"fleet_nvidia_repository_key is the key {', '.join(found)} and not {wanted} of "
            "fleet_nvidia_repository_fingerprint; nothing was written: "
            "get the key again, and compare it with what its owner publishes"
        )
    source = f"Types: deb\nURIs: {repository.url.rstrip('/')}/\nSuites: /\nSigned-By: {KEYRING}\n"
    return (
        FileSpec(KEYRING, f"{repository.key.strip()}\n".encode(), 0o644, "root", "root"),
        FileSpec(SOURCES, source.encode(), 0o644, "root", "root"),
    )


def preferences(name: str, pins: Mapping[str, str], from_nvidia: Mapping[str, int] | None = None) -> FileSpec:
    """A file of preferences: patterns of package names (as apt takes them) and the version that wins over all others.

    A version without a revision is that of any package of it: `580.105.08` -> `580.105.08-*`. `from_nvidia` comes
    first, and of two that fit apt takes the first: patterns, and their priority where they are of NVIDIA's repository.
    """
    stanzas = [
        f"Package: {packages}\nPin: release o={ORIGIN}\nPin-Priority: {priority}\n"
        for packages, priority in (from_nvidia or {}).items()
    ] + [
        f"Package: {packages}\nPin: version {version if '-' in version else f'{version}-*'}\nPin-Priority: {PRIORITY}\n"
        for packages, version in pins.items()
    ]
    return FileSpec(f"/etc/apt/preferences.d/muster-{name}", "\n".join(stanzas).encode(), 0o644, "root", "root")


def update(run: Run, repository: Repository | None = None, sources: str = SOURCES) -> None:
    """Have the lists of packages of all sources; a repository given must be read and be signed by its key.

    `sources` is the file that names it. Raises FleetError.
    """
    if repository is not None:
        alone = [
            f"--option=Dir::Etc::sourcelist={sources}",
            "--option=Dir::Etc::sourceparts=-",
            "--option=APT::Get::List-Cleanup=0",
            "--option=APT::Update::Error-Mode=any",
        ]
        done = _run(run, [*apt_get(), *alone, "update"], UPDATE_TIMEOUT_S)
        if done.code != 0:
            raise FleetError(_why_not_read(repository, done.out + done.err))
    done = _run(run, [*apt_get(), "update"], UPDATE_TIMEOUT_S)
    if done.code != 0:
        raise FleetError(
            f"package lists cannot be updated: {apt_errors(done.out + done.err)}; "
            "see /etc/apt/sources.list.d and the network"
        )


def _why_not_read(repository: Repository, said: str) -> str:
    url, pinned = repository.url, re.sub(r"\s", "", repository.fingerprint).upper()
    if match := re.search(r"NO_PUBKEY ([0-9A-F]+)", said):
        return (
            f"{url} is signed by the key {match[1]} and not by {pinned} of "
            "fleet_nvidia_repository_fingerprint; nothing was installed: compare the key with what its owner publishes"
        )
    if "EXPKEYSIG" in said or "KEYEXPIRED" in said:
        return f"the key {pinned} that signs {url} has expired; get the new key and set fleet_nvidia_repository_key"
    if "BADSIG" in said:
        return f"the signature of {url} is wrong: its index was changed since; nothing was installed, sign it again"
    if "is not signed" in said:
        return f"{url} is not signed; give the URL of a folder with InRelease, signed by {pinned}"
    return f"{url} cannot be read: {apt_errors(said)}; look at fleet_nvidia_repository_url, network and proxy"


def versions(name: str, run: Run, without: str = "") -> tuple[str, ...]:
    """The versions of a package that apt could install, as the sources list them. Raises FleetError.

    `without`: the URL of a repository that does not count, such as NVIDIA's for a driver of Debian's.
    """
    done = _run(run, ["apt-cache", "madison", name])
    rows = [[field.strip() for field in line.split("|")] for line in done.out.splitlines() if line.count("|") >= 2]
    aside = without.rstrip("/") if without else None
    counted = (row for row in rows if row[0] == name and row[2].split(" ")[0].rstrip("/") != aside)
    return tuple(dict.fromkeys(row[1] for row in counted))


def resolve(wanted: Mapping[str, str], run: Run, without: str = "") -> dict[str, str]:
    """The full version of each package: `580.105.08` -> `580.105.08-1`, empty for any. Raises FleetError."""
    return {name: _resolve(name, version, run, without) if version else "" for name, version in wanted.items()}


def refuse_missing(names: Iterable[str], run: Run, without: str = "") -> None:
    """See that each package is there in some version. Raises FleetError."""
    for name in names:
        if not versions(name, run, without):
            raise FleetError(_nowhere(name))


def _nowhere(name: str) -> str:
    return (
        f"no package source of the host has {name}; see fleet_nvidia_source and fleet_nvidia_repository_url, and "
        "/etc/apt/sources.list.d (source and component)"
    )


def _resolve(name: str, wanted: str, run: Run, without: str) -> str:
    found = versions(name, run, without)
    for version in found:
        if wanted in (version, upstream(version)):
            return version
    if not found:
        raise FleetError(_nowhere(name))
    raise FleetError(f"no package source of the host has {name} {wanted}; they have {', '.join(found[:5])}")


def repair(run: Run) -> None:
    """Bring an installation that was interrupted to its end. Raises FleetError."""
    for command in (
        ["dpkg", "--force-confold", "--configure", "--pending"],
        [*apt_get(), "--fix-broken", "--allow-downgrades", "--allow-change-held-packages", "install"],
    ):
        done = _run(run, command, INSTALL_TIMEOUT_S)
        if done.code != 0 and command[0] != "dpkg":
            raise FleetError(
                f"an interrupted installation cannot be ended: {apt_errors(done.out + done.err)}; run `dpkg --audit`"
            )


def install(exact: Mapping[str, str], run: Run, held: Sequence[str] = (), giving_way: Sequence[str] = ()) -> None:
    """Install packages in full versions (empty: any), older ones and held ones too. Raises FleetError.

    `held`: packages that change along. apt leaves what is held as it is where it is only needed by another package, and
    then finds no solution; so they are let go first, and are the caller's to hold again. `giving_way`: packages that
    are removed in the same step.
    """
    if held:
        done = _run(run, ["apt-mark", "unhold", *held])
        if done.code != 0:
            raise FleetError(f"apt-mark unhold failed: {apt_errors(done.out + done.err)}")
    _run(run, ["dpkg", "--force-confold", "--configure", "--pending"], INSTALL_TIMEOUT_S)
    names = [f"{name}={version}" if version else name for name, version in exact.items()]
    command = [*apt_get(), "--allow-downgrades", "--allow-change-held-packages", "install", *names]
    command += [f"{name}-" for name in giving_way]
    done = _run(run, command, INSTALL_TIMEOUT_S)
    if done.code != 0:
        killed = f"apt-get was killed by signal {-done.code}; run it again, it goes on from there"
        why = killed if done.code < 0 else apt_errors(done.out + done.err)
        raise FleetError(f"cannot install {', '.join(names)}: {why}")


def hold(names: Iterable[str], run: Run) -> None:
    """Keep `apt upgrade` from changing packages. Raises FleetError."""
    done = _run(run, ["apt-mark", "hold", *names])
    if done.code != 0:
        raise FleetError(f"apt-mark hold failed: {apt_errors(done.out + done.err)}")


def _run(run: Run, command: Sequence[str], timeout_s: float = 60.0) -> Output:
    try:
        return run(command, timeout_s)
    except CommandError as error:
        raise FleetError(f"{error}; look at what holds apt or dpkg up") from error
