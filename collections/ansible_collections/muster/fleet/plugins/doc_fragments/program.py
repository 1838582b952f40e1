"""Documentation of the options that lead to a host's gpu-burnin."""

from __future__ import annotations


class ModuleDocFragment:
    """What the modules burnin and power_grant share (PROGRAM_SPEC of module_utils.burnin)."""

    DOCUMENTATION = r"""
options:
  config:
    description: The host's configuration file; without it, the one that C(gpu-burnin) reads by itself.
    type: path
    version_added: "0.2.0"
  program:
    description: The gpu-burnin command.
    type: path
    default: /usr/local/bin/gpu-burnin
"""
