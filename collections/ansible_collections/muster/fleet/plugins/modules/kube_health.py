#!/usr/bin/python
"""Ansible module: a unit running and up to date (optional), and its server answering as it should."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import (
    RESTART_OPTIONS,
    Wanted,
    bring_up,
    log_tail,
)
from ansible_collections.muster.fleet.plugins.module_utils.kube.health import (
    Check,
    Server,
    message,
    wait,
)

DOCUMENTATION = r"""
module: kube_health
short_description: Wait until a Kubernetes component answers as it should
version_added: "0.1.0"
description:
  - Asks a server over HTTP(S) until every check passes in one round or the deadline is over.
  - With O(unit) it first brings up a systemd unit, enabled, and restarts (or reloads) it when files that it read are
    newer than what runs. Times are compared instead of notified, since a killed run loses its handlers. One task with
    C(throttle) 1 is then a rolling restart in which the next host waits for the health of the one before.
  - In check mode it changes nothing, asks once and never fails for an unhealthy answer.
options:
  server:
    description: URL of the server without a path, such as C(https://198.18.7.31:6443).
    type: str
    required: true
  ca:
    description: File with the CA certificates that vouch for the server; the system's when not given.
    type: path
  client_cert:
    description: File with the client certificate, where one is needed.
    type: path
  client_key:
    description: File with the client certificate's key.
    type: path
  unit:
    description: Systemd unit to enable, start and keep up to date first. Its own files always count for a restart.
    type: str
  reload_after:
    description: Files, or folders of files, whose change needs a reload only.
    type: list
    elements: path
    default: []
  reload_marker:
    description: File that the unit touches whenever it starts or reloads; tells which files are newer.
    type: path
  deadline_s:
    description: How long to ask, in seconds. 0 asks once.
    type: float
    default: 60.0
  interval_s:
    description: How long to wait between two rounds, in seconds.
    type: float
    default: 0.5
  checks:
    description: The requests, in order.
    type: list
    elements: dict
    default: [{path: /readyz}]
    suboptions:
      path:
        description: Path with query.
        type: str
        required: true
      method:
        description: HTTP method; PATCH is server-side apply.
        type: str
        choices: [GET, PATCH]
        default: GET
      body:
        description: Object to send as JSON.
        type: dict
      status:
        description: Expected HTTP status.
        type: int
        default: 200
      contains:
        description: Text that the answer must contain.
        type: str
      matches:
        description: Python regular expression that must be found in the answer.
        type: str
      hint:
        description: What to do when the check does not pass; ends the error message.
        type: str
        default: ""
extends_documentation_fragment:
  - muster.fleet.restart_after
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run kube-apiserver
  muster.fleet.kube_health:
    unit: kube-apiserver.service
    restart_after: [/usr/local/bin/kube-apiserver, /etc/kubernetes/pki]
    server: "{{ fleet_address | muster.fleet.endpoint(fleet_api_server_port) }}"
    ca: /etc/kubernetes/pki/ca.crt
    deadline_s: 120
  throttle: 1
"""

RETURN = r"""
healthy:
  description: Whether every check passed.
  returned: success
  type: bool
elapsed_s:
  description: Seconds from the beginning to the last answer.
  returned: success
  type: float
actions:
  description: What was done to the unit (or would be, in check mode), of daemon-reload, enable, start, restart, reload.
  returned: success
  type: list
  elements: str
log:
  description: The unit's last lines of the journal.
  returned: failure, with O(unit)
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "server": {"type": "str", "required": True},
    "ca": {"type": "path"},
    "client_cert": {"type": "path"},
    # The path of a key, not a key.
    "client_key": {"type": "path", "no_log": False},
    "unit": {"type": "str"},
    **RESTART_OPTIONS,
    "reload_after": {"type": "list", "elements": "path", "default": []},
    "reload_marker": {"type": "path"},
    "deadline_s": {"type": "float", "default": 60.0},
    "interval_s": {"type": "float", "default": 0.5},
    "checks": {
        "type": "list",
        "elements": "dict",
        "default": [{"path": "/readyz"}],
        "options": {
            "path": {"type": "str", "required": True},
            "method": {"type": "str", "choices": ["GET", "PATCH"], "default": "GET"},
            "body": {"type": "dict"},
            "status": {"type": "int", "default": 200},
            "contains": {"type": "str"},
            "matches": {"type": "str"},
            "hint": {"type": "str", "default": ""},
        },
    },
}


def ask(module: AnsibleModule) -> dict[str, Any]:
    """Bring the unit up, if one is given, and ask the server. Raises FleetError."""
    params = module.params
    server = Server(params["server"], params["ca"], params["client_cert"], params["client_key"])
    unit = params["unit"]
    wanted = Wanted(unit, params["restart_after"], params["reload_after"], params["reload_marker"]) if unit else None
    begin = time.monotonic()
    deadline_s = 0.0 if module.check_mode else params["deadline_s"]
    actions: list[str] = []
    try:
        if wanted:
            actions = list(bring_up(wanted, act=not module.check_mode).actions)
        failure = wait(server, [Check(**check) for check in params["checks"]], deadline_s, params["interval_s"])
        problem = message(server, failure, deadline_s) if failure else ""
    except FleetError as error:
        problem = str(error)
    result: dict[str, Any] = {
        "changed": bool(actions),
        "actions": actions,
        "healthy": not problem,
        "elapsed_s": round(time.monotonic() - begin, 3),
    }
    # A check run foretells; before the first real run neither unit nor certificates are there.
    if not problem or module.check_mode:
        return {**result, "msg": problem}
    raise FleetError(problem, **result, **({"log": log_tail(unit)} if unit else {}))


def main() -> None:
    """Entry point."""
    run_module(ask, ARGUMENT_SPEC, required_together=[("client_cert", "client_key")])


if __name__ == "__main__":
    main()
