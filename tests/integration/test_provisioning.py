"""The inventory in the ledger of a real API server, written by the provisioner with its own rights.

Only here: what is wanted comes back as it was written, through the rights and the schema of a real API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.admission.carried import carried, keep
from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.provision import CRDS, Act, Provisioned, Wanted, define, entries, provision
from gpu_burnin.admission.rest import Left, renewed
from gpu_burnin.admission.restore import carry, compared, wait_until_closed
from gpu_burnin.api.crd import crd
from gpu_burnin.api.names import PROVISIONER_USER, Names
from gpu_burnin.api.record import Ask, Hardware, Identity, NodeAdmission, Spec, State, Status
from tests.integration.gate import numbers
from tests.integration.kube import MERGE_PATCH, Client, Server
from tests.integration.ledger import LEDGER

NAMES = Names()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJAmHXklaux7lqpKcV5gDZka5HDeDLI27rIyqJDQAkfk"


@pytest.fixture(scope="module")
def api(ledger: Server) -> KubeApi:
    return KubeApi(ledger.kubeconfig(PROVISIONER_USER))


def fleet(count: int) -> list[Wanted]:
    return [Wanted(f"prov-{next(numbers)}", Identity(KEY, addresses=("10.0.0.1",)), Hardware(8)) for _ in range(count)]


def apply(api: KubeApi, wanted: Sequence[Wanted], ledger_dir: Path, *, apply: bool = True) -> Provisioned:
    """The inventory, with all other entries that the tests of this server have made as if their Nodes were there."""
    ours = {one.name for one in wanted}
    others = [name for name in entries(api, NAMES) if name not in ours and not name.startswith("prov-")]
    return provision(
        api,
        NAMES,
        wanted,
        [],
        others,
        apply=apply,
        carried={one.name: carried(ledger_dir, one.name, KEY) for one in wanted},
        keep=lambda name, *seen: keep(ledger_dir, name, *seen),
    )


def test_what_the_api_server_has_kept_is_what_was_wanted(api: KubeApi, tmp_path: Path) -> None:
    wanted = fleet(200)
    would = apply(api, wanted, tmp_path, apply=False)
    assert would.changed and not {one.name for one in wanted} & entries(api, NAMES).keys()
    done = apply(api, wanted, tmp_path)
    assert {done.acts[one.name] for one in wanted} == {Act.CREATED}
    assert not apply(api, wanted, tmp_path).changed
    fewer = [replace(wanted[0], hardware=Hardware(4)), *wanted[1:]]
    done = apply(api, fewer, tmp_path)
    assert [name for name, act in done.acts.items() if act is not Act.NOTHING] == [wanted[0].name]
    assert entries(api, NAMES)[wanted[0].name].spec.hardware.gpus == 4
    apply(api, [], tmp_path)
    assert not {one.name for one in wanted} & entries(api, NAMES).keys()
    # It may look after a heartbeat that was renewed while its entry went.
    assert renewed(api, NAMES, wanted[0].name, (Left("", "", ("boot", "started")),)) == ()


def test_what_was_seen_comes_back_with_the_machine_and_a_hold_keeps_its_entry(
    api: KubeApi, admitter: Client, admin: Client, tmp_path: Path
) -> None:
    [one] = wanted = fleet(1)
    apply(api, wanted, tmp_path)
    status = {"status": {"hostKey": KEY, "highestSequence": 9, "highestReportSHA256": "9" * 64}}
    assert admitter.request("PATCH", f"{LEDGER}/{one.name}/status", status, MERGE_PATCH).status == 200
    hold = {"spec": {"hold": {"who": "admin", "why": "fan", "since": "2026-11-22T12:00:00Z"}}}
    assert admin.request("PATCH", f"{LEDGER}/{one.name}", hold, MERGE_PATCH).status == 200
    done = apply(api, [], tmp_path)
    assert not done.changed and "the hold of admin stands (fan)" in " ".join(done.notes)
    assert entries(api, NAMES)[one.name].spec.hold == Ask("admin", "fan", "2026-11-22T12:00:00Z")
    assert admin.request("PATCH", f"{LEDGER}/{one.name}", {"spec": {"hold": None}}, MERGE_PATCH).status == 200
    assert apply(api, [], tmp_path).acts == {one.name: Act.REMOVED}
    apply(api, wanted, tmp_path)
    assert entries(api, NAMES)[one.name].spec.identity.carried_sequence == 9
    apply(api, [], tmp_path)


def test_the_definition_that_the_api_server_has_is_the_one_that_was_written(api: KubeApi) -> None:
    assert not define(api, NAMES, apply=True)
    found = api.get(f"{CRDS}/{NAMES.crd}")
    older = {**crd(NAMES)["spec"], "names": {**crd(NAMES)["spec"]["names"], "shortNames": ["old"]}}
    api.replace(f"{CRDS}/{NAMES.crd}", {**found, "spec": older})
    assert define(api, NAMES, apply=False) and define(api, NAMES, apply=True)
    assert not define(api, NAMES, apply=True)


def test_after_a_restore_what_was_known_is_carried_over_with_the_provisioners_rights(
    api: KubeApi, admin: Client, tmp_path: Path
) -> None:
    faulty, new = fleet(2)
    apply(api, [faulty], tmp_path)
    then = {faulty.name: entries(api, NAMES)[faulty.name]}
    ask = Ask("ann", "smoke", "2026-11-22T12:00:00Z")
    known = Status(
        State.QUARANTINED, code="XID_FATAL", host_key=KEY, highest_sequence=9, highest_report_sha256="9" * 64
    )
    before = {
        faulty.name: replace(then[faulty.name], status=known, spec=replace(then[faulty.name].spec, quarantine=ask)),
        new.name: NodeAdmission(new.name, Spec(new.identity, new.hardware, hold=ask)),
    }
    plan = compared(before, then, "2026-11-22T12:30:00Z", "2026-11-22T11:00:00Z")
    assert set(carry(api, NAMES, plan)) == {faulty.name, new.name}
    assert carry(api, NAMES, plan) == ()
    found = entries(api, NAMES)
    spec = found[faulty.name].spec
    assert (spec.identity.carried_sequence, spec.identity.addresses) == (9, ("10.0.0.1",))
    assert spec.quarantine == replace(
        ask, who=PROVISIONER_USER, why="quarantine of ann, carried over the restore of etcd: smoke"
    )
    assert spec.restored is not None and "before it was quarantined (XID_FATAL)" in spec.restored.why
    held = found[new.name].spec.hold
    assert held is not None and held.who == PROVISIONER_USER
    doubted, left = wait_until_closed(api, NAMES, plan, 0.0)
    assert {faulty.name, new.name} <= set(doubted) and not {faulty.name, new.name} & set(left)
    # People may end it as any other.
    assert admin.request("PATCH", f"{LEDGER}/{new.name}", {"spec": {"hold": None}}, MERGE_PATCH).status == 200
    apply(api, [faulty, new], tmp_path)
    assert entries(api, NAMES)[faulty.name].spec.restored == spec.restored, "site.yml leaves it as it is"
