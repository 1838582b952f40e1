#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A machine's power through its BMC. Thin: the client is gpu_burnin.power.redfish."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.power.redfish import Access, BmcError, Machine

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: bmc_power
short_description: Power a machine off and on through its BMC
version_added: "0.2.0"
description:
  - Asks the operating system to shut down, by Redfish; where it does not within five minutes, cuts the power. Waits
    until the BMC says that the power is off, and some seconds more, puts it on and waits until the BMC says so.
  - A machine that is off is put on.
  - A BMC that cannot be logged in to, or that is not shown to be this machine's, fails the task with nothing done. One
    that takes an order and does not carry it out is a result (RV(done) is false).
  - In check mode it logs in, compares the machine, and does nothing.
options:
  node:
    description: Name of the node, for messages.
    type: str
    required: true
  address:
    description: Address of the BMC, as HOST, HOST:PORT or https://HOST.
    type: str
    required: true
  user:
    description: User of the BMC.
    type: str
    required: true
  password:
    description: Its password.
    type: str
    required: true
  ca_file:
    description: Certificates of the authorities that may sign the BMC's; empty for those of the system.
    type: path
  verify:
    description: Whether the BMC's certificate has to be trusted.
    type: bool
    default: true
  system:
    description: Id of the machine for a BMC that has several; empty for its only one.
    type: str
    default: ""
  identity_check:
    description: Whether UUID or serial number of the machine behind the BMC has to be one that O(dmi) tells.
    type: bool
    default: true
  dmi:
    description: What the node says of itself (C(product_uuid), C(product_serial)).
    type: dict
    default: {}
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Power the machine off and on
  muster.fleet.bmc_power:
    node: gpu-1
    address: 198.51.100.201
    user: muster
    password: "{{ repair_bmc_password }}"
    dmi: {product_serial: S123456X7}
  delegate_to: localhost
"""

RETURN = r"""
done:
  description: Whether the machine was off and is on again.
  returned: success
  type: bool
message:
  description: Why not, as one sentence; empty where it is done.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "node": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "user": {"type": "str", "required": True},
    "password": {"type": "str", "required": True, "no_log": True},
    "ca_file": {"type": "path"},
    "verify": {"type": "bool", "default": True},
    "system": {"type": "str", "default": ""},
    "identity_check": {"type": "bool", "default": True},
    "dmi": {"type": "dict", "default": {}},
}


def power_cycle(module: AnsibleModule) -> dict[str, Any]:
    """Off and on. Raises FleetError where nothing was done."""
    given = module.params
    try:
        machine = Machine(
            Access(
                node=given["node"],
                address=given["address"],
                user=given["user"],
                password=given["password"],
                ca_file=given["ca_file"] or "",
                verify=given["verify"],
                system=given["system"],
            )
        )
        if given["identity_check"]:
            machine.refuse_other(given["dmi"])
    except BmcError as error:
        raise FleetError(str(error), untouched=True) from error
    if module.check_mode:
        return {"changed": True, "done": False, "message": "check mode"}
    try:
        machine.power_cycle()
    except BmcError as error:
        return {"changed": True, "done": False, "message": str(error)}
    return {"changed": True, "done": True, "message": ""}


def main() -> None:
    """Entry point."""
    run_module(power_cycle, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
