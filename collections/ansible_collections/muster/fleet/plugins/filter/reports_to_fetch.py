"""Jinja filter: which files of a burn-in's report the controller does not have as the host has them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DOCUMENTATION = r"""
name: reports_to_fetch
short_description: Which files of a report the controller lacks
version_added: "0.2.0"
description:
  - Gives the paths on the host of the report and its page, but of those whose content a file of the same name in the
    folder has. Reads that folder on the controller, and no host.
options:
  _input:
    description: What M(muster.fleet.burnin) has returned.
    type: dict
    required: true
  directory:
    description: The host's folder of reports on the controller. It need not be there.
    type: path
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
paths: "{{ result | muster.fleet.reports_to_fetch('/srv/muster/reports/' ~ inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The paths on the host.
  type: list
  elements: str
"""


def reports_to_fetch(result: Mapping[str, Any], directory: str) -> list[str]:
    """The paths; none of a host that has no report."""
    found = [(str(result[key]), result.get(f"{key}_sha256")) for key in ("report", "page") if result.get(key)]
    return [path for path, digest in found if digest is None or _digest(Path(directory, Path(path).name)) != digest]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        # Where it is there and cannot be read, the task that fetches it says so.
        return ""


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"reports_to_fetch": reports_to_fetch}
