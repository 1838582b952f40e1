"""Callback: what every worker would load for itself, the controller loads once; what a run packed, the next one has."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import ansible
from ansible import constants
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import (
    action_loader,
    connection_loader,
    filter_loader,
    lookup_loader,
    module_utils_loader,
)
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.plugin_utils.packed_modules import Sources, put_away, take_out

DOCUMENTATION = r"""
name: preload
type: aggregate
short_description: Load plugins and GPU data once for all workers, and keep packed modules
version_added: "0.2.0"
description:
  - Ansible forks a worker for each task on each host, and each worker imports the filters, lookups and actions of its
    task, and reads the GPU data of C(gpu-burnin). This callback loads them before the first play, and workers inherit
    them.
  - Ansible also parses and packs each module on its first use in a run, which takes 0.2 to 0.4 s. Modules of this
    collection and of ansible-core that one run has packed are kept in C(packed-modules) in the folder of the
    environment variable E(MUSTER_CACHE), or in C(~/.cache/muster), and the next run has them, as long as no source of
    them has changed. Nothing is kept or used where others may enter that folder, or where Ansible would search a folder
    of your own for C(module_utils). In check mode it is the same; no host is touched.
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
            "muster.fleet.power_grant",
            "muster.fleet.service",
        ),
    ),
    (connection_loader, ("ansible.builtin.ssh",)),
)


SOURCES = Sources(Path(__file__).parents[2], Path(ansible.__file__).parent)


class CallbackModule(CallbackBase):
    """Acts before the plays, and after them."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.preload"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._state = ""

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Load, and keep the workers' garbage collections off what they inherit (gc.freeze: a write copies a page)."""
        for loader, names in PRELOADED:
            for name in names:
                loader.get(name, class_only=True)
        gpu_models("all")
        # What cannot be read is packed again.
        with contextlib.suppress(OSError):
            if SOURCES.complete(module_utils_loader._get_paths(subdirs=False)):
                self._state = SOURCES.state()
                take_out(_kept(), self._state, _temporary())
        gc.collect()
        gc.freeze()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Keep what was packed, unless a source has changed since. What cannot be kept, the next run packs again."""
        with contextlib.suppress(OSError):
            if self._state and SOURCES.state() == self._state:
                put_away(_kept(), self._state, _temporary())


def _kept() -> Path:
    return Path(os.environ.get("MUSTER_CACHE", Path.home() / ".cache" / "muster")) / "packed-modules"


def _temporary() -> Path:
    return Path(constants.DEFAULT_LOCAL_TMP)
