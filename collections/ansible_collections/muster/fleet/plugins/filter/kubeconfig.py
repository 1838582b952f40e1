"""Jinja filter: the kubeconfig of a client with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: kubeconfig
short_description: Write the kubeconfig of a client with a certificate
description:
  - Gives the text of a kubeconfig with one cluster, one user and one context. Certificates and key are named, not held,
    so that the text is no secret.
positional: cluster, user
options:
  _input:
    description: URL of the API, such as C(https://198.18.7.41:6443).
    type: str
    required: true
  cluster:
    description: Name of the cluster and the context.
    type: str
    required: true
  user:
    description: Name of the user within the file.
    type: str
    required: true
  ca:
    description: File with the CA of the API.
    type: path
    required: true
  cert:
    description: File with the client's certificate.
    type: path
    required: true
  key:
    description: File with the key of the certificate.
    type: path
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
content: "{{ api_url | muster.fleet.kubeconfig('lab', 'admin', ca='ca.crt', cert='admin.crt', key='admin.key') }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""


class _Dumper(yaml.SafeDumper):
    """Indents lists within mappings, as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def kubeconfig(server: str, cluster: str, user: str, *, ca: str, cert: str, key: str) -> str:
    """The text of a kubeconfig. Raises AnsibleFilterError for a server that is no https URL."""
    if not str(server).startswith("https://"):
        raise AnsibleFilterError(f"{server!r} is no URL of an API server; it must begin with https://")
    names = {"cluster": str(cluster), "user": str(user)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": names["cluster"], "cluster": {"server": str(server), "certificate-authority": str(ca)}},
        ],
        "users": [{"name": names["user"], "user": {"client-certificate": str(cert), "client-key": str(key)}}],
        "contexts": [{"name": names["cluster"], "context": names}],
        "current-context": names["cluster"],
    }
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=1000)
    return text


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"kubeconfig": kubeconfig}
