"""Jinja filter: the kubeconfigs of people, as files of muster.fleet.file_set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ansible_collections.muster.fleet.plugins.filter.kubeconfig import kubeconfig

DOCUMENTATION = r"""
name: user_kubeconfigs
short_description: The kubeconfigs of people, as files
version_added: "0.2.0"
description:
  - Gives for each user the file C(user-NAME.kubeconfig) of a folder. It names the files C(user-NAME.crt) and
    C(user-NAME.key), as P(muster.fleet.kubeconfig#filter) does.
positional: server, cluster, pki_dir, folder
options:
  _input:
    description: Names of users.
    type: list
    elements: str
    required: true
  server:
    description: URL of the API.
    type: str
    required: true
  cluster:
    description: Name of the cluster and the context.
    type: str
    required: true
  pki_dir:
    description: Folder with the CA of the API (C(ca.crt)), the users' certificates and their keys.
    type: path
    required: true
  folder:
    description: Where the files are to be.
    type: path
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
files: "{{ ['alice'] | muster.fleet.user_kubeconfigs(api_url, 'prod', '/srv/pki/kubernetes', '/srv/kubeconfig') }}"
"""

RETURN = r"""
_value:
  description: One dictionary with C(dest), C(content) and C(mode) for each user.
  type: list
  elements: dict
"""


def user_kubeconfigs(
    users: Iterable[str], server: str, cluster: str, pki_dir: str, folder: str
) -> list[dict[str, str]]:
    """One file for each user. Raises AnsibleFilterError for a server that is no https URL."""
    return [
        {
            "dest": f"{folder}/user-{user}.kubeconfig",
            "content": kubeconfig(server, cluster, user, pki_dir, name=f"user-{user}"),
            "mode": "0600",
        }
        for user in users
    ]


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Name to function."""
        return {"user_kubeconfigs": user_kubeconfigs}
