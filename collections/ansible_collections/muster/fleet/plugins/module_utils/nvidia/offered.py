"""Whether the package sources have what is to be installed, asked anew and in a folder of its own: nothing is changed.

The lists that apt has may be of last month, and the inventory may name a repository that the host does not know yet.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import ENVIRONMENT
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Run, run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt

# Runs commands of apt with these variables.
RunWith = Callable[[Mapping[str, str]], Run]
_SOURCES_OF_HOST = Path("/etc/apt/sources.list.d")


def of_this_host(environment: Mapping[str, str]) -> Run:
    """Run commands here."""
    return partial(run_command, environment=environment)


def lacks(
    driver: Mapping[str, str],
    beside: Mapping[str, str],
    repository: apt.Repository | None,
    *,
    of_nvidia: bool,
    run_with: RunWith = of_this_host,
    sources_of_host: Path = _SOURCES_OF_HOST,
) -> str:
    """Why not all of these packages can be had, in one sentence; "" where they can.

    {package: version (empty: any)}. `of_nvidia`: the driver comes from NVIDIA's repository; else from any other source.
    Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="muster-apt-") as folder:
        try:
            run = run_with({**ENVIRONMENT, "APT_CONFIG": str(_scratch(Path(folder), repository, sources_of_host))})
            used = repository if beside or of_nvidia else None
            apt.update(run, used, sources=str(Path(folder, "sources.list.d", Path(apt.SOURCES).name)))
            aside = repository.url if repository is not None and not of_nvidia else ""
            for wanted, without in ((driver, aside), (beside, "")):
                apt.refuse_missing(wanted, run, without)
                apt.resolve(wanted, run, without)
        except FleetError as error:
            return str(error)
    return ""


def _scratch(folder: Path, repository: apt.Repository | None, sources_of_host: Path) -> Path:
    """apt's configuration for the host's sources, NVIDIA's as the inventory has it, and lists of its own.

    Raises FleetError for a key that is not the one of the fingerprint, and OSError.
    """
    parts, lists, archives = folder / "sources.list.d", folder / "lists", folder / "archives"
    # apt's own user fetches and verifies, and has to come in whatever root's umask is.
    for path in (folder, parts, lists, lists / "partial", archives, archives / "partial"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    for path in sources_of_host.glob("*"):
        if path.is_file() and path.name != Path(apt.SOURCES).name:
            shutil.copy(path, parts)
    if repository is not None:
        keyring, source = apt.repository_files(repository)
        key = folder / Path(keyring.dest).name
        key.write_bytes(keyring.content)
        key.chmod(0o644)
        (parts / Path(source.dest).name).write_bytes(source.content.replace(apt.KEYRING.encode(), str(key).encode()))
    settings = {
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": lists,
        "Dir::Cache::archives": archives,
        # In memory: what is in /var/cache/apt stays the host's.
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    conf = folder / "apt.conf"
    conf.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return conf
