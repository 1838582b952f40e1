#!/usr/bin/python
"""Ansible module: what the kubelet role must know of a host before it writes anything."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import show
from ansible_collections.muster.fleet.plugins.module_utils.kube.health import Server
from ansible_collections.muster.fleet.plugins.module_utils.kube.kubelet_state import (
    foreign_certificates,
    kubeconfig_server,
    machine_id,
    node_absent,
    resolv_conf,
    will_not_register,
)

DOCUMENTATION = r"""
module: kubelet_state
short_description: Facts of a host that decide how its kubelet is set up
version_added: "0.1.0"
description:
  - Says whether the node has a client certificate that is still valid, which API server its kubeconfig names,
    whether the burn-in's gate is open, and which resolv.conf has the real name servers. Changes nothing.
  - With O(node) it also asks the API server whether a kubelet that runs has lost its Node. One that started, or got its
    certificate, less than 20 s ago may still register and is waited for.
options:
  ca:
    description: File with the CA certificates that vouch for the API server.
    type: path
    default: /etc/kubernetes/pki/ca.crt
  client_cert:
    description: Kubelet's own client certificate.
    type: path
    default: /var/lib/kubelet/pki/kubelet-client-current.pem
  kubeconfig:
    description: Kubelet's kubeconfig.
    type: path
    required: true
  gate:
    description: The gate's command; not given, the node has no gate and counts as open.
    type: list
    elements: str
    default: []
  node:
    description: Name of the node. Not given, nobody is asked for its Node.
    type: str
  serving_cert:
    description: Kubelet's own serving certificate.
    type: path
    default: /var/lib/kubelet/pki/kubelet-server-current.pem
  signer:
    description: >-
      The kubelets' CA in PEM, the one that signs first. A certificate that another CA has signed counts as none: that
      CA is being replaced. Not given, any signer is right.
    type: str
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the state of kubelet
  muster.fleet.kubelet_state:
    kubeconfig: /etc/kubernetes/kubelet.kubeconfig
    node: gpu-1
    gate: [/usr/local/bin/gpu-burnin, gate]
"""

RETURN = r"""
registered:
  description: There is a client certificate, it has not expired, and O(signer) has signed it.
  returned: success
  type: bool
server:
  description: API server in the kubeconfig, empty when there is none.
  returned: success
  type: str
gate_open:
  description: Kubelet may start now.
  returned: success
  type: bool
gate_message:
  description: The gate's own sentence when it is closed.
  returned: success
  type: str
foreign:
  description: Certificates of kubelet that another CA than O(signer) has signed.
  returned: success
  type: list
  elements: str
node_lost:
  description: >-
    Kubelet runs and has registered, but there is no Node of its name: somebody deleted it, and kubelet does not
    register again before it is restarted.
  returned: success
  type: bool
machine_id:
  description: The host's machine id, empty when it has none.
  returned: success
  type: str
resolv_conf:
  description: The resolv.conf for pods.
  returned: success
  type: str
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "ca": {"type": "path", "default": "/etc/kubernetes/pki/ca.crt"},
    "client_cert": {"type": "path", "default": "/var/lib/kubelet/pki/kubelet-client-current.pem"},
    "kubeconfig": {"type": "path", "required": True},
    "gate": {"type": "list", "elements": "str", "default": []},
    "node": {"type": "str"},
    "serving_cert": {"type": "path", "default": "/var/lib/kubelet/pki/kubelet-server-current.pem"},
    "signer": {"type": "str"},
}


def client_certificate_valid(module: AnsibleModule, path: str) -> bool:
    """True when the file exists and its first certificate has not expired."""
    if not Path(path).exists():
        return False
    code, _, _ = module.run_command(["openssl", "x509", "-checkend", "0", "-noout", "-in", path])
    return bool(code == 0)


def ask_gate(module: AnsibleModule, command: list[str]) -> tuple[bool, str]:
    """Whether kubelet may start, and the gate's sentence when not."""
    if not command:
        return True, ""
    if not os.access(command[0], os.X_OK):
        return False, f"{command[0]} is not installed; apply the role gpu_burnin first"
    code, out, err = module.run_command(command)
    output = (err.strip() or out.strip()).splitlines()
    return code == 0, "" if code == 0 else (output[-1] if output else f"{command[0]} ended with exit code {code}")


def node_lost(params: dict[str, Any], url: str) -> bool:
    """Whether kubelet runs with its certificate and has no Node any more. Raises OSError and FleetError."""
    if not params["node"] or not url:
        return False
    started_at = show("kubelet.service").started_at
    if started_at is None:
        return False
    cert = params["client_cert"]
    server = Server(url, ca=params["ca"], client_cert=cert, client_key=cert)
    age_s = time.time() - max(started_at, Path(cert).stat().st_mtime)
    return will_not_register(lambda: node_absent(server, params["node"]), age_s)


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Look at the host. Raises OSError and FleetError."""
    params = module.params
    own = [Path(params["client_cert"]), Path(params["serving_cert"])]
    foreign = [str(path) for path in foreign_certificates(own, params["signer"] or "")]
    registered = client_certificate_valid(module, params["client_cert"]) and params["client_cert"] not in foreign
    server = kubeconfig_server(Path(params["kubeconfig"]))
    gate_open, gate_message = ask_gate(module, params["gate"])
    return {
        "changed": False,
        "registered": registered,
        "foreign": foreign,
        "server": server,
        "node_lost": registered and node_lost(params, server),
        "gate_open": gate_open,
        "gate_message": gate_message,
        "machine_id": machine_id(),
        "resolv_conf": resolv_conf(),
    }


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
