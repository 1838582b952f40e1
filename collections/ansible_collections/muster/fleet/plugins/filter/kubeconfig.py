"""Jinja filter: the kubeconfig of a client with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: kubeconfig
short_description: Write the kubeconfig of a client with a certificate
version_added: "0.1.0"
description:
  - Gives the text of a kubeconfig with one cluster, one user and one context. Certificates and key are named, not held,
    so that the text is no secret.
positional: cluster, user, pki_dir, name
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
  pki_dir:
    description: Folder with the CA of the API (C(ca.crt)), the client's certificate and its key.
    type: path
    required: true
  name:
    description: Name of the certificate and key without C(.crt) and C(.key); the user's where it is not given.
    type: str
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
content: "{{ api_url | muster.fleet.kubeconfig('lab', 'admin', '/srv/pki/kubernetes') }}"
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


def kubeconfig(server: str, cluster: str, user: str, pki_dir: str, name: str = "") -> str:
    """The text of a kubeconfig. Raises AnsibleFilterError for a server that is no https URL."""
    if not str(server).startswith("https://"):
        raise AnsibleFilterError(f"{server!r} is not a URL of an API server; it must begin with https://")
    names = {"cluster": str(cluster), "user": str(user)}
    client = f"{pki_dir}/{name or user}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": names["cluster"],
                "cluster": {"server": str(server), "certificate-authority": f"{pki_dir}/ca.crt"},
            },
        ],
        "users": [
            {"name": names["user"], "user": {"client-certificate": f"{client}.crt", "client-key": f"{client}.key"}}
        ],
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
