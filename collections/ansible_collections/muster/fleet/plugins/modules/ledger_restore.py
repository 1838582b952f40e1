#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Carrying over what an etcd that is restored forgets of the nodes. Thin: see gpu_burnin.admission.restore."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import ledger as etcd_ledger
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.carried import carried, keep
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.admission.restore import Plan, carry, compared, highest_of, ledger, wait_until_closed
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.system.codec import from_json, to_json
    from gpu_burnin.system.files import write_atomic

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: ledger_restore
short_description: Carry over what a restored etcd forgets of the nodes
version_added: "0.2.0"
description:
  - With O(step=compare) the ledger of a snapshot is compared with that of the etcd that it is to replace. Nothing is
    changed.
  - With O(step=keep) the difference is written into O(directory), and the highest sequences into O(ledger_dir), before
    the old data goes. What is there of a run that was killed stays.
  - With O(step=carry) it is written into the restored ledger, and the admitter is waited for, until it keeps new work
    from each node whose entry moved back. Such a node comes back when its agent has spoken, or with a test.
options:
  step:
    description: What to do.
    type: str
    choices: [compare, keep, carry]
    default: compare
  operation:
    description: The restore, as RV(muster.fleet.etcd_snapshot#module:operation) tells it.
    type: dict
    required: true
  manifest:
    description: What the snapshot says of itself.
    type: dict
    required: true
  directory:
    description: Directory on the controller that keeps the restore under way.
    type: path
    required: true
  source:
    description: The snapshot. Not needed once O(directory) has its database.
    type: path
  identity:
    description: The private key that decrypts it.
    type: path
  members:
    description: What M(muster.fleet.etcd_ledger) said of each member. Where none answers, every node is in doubt.
    type: list
    elements: dict
    default: []
  ledger_dir:
    description: Directory on the controller that keeps what was seen of machines; see M(muster.fleet.node_admission).
    type: path
    required: true
  kubeconfig:
    description: Kubeconfig of the provisioner. For O(step=carry).
    type: path
  wait_s:
    description: How long to wait for the admitter, in seconds.
    type: float
    default: 300
  domain:
    description: Group of the ledger.
    type: str
    default: muster.dev
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Carry over what was known of the nodes
  muster.fleet.ledger_restore:
    step: carry
    operation: "{{ restore_begun.operation }}"
    manifest: "{{ restore_begun.manifest }}"
    directory: "{{ fleet_state_dir }}/etcd-restore-main"
    ledger_dir: "{{ fleet_state_dir }}/admission"
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/provisioner.kubeconfig"
"""

RETURN = r"""
lines:
  description: What moves back, a sentence a node; those first that people or a fault had closed.
  type: list
  elements: str
  returned: success
moved:
  description: How many nodes' entries move back.
  type: int
  returned: success
everyone:
  description: Why every node is in doubt; empty where only those are whose entries move back.
  type: str
  returned: success
doubted:
  description: Nodes that take no new work until their agents have spoken.
  type: list
  elements: str
  returned: with O(step=carry)
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "step": {"type": "str", "choices": ["compare", "keep", "carry"], "default": "compare"},
    "operation": {"type": "dict", "required": True},
    "manifest": {"type": "dict", "required": True},
    "directory": {"type": "path", "required": True},
    "source": {"type": "path"},
    "identity": {"type": "path"},
    "members": {"type": "list", "elements": "dict", "default": []},
    "ledger_dir": {"type": "path", "required": True},
    "kubeconfig": {"type": "path"},
    "wait_s": {"type": "float", "default": 300.0},
    "domain": {"type": "str", "default": "muster.dev"},
}


def run(module: AnsibleModule) -> dict[str, Any]:
    """One step. Raises FleetError."""
    given = module.params
    kept = Path(given["directory"]) / "ledger.json"
    try:
        if given["step"] == "carry":
            return _carry(given, _read(kept), act=not module.check_mode)
        known = kept.exists()
        plan = _read(kept) if known else _compare(module)
        if given["step"] == "keep" and not known and not module.check_mode:
            _keep(given, plan)
            write_atomic(kept, json.dumps(to_json(plan)).encode())
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    return {"changed": given["step"] == "keep" and not known, **_summary(plan)}


def _summary(plan: Plan) -> dict[str, Any]:
    lines = [f"{one.name}: {one.difference}" for one in plan.nodes]
    return {"lines": lines, "moved": len(plan.nodes), "everyone": plan.why if plan.everyone else ""}


def _read(path: Path) -> Plan:
    try:
        return from_json(Plan, json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise FleetError(f"{path} cannot be read ({error}): it says what was known of the nodes; restore it") from error


def _compare(module: AnsibleModule) -> Plan:
    given = module.params
    # As asks have it: RFC 3339, UTC, whole seconds.
    since = given["operation"]["begun_at"][:19] + "Z"
    old = etcd_ledger.newest(given["members"])
    try:
        with _database(module) as database:
            then = ledger(etcd_ledger.of_database(database, given["domain"]))
    except FleetError as error:
        module.warn(f"{error}: every node is in doubt after the restore")
        then = None
    return compared(ledger(old) if old is not None else None, then, since, given["manifest"]["taken_at"])


@contextmanager
def _database(module: AnsibleModule) -> Iterator[Path]:
    """The snapshot's database: that of the restore under way, else opened for this look alone, since it is plain."""
    given = module.params
    begun = Path(given["directory"]) / "snapshot.db"
    if begun.exists():
        yield begun
        return
    looked, manifest = Path(module.tmpdir) / "snapshot.db", given["manifest"]
    identity = Path(given["identity"]) if given["identity"] else None
    # It was verified before, and is as old as it was then.
    wanted = etcd_restore.Wanted(manifest["fleet"], manifest["cluster"], float("inf"))
    try:
        etcd_restore.open_snapshot(Path(given["source"]), identity, wanted, looked, time.time())
        yield looked
    finally:
        looked.unlink(missing_ok=True)


def _keep(given: dict[str, Any], plan: Plan) -> None:
    """The highest sequences on the controller, where site.yml finds them for an entry that it makes."""
    ledger_dir, records = Path(given["ledger_dir"]), ledger(etcd_ledger.newest(given["members"]) or [])
    for one in plan.nodes:
        if one.name not in records:
            continue
        key, sequence, report = highest_of(records[one.name])
        if key and sequence > carried(ledger_dir, one.name, key)[0]:
            keep(ledger_dir, one.name, key, sequence, report)


def _carry(given: dict[str, Any], plan: Plan, *, act: bool) -> dict[str, Any]:
    told, api, names = _summary(plan), KubeApi(Path(given["kubeconfig"])), Names(given["domain"])
    if not act:
        return {"changed": True, "doubted": [], **told}
    written = carry(api, names, plan)
    doubted, still_open = wait_until_closed(api, names, plan, given["wait_s"])
    if still_open:
        raise FleetError(
            f"after {given['wait_s']:g} s the admitter has not kept new work from {', '.join(still_open[:8])}"
            f"{f' and {len(still_open) - 8} more' if len(still_open) > 8 else ''}, whose ledger moved back; the "
            "schedulers stay stopped. Look at `systemctl status muster-admitter` on the API servers' hosts, then run "
            "this again"
        )
    return {"changed": bool(written), "doubted": list(doubted), **told}


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
