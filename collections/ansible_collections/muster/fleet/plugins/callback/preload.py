"""Callback: what every worker would load for itself, the controller loads once, before it starts the first."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader, connection_loader, filter_loader, lookup_loader
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models

DOCUMENTATION = r"""
name: preload
type: aggregate
short_description: Load plugins and GPU data once for all workers
version_added: "0.2.0"
description:
  - Ansible forks a worker for each task on each host, and each worker imports the filters, lookups and actions of its
    task, and reads the GPU data of C(gpu-burnin). This callback loads them before the first play, and workers inherit
    them.
  - Without it everything works the same and takes more processor time.
requirements:
  - C(callbacks_enabled = muster.fleet.preload) in C(ansible.cfg).
author:
  - Muster (@muster)
"""

FILTERS = tuple(
    f"muster.fleet.{path.stem}" for path in sorted((Path(__file__).parent.parent / "filter").glob("[a-z]*.py"))
)
# What the roles and inventories of this collection use on many hosts; Ansible's own filters are found through one.
PRELOADED = (
    (filter_loader, ("ansible.builtin.default", *FILTERS)),
    (lookup_loader, ("ansible.builtin.env", "ansible.builtin.file", "ansible.builtin.template")),
    (
        action_loader,
        (
            "ansible.builtin.normal",
            "ansible.builtin.validate_argument_spec",
            "muster.fleet.file_set",
            "muster.fleet.kube_health",
        ),
    ),
    (connection_loader, ("ansible.builtin.ssh",)),
)


class CallbackModule(CallbackBase):
    """Acts once, before the plays."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.preload"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Load, and keep the workers' garbage collections off what they inherit (gc.freeze: a write copies a page)."""
        for loader, names in PRELOADED:
            for name in names:
                loader.get(name, class_only=True)
        gpu_models("all")
        gc.collect()
        gc.freeze()
