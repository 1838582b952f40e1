"""Jinja filter: the files in which Prometheus finds the targets of its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: target_files
short_description: The files in which Prometheus finds the targets of its jobs
version_added: "0.2.0"
description:
  - Gives one entry for each job, as M(muster.fleet.file_set) takes them, of the file C(JOB.json).
options:
  _input:
    description: The targets of each job, as P(muster.fleet.scrape_targets#filter) gives them, by its name.
    type: dict
    required: true
  folder:
    description: Folder of the files.
    type: path
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
files: "{{ {'etcd': [{'targets': ['10.0.0.1:9443']}]} | muster.fleet.target_files('/etc/prometheus/targets') }}"
"""

RETURN = r"""
_value:
  description: One dictionary for each job, in the order given.
  type: list
  elements: dict
"""


def target_files(targets: Mapping[str, Sequence[Mapping[str, Any]]], folder: str) -> list[dict[str, str]]:
    """One entry for each job."""
    return [
        {
            "dest": f"{folder}/{job}.json",
            "content": f"{json.dumps(entries, indent=4, sort_keys=True)}\n",
            "mode": "0644",
            "owner": "root",
            "group": "root",
        }
        for job, entries in targets.items()
    ]


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"target_files": target_files}
