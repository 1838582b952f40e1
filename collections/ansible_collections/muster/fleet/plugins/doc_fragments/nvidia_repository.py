"""Documentation that modules share: NVIDIA's package repository (options: module_utils/nvidia/parts.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options:
  repository_url:
    description: As C(fleet_nvidia_repository_url).
    type: str
    default: ""
  repository_key:
    description: As C(fleet_nvidia_repository_key), the public key that signs it, as armoured text.
    type: str
    default: ""
  repository_fingerprint:
    description: As C(fleet_nvidia_repository_fingerprint), the fingerprint of that key.
    type: str
    default: ""
"""
