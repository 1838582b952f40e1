"""Values of roles as Ansible itself renders them, for tests that run what a role would."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
_PLAIN = {
    "fleet_name": "test",
    "fleet_planned_nodes": 10,
    "fleet_api_address": "127.0.0.1",
    "fleet_pod_cidr": "10.64.0.0/16",
    "fleet_service_cidr": "10.96.0.0/16",
    "ansible_host": "127.0.0.1",
}


def template(role: str, name: str) -> str:
    """The expression of a role's template."""
    return f"lookup('ansible.builtin.template', '{ROOT / 'roles' / role / 'templates' / name}')"


def role_values(
    folder: Path,
    roles: Sequence[str],
    shown: Mapping[str, str],
    variables: Mapping[str, Any],
    groups: Sequence[str] = ("kube_apiserver",),
) -> dict[str, Any]:
    """Each expression of `shown` for a host of these groups, by the variables of these roles. Raises RuntimeError."""
    expressions = {name: f"{{{{ {expression} }}}}" for name, expression in shown.items()}
    show = {"ansible.builtin.debug": {"msg": "{{ shown | to_json | b64encode }}"}, "vars": {"shown": expressions}}
    play = {"hosts": "api-1", "gather_facts": False, "tasks": [{**show, "tags": ["show"]}]}
    used = [f"muster.fleet.{role}" for role in ("fleet", *roles)]
    (folder / "values.yml").write_text(yaml.safe_dump([{**play, "roles": used}]))
    hosts: dict[str, dict[str, dict[str, Any]]] = {group: {"hosts": {"api-1": {}}} for group in groups}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": hosts, "vars": {**_PLAIN, **variables}}}))
    # Neither the roles' tasks nor the check of their arguments, which is tagged always.
    words = ["-i", str(folder / "hosts.yml"), str(folder / "values.yml"), "--tags=show", "--skip-tags=always"]
    (folder / "ansible.cfg").write_text("[defaults]\n")
    settings = {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r'"msg": "([^"]+)"', done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    values: dict[str, Any] = json.loads(base64.b64decode(found[1]))
    return values
