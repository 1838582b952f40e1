"""Hosts by their names in the inventory, as roles leave them in the state directory: monitoring, API servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text

FILE = "monitoring.json"


@dataclass(frozen=True)
class Place:
    """How the controller reaches a host; what the inventory does not say has SSH's own default."""

    name: str
    address: str
    port: int = 22
    user: str = "root"
    identity: Path | None = None


def named(state: Path | None, file: str = FILE) -> dict[str, Place]:
    """The hosts in a file of a state directory; none before site.yml has made one. Raises GpuBurninError."""
    path = (state or Path()) / file
    if state is None or not path.exists():
        return {}
    try:
        return {str(one["name"]): _place(one) for one in json.loads(read_text(path))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuBurninError(
            f"{path}: is no list of hosts ({type(error).__name__}: {error}); run site.yml, which writes it"
        ) from error


def _place(one: dict[str, object]) -> Place:
    identity = one.get("identity")
    return Place(
        str(one["name"]),
        str(one.get("address") or one["name"]),
        int(str(one.get("port") or 22)),
        str(one.get("user") or "root"),
        Path(str(identity)) if identity else None,
    )
