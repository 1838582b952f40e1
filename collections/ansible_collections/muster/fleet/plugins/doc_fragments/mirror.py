"""Documentation that modules share: files that come from a mirror (options: module_utils/host/binaries.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options:
  url:
    description: Folder of the files. http, https or file (a folder on the host).
    type: str
    required: true
  checksums:
    description: SHA-256 of each file, by its name.
    type: dict
    required: true
  timeout_s:
    description: Give up when the mirror is silent for so long, in seconds.
    type: float
    default: 30
"""
