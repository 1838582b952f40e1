#!/usr/bin/python
"""Ansible module: which files and services of a host still depend on a CA that is being replaced."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import (
    modification_times,
    newer_files,
    show,
)
from ansible_collections.muster.fleet.plugins.module_utils.pki import pem_certificates as pem

DOCUMENTATION = r"""
module: pki_scan
short_description: Say which files and services of a host still depend on a CA that is being replaced
version_added: "0.2.0"
description:
  - Looks at every certificate below O(folders) and in O(files). Names the files that trust the old CA and not yet the
    new one, and those with a certificate that the old CA has signed.
  - A service that runs since before its files came trusts and shows what it has read. It is named too. Changes nothing.
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
  services:
    description:
      - Who reads which of these files at start. Those that do not run do not count.
      - Without it, each service that a role restarts, or reloads, when a CA changes.
    type: list
    elements: dict
    suboptions:
      unit:
        description: The systemd unit.
        type: str
        required: true
      reads:
        description: Its files, or folders of them.
        type: list
        elements: path
        required: true
      loaded:
        description: A file that the unit touches when it reads them, at start and at a reload.
        type: path
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
      phase:
        description: Whether the CA that comes is trusted only, or signs already.
        type: str
        choices: [trusted, reissued]
        required: true
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Check whether the old CA can be removed
  muster.fleet.pki_scan:
    exchanges: "{{ hostvars['localhost'].rotation.under_way }}"
"""

RETURN = r"""
lacking:
  description:
    - Files that trust the old CA and not the new one,
      and services that have not read a file with both, before the new one signs.
  type: list
  elements: str
  returned: always
signed_by_old:
  description:
    - Files with a certificate that the old CA has signed,
      and services that have not read their certificate of the new one, once that signs.
  type: list
  elements: str
  returned: always
"""

_KUBERNETES = "/etc/kubernetes"
# As restart_after and reload_after of the roles have it.
SERVICES: list[dict[str, Any]] = [
    {"unit": "etcd.service", "reads": ["/etc/etcd/pki/ca.crt", "/etc/etcd/pki/member.crt"]},
    {"unit": "kube-apiserver.service", "reads": [f"{_KUBERNETES}/pki"]},
    {"unit": "kube-controller-manager.service", "reads": [f"{_KUBERNETES}/controller-manager"]},
    {"unit": "kube-scheduler.service", "reads": [f"{_KUBERNETES}/scheduler"]},
    {"unit": "kubelet.service", "reads": [f"{_KUBERNETES}/pki/ca.crt"]},
    {"unit": "kube-proxy.service", "reads": [f"{_KUBERNETES}/pki/ca.crt", f"{_KUBERNETES}/pki/kube-proxy.crt"]},
    {"unit": "coredns.service", "reads": ["/etc/coredns"]},
    {"unit": "muster-admitter.service", "reads": ["/etc/muster"]},
    {"unit": "muster-scaler.service", "reads": ["/etc/muster-scaler"]},
    {"unit": "kueue.service", "reads": ["/etc/kueue"]},
    {"unit": "jobset.service", "reads": ["/etc/jobset"]},
    {"unit": "muster-metrics.service", "reads": ["/etc/muster-metrics"]},
    {"unit": "haproxy.service", "reads": ["/etc/haproxy"], "loaded": "/run/haproxy/loaded"},
]
_KUBELET = [f"/var/lib/kubelet/pki/kubelet-{name}-current.pem" for name in ("client", "server")]
ARGUMENT_SPEC: dict[str, Any] = {
    "folders": {"type": "list", "elements": "path", "default": ["/etc"]},
    "files": {"type": "list", "elements": "path", "default": _KUBELET},
    "signers": {
        "type": "list",
        "elements": "path",
        "default": ["/etc/kubernetes/controller-manager/kubelet-ca.crt"],
    },
    "services": {
        "type": "list",
        "elements": "dict",
        "options": {
            "unit": {"type": "str", "required": True},
            "reads": {"type": "list", "elements": "path", "required": True},
            "loaded": {"type": "path"},
        },
    },
    "exchanges": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "authority": {"type": "str", "required": True},
            "old": {"type": "str", "required": True},
            "new": {"type": "str", "required": True},
            "phase": {"type": "str", "choices": ["trusted", "reissued"], "required": True},
        },
    },
}


def scan(module: AnsibleModule) -> dict[str, Any]:
    """Look at the files, and at who has read them. Raises FleetError."""
    given = module.params
    exchanges = [(_exchange(one), one["phase"]) for one in given["exchanges"]]
    files = [
        *pem.files_below([Path(folder) for folder in given["folders"]]),
        *pem.with_certificates([Path(file) for file in given["files"]]),
    ]
    lacking = {path for exchange, _ in exchanges for path in pem.lacking(files, exchange)}
    services = given["services"] or SERVICES
    new = {
        phase: {path for exchange, at in exchanges if at == phase for path in pem.of_new(files, exchange)}
        for phase in ("trusted", "reissued")
    }
    return {
        "changed": False,
        "lacking": [*sorted(lacking - set(given["signers"])), *_not_read(services, new["trusted"])],
        "signed_by_old": [
            *sorted({path for exchange, _ in exchanges for path in pem.signed_by_old(files, exchange)}),
            *_not_read(services, new["reissued"]),
        ],
    }


def _not_read(services: list[dict[str, Any]], files: set[str]) -> list[str]:
    """The services that run since before one of their files came, and which that is. Raises FleetError."""
    found = []
    for service in services:
        own = [file for file in files if any(Path(file).is_relative_to(place) for place in service["reads"])]
        at = _read_at(service) if own else None
        if at is not None and (newer := newer_files(at, modification_times(own), time.time())):
            found.append(f"{service['unit']} (runs since before {', '.join(newer)})")
    return found


def _read_at(service: dict[str, Any]) -> float | None:
    """When a service read its files, in Unix time; None for one that does not run."""
    started_at = show(service["unit"]).started_at
    marker = Path(service["loaded"]) if service.get("loaded") else None
    if started_at is None or marker is None or not marker.exists():
        return started_at
    return max(started_at, marker.stat().st_mtime)


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
