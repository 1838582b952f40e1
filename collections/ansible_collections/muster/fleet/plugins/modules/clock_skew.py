#!/usr/bin/python
"""Ansible module: what time a host has. Its action compares it with the controller's."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

DOCUMENTATION = r"""
module: clock_skew
short_description: Refuse a host whose clock differs from the controller's
version_added: "0.2.0"
description:
  - For work on etcd and API servers, whose leases are long or short while clocks differ.
  - The time on the way counts for the host, so that a slow link is no skew.
options:
  max_skew_s:
    description: Seconds by which the clocks may differ.
    type: float
    default: 0.5
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Refuse a clock that differs
  muster.fleet.clock_skew:
    max_skew_s: 0.5
"""

RETURN = r"""
clock_s:
  description: The host's clock, in seconds since 1970.
  type: float
  returned: success
ahead_s:
  description: By how much it is ahead of the controller's, in seconds; negative where it is behind.
  type: float
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {"max_skew_s": {"type": "float", "default": 0.5}}


def read_clock(_: AnsibleModule) -> dict[str, Any]:
    """The time now."""
    return {"changed": False, "clock_s": time.time()}


def main() -> None:
    """Entry point."""
    run_module(read_clock, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
