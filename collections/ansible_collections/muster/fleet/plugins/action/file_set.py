"""Action side of muster.fleet.file_set."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.plugin_utils.placed_files import PlacingAction


class ActionModule(PlacingAction):
    """Runs that module."""

    MODULE = "file_set"
