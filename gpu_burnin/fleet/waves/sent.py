"""What a worker is sent of the inventory: its shard's hosts, and of their variables those that the burn-in needs. Pure.

Everything else stays: whatever is not named here may be a secret.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError

# Of fleet and gpu_burnin, and of Ansible what says how a node is reached. No password, and no path of a private key: a
# worker logs in with its own.
_NAMED = frozenset(
    {
        *("fleet_name", "fleet_domain", "fleet_known_hosts", "fleet_address", "fleet_place", "fleet_feed_limits"),
        *("fleet_api_address", "fleet_api_port", "fleet_api_local_balancer", "fleet_node_api_url"),
        *("fleet_maintenance", "fleet_maintenance_before_s", "fleet_wheelhouse_url"),
        *("ansible_host", "ansible_port", "ansible_user", "ansible_connection", "ansible_python_interpreter"),
        *("ansible_become", "ansible_become_method", "ansible_ssh_common_args", "ansible_ssh_extra_args"),
    }
)
_PREFIX = "gpu_burnin_"
_SECRET = ("__ansible_vault", "$ANSIBLE_VAULT", "PRIVATE KEY-----")
_PLAYBOOK = "burnin.yml"


def refuse(playbook: str, arguments: Sequence[str]) -> None:
    """Raise GpuBurninError for a roll that workers may not have a part of."""
    if Path(playbook).name != _PLAYBOOK:
        raise GpuBurninError(
            f"{playbook} cannot run on workers: its plays use the certificates, locks or records of this controller; "
            f"{_PLAYBOOK} can; roll {playbook} without --worker"
        )
    words = iter(arguments)
    for word in words:
        value = next(words, "")
        named = value.startswith(_PREFIX) and "=" in value and " " not in value
        if not ((word in ("-e", "--extra-vars") and named) or (word in ("-f", "--forks") and value.isdigit())):
            raise GpuBurninError(
                f"{word} {value}".rstrip() + " cannot go to workers, since it may name a file or a secret of this "
                f"controller; --forks N and -e {_PREFIX}NAME=VALUE can"
            )


def inventory(exported: bytes, hosts: Collection[str], sealed: Collection[str] = ()) -> bytes:
    """The part of an exported inventory that a worker gets. Raises GpuBurninError where a secret would be in it.

    `sealed` are variables that stand in encrypted files, as secret as values that are encrypted.
    """
    given: Mapping[str, Any] = json.loads(exported)
    groups: dict[str, Any] = {}
    for name, group in given.items():
        if name == "_meta":
            continue
        # Names of other hosts stay, since what a role does may depend on whether there is such a group.
        groups[name] = {key: group[key] for key in ("hosts", "children") if key in group}
        groups[name]["vars"] = _allowed(group.get("vars") or {}, f"the group {name}", sealed)
    known = given.get("_meta", {}).get("hostvars", {})
    hostvars = {host: _allowed(known.get(host, {}), host, sealed) for host in sorted(hosts)}
    return json.dumps({**groups, "_meta": {"hostvars": hostvars}}).encode()


def _allowed(variables: Mapping[str, Any], owner: str, sealed: Collection[str]) -> dict[str, Any]:
    kept = {name: value for name, value in variables.items() if name in _NAMED or name.startswith(_PREFIX)}
    for name, value in kept.items():
        if name in sealed or any(word in json.dumps(value) for word in _SECRET):
            raise GpuBurninError(
                f"{name} of {owner} is encrypted or has a private key in it, and workers get no secrets; write it "
                "otherwise, or roll without --worker"
            )
    return kept
