#!/usr/bin/python
"""Ansible module: what a host says of itself before it is touched."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.preflight_facts import gather

DOCUMENTATION = r"""
module: preflight
short_description: Read a host's facts before it is touched
description:
  - Reads system, identity, clock, size and ports of a host. Changes nothing.
  - The action plugin adds the controller's clock before and after, so that a slow link is no clock skew.
  - The facts are judged by M(muster.fleet.preflight_report), for all hosts at once.
options:
  ports:
    description: TCP ports that the host's roles need.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The port.
        type: int
        required: true
      units:
        description: systemd units that may hold it already, on a second run.
        type: list
        elements: str
        default: []
  is_node:
    description: Whether the host runs a kubelet.
    type: bool
    default: false
  limits:
    description: What is asked of the host; handed to M(muster.fleet.preflight_report) with the facts.
    type: dict
    required: true
    suboptions:
      supported_os:
        description: Systems as C(ID VERSION_ID) of os-release.
        type: list
        elements: str
        required: true
      max_skew_s:
        description: Seconds by which the clock may differ from the controller's.
        type: float
        required: true
      min_memory_bytes:
        description: Memory at least.
        type: int
        required: true
      min_disk_free_bytes:
        description: Free space on / at least.
        type: int
        required: true
      check_product_uuid:
        description: Whether the product UUID must be the host's own.
        type: bool
        default: true
      allow_swap:
        description: Whether a node may have swap.
        type: bool
        default: false
      allow_cgroup_v1:
        description: Whether a node may have cgroup v1.
        type: bool
        default: false
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Look at the host
  muster.fleet.preflight:
    ports:
      - {port: 2379, units: [etcd.service]}
    limits:
      supported_os: [debian 12, ubuntu 24.04]
      max_skew_s: 2
      min_memory_bytes: 2147483648
      min_disk_free_bytes: 10737418240
  register: __preflight_facts
"""

RETURN = r"""
facts:
  description: The facts, sizes in bytes, times in seconds since 1970.
  returned: success
  type: dict
limits:
  description: The limits as given, defaults filled in.
  returned: success
  type: dict
is_node:
  description: As given.
  returned: success
  type: bool
"""

ARGUMENT_SPEC = {
    "ports": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "port": {"type": "int", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
        },
    },
    "is_node": {"type": "bool", "default": False},
    "limits": {
        "type": "dict",
        "required": True,
        "options": {
            "supported_os": {"type": "list", "elements": "str", "required": True},
            "max_skew_s": {"type": "float", "required": True},
            "min_memory_bytes": {"type": "int", "required": True},
            "min_disk_free_bytes": {"type": "int", "required": True},
            "check_product_uuid": {"type": "bool", "default": True},
            "allow_swap": {"type": "bool", "default": False},
            "allow_cgroup_v1": {"type": "bool", "default": False},
        },
    },
}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        facts = gather({entry["port"]: entry["units"] for entry in module.params["ports"]})
    except OSError as error:
        module.fail_json(msg=f"the host's facts cannot be read: {error.filename}: {error.strerror}")
    given = {name: module.params[name] for name in ("limits", "is_node")}
    module.exit_json(changed=False, facts=facts, **given)


if __name__ == "__main__":
    main()
