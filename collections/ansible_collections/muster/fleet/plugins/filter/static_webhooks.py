"""Jinja filter: a program's webhooks as files for the API servers' disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs import manifests

DOCUMENTATION = r"""
name: static_webhooks
short_description: A program's webhooks as files for the API servers' disks
version_added: "0.2.0"
description:
  - Turns the webhooks of the mirror's C(NAME-manifests.json) into what manifest-based admission control takes
    (Kubernetes 1.36). They call the program on the API server's own host by URL, and no API client can see, change or
    delete them.
  - Webhooks of resources that are not named are left out.
options:
  _input:
    description: The objects of C(NAME-manifests.json).
    type: list
    elements: dict
    required: true
  name:
    description: Name of the program.
    type: str
    required: true
  url:
    description: Where the program answers, without a path.
    type: str
    required: true
  ca:
    description: CA certificates in PEM that vouch for it; both while a CA is replaced.
    type: str
    required: true
  team_label:
    description: Label of the namespaces of teams.
    type: str
    default: ""
  of_teams:
    description: Resources as group/resource, such as C(batch/jobs), that it is asked about in namespaces of teams.
    type: list
    elements: str
    default: []
  groups:
    description: API groups that it is asked about everywhere, its own.
    type: list
    elements: str
    default: []
  pod_label:
    description: Label of the pods that it is asked about everywhere, its own.
    type: str
    default: ""
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
files: >-
  {{ lookup('ansible.builtin.file', 'kueue-manifests.json') | from_json
     | muster.fleet.static_webhooks('kueue', 'https://127.0.0.1:10272', ca, team_label='muster.dev/team',
                                    of_teams=['batch/jobs'], groups=['kueue.x-k8s.io']) }}
# => {'MutatingAdmissionWebhook': '{...}', 'ValidatingAdmissionWebhook': '{...}'}
"""

RETURN = r"""
_value:
  description: For each admission plugin the text of its file.
  type: dict
"""


def static_webhooks(
    objects: Sequence[Mapping[str, Any]], name: str, url: str, ca: str, **options: Any
) -> dict[str, str]:
    """As module_utils/jobs/manifests.py. Raises AnsibleFilterError."""
    try:
        return manifests.static_webhooks(objects, name, url, ca, **options)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"static_webhooks": static_webhooks}
