#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: with which keys an API server encrypts, and under which keys the values in etcd are."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys

DOCUMENTATION = r"""
module: encryption_scan
short_description: See which encryption keys an API server has and which are in use in etcd
version_added: "0.2.0"
description:
  - Tells the names of keys and their fingerprints, never a key.
  - With O(endpoints) it reads every value of etcd, page by page, and looks at its first bytes alone.
options:
  path:
    description: The API server's EncryptionConfiguration, as the role kube_apiserver writes it.
    type: path
    default: /etc/kubernetes/encryption.yaml
  endpoints:
    description: Client URLs of etcd, asked in this order until one answers. Empty, etcd is not asked.
    type: list
    elements: str
    default: []
  ca:
    description: Path of etcd's CA certificate.
    type: path
    default: /etc/kubernetes/pki/etcd-ca.crt
  cert:
    description: Path of the client certificate.
    type: path
    default: /etc/kubernetes/pki/etcd-client.crt
  key:
    description: Path of the client certificate's key.
    type: path
    default: /etc/kubernetes/pki/etcd-client.key
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: List the keys in use
  muster.fleet.encryption_scan:
    endpoints: ["https://198.18.7.11:2379"]
"""

RETURN = r"""
server:
  description: The server's keys, each as its name and a fingerprint; the first writes.
  type: list
  elements: str
  returned: success
  sample: [muster 1a2b3c4d5e6f7081]
stored:
  description: How many values in etcd are under which key.
  type: dict
  returned: success
  sample: {muster: 200}
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "default": "/etc/kubernetes/encryption.yaml"},
    "endpoints": {"type": "list", "elements": "str", "default": []},
    "ca": {"type": "path", "default": "/etc/kubernetes/pki/etcd-ca.crt"},
    "cert": {"type": "path", "default": "/etc/kubernetes/pki/etcd-client.crt"},
    # The path of a key, not a key.
    "key": {"type": "path", "default": "/etc/kubernetes/pki/etcd-client.key", "no_log": False},
}
_TIMEOUT_S = 30.0
# Values are up to 1.5 MiB, and mostly a hundredth of it.
_PAGE = 200
# Enough for the longest prefix, in whole groups of base64.
_HEAD = 512


def stored(api: etcd_api.Api) -> dict[str, int]:
    """How many of all values are under which key; those that are not encrypted are not counted. Raises FleetError."""
    found: Counter[str] = Counter()
    after = b"\0"
    while True:
        everything = base64.b64encode(b"\0").decode()
        first = base64.b64encode(after).decode()
        answer = api("/v3/kv/range", {"key": first, "range_end": everything, "limit": str(_PAGE)})
        pairs = answer.get("kvs", [])
        for pair in pairs:
            found[encryption_keys.of_value(base64.b64decode(pair.get("value", "")[:_HEAD]))] += 1
        if not pairs or not answer.get("more", False):
            break
        after = base64.b64decode(pairs[-1]["key"]) + b"\0"
    return {name: count for name, count in sorted(found.items()) if name}


def scan(module: AnsibleModule) -> dict[str, Any]:
    """Look at the server's file and at etcd. Raises FleetError, OSError."""
    given = module.params
    path = Path(given["path"])
    server = encryption_keys.of_server(path.read_text()) if path.exists() else []
    return {"changed": False, "server": server, "stored": _of_etcd(given) if given["endpoints"] else {}}


def _of_etcd(given: dict[str, Any]) -> dict[str, int]:
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    problems = []
    for endpoint in given["endpoints"]:
        try:
            return stored(etcd_api.connect(endpoint, credentials, _TIMEOUT_S))
        except FleetError as error:
            problems.append(str(error))
    raise FleetError(f"no member of etcd can be read: {'; '.join(problems)}")


def main() -> None:
    """Entry point."""
    run_module(scan, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
