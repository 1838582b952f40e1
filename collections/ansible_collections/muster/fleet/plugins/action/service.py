"""Action side of muster.fleet.service."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.plugin_utils.placed_files import PlacingAction


class ActionModule(PlacingAction):
    """Runs that module."""

    MODULE = "service"
    OPTIONS = frozenset({"packages", "files_first", "units"})
