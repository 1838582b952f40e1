"""Documentation that modules share: how an etcd member is reached (options: module_utils/etcd/api.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options:
  ca:
    description: Path of the CA certificate.
    type: path
    default: /etc/etcd/pki/ca.crt
  cert:
    description: Path of the client certificate.
    type: path
    default: /etc/etcd/pki/health.crt
  key:
    description: Path of the client key.
    type: path
    default: /etc/etcd/pki/health.key
"""
