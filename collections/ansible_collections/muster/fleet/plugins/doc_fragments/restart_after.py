"""Documentation that modules share: files that make a restart necessary (module_utils/host/systemd_unit.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options:
  restart_after:
    description: Files, or folders of files, that the unit reads at start. A newer one makes a restart necessary.
    type: list
    elements: path
    default: []
"""
