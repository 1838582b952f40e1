#!/usr/bin/python
"""Ansible module: which files of a host still depend on a CA that is being replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils import pem_certificates as pem
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: pki_scan
short_description: Say which files of a host still depend on a CA that is being replaced
version_added: "0.2.0"
description:
  - Looks at every certificate below O(folders) and in O(files). Names the files that trust the old CA and not yet the
    new one, and those with a certificate that the old CA has signed. Changes nothing.
options:
  folders:
    description: Where to look; symbolic links are passed over.
    type: list
    elements: path
    default: [/etc]
  files:
    description: >-
      Files to look at as well. Kubelet keeps its earlier certificates beside those that it uses, which these links
      name.
    type: list
    elements: path
    default: [/var/lib/kubelet/pki/kubelet-client-current.pem, /var/lib/kubelet/pki/kubelet-server-current.pem]
  signers:
    description: Files with the CA that signs alone. They trust nobody, and do not count as lacking.
    type: list
    elements: path
    default: [/etc/kubernetes/controller-manager/kubelet-ca.crt]
  exchanges:
    description: The CAs that are being replaced, as RV(muster.fleet.pki_rotate#module:under_way) tells them.
    type: list
    elements: dict
    required: true
    suboptions:
      authority:
        description: Name of the CA.
        type: str
        required: true
      old:
        description: The CA that goes, in PEM.
        type: str
        required: true
      new:
        description: The CA that comes, in PEM.
        type: str
        required: true
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: See whether the old CA may go
  muster.fleet.pki_scan:
    exchanges: "{{ hostvars['localhost'].rotation.under_way }}"
"""

RETURN = r"""
lacking:
  description: Files that trust the old CA and not the new one.
  type: list
  elements: str
  returned: always
signed_by_old:
  description: Files with a certificate that the old CA has signed.
  type: list
  elements: str
  returned: always
"""

_KUBELET = [f"/var/lib/kubelet/pki/kubelet-{name}-current.pem" for name in ("client", "server")]
ARGUMENT_SPEC: dict[str, Any] = {
    "folders": {"type": "list", "elements": "path", "default": ["/etc"]},
    "files": {"type": "list", "elements": "path", "default": _KUBELET},
    "signers": {
        "type": "list",
        "elements": "path",
        "default": ["/etc/kubernetes/controller-manager/kubelet-ca.crt"],
    },
    "exchanges": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "authority": {"type": "str", "required": True},
            "old": {"type": "str", "required": True},
            "new": {"type": "str", "required": True},
        },
    },
}


def scan(module: AnsibleModule) -> dict[str, Any]:
    """Look at the files. Raises FleetError."""
    exchanges = [_exchange(given) for given in module.params["exchanges"]]
    files = [
        *pem.files_below([Path(folder) for folder in module.params["folders"]]),
        *pem.with_certificates([Path(file) for file in module.params["files"]]),
    ]
    lacking = {path for exchange in exchanges for path in pem.lacking(files, exchange)}
    return {
        "changed": False,
        "lacking": sorted(lacking - set(module.params["signers"])),
        "signed_by_old": sorted({path for exchange in exchanges for path in pem.signed_by_old(files, exchange)}),
    }


def _exchange(given: dict[str, str]) -> pem.Exchange:
    old, new = pem.first(given["old"]), pem.first(given["new"])
    if old is None or new is None or not old.key_id:
        raise FleetError(
            f"exchanges: {given['authority']} has no certificate with a key identifier; give the PEM of both CAs"
        )
    return pem.Exchange(given["authority"], old, new)


def main() -> None:
    """Entry point."""
    run_module(scan, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
