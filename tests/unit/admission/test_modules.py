"""The Ansible module node_admission, and the provisioning and the waiting in it, against a fake API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.modules import node_admission

from gpu_burnin.api.crd import crd, definitions
from gpu_burnin.api.names import READY_LABEL, Names
from tests.support.admission_helpers import BOOT, Signer, make_node
from tests.support.csr_helpers import client_csr
from tests.support.fake_api import FakeApi, Refused

RunModule = Callable[..., tuple[int, dict[str, Any]]]
NAMES = Names()
LEDGER = "nodeadmissions"
READY = {"state": "ready", "since": "2026-11-21T11:00:00Z", "code": "PASS", "message": "gpu-1: passed"}


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """Runs the module and gives its exit code and its JSON result."""

    def run(check: bool = False, **parameters: Any) -> tuple[int, dict[str, Any]]:
        arguments = {**parameters, "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit) as end:
            node_admission.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return int(end.value.code or 0), result

    return run


@pytest.fixture
def parameters(api: FakeApi, signer: Signer, tmp_path: Path) -> dict[str, Any]:
    for resource in (LEDGER, "customresourcedefinitions"):
        api.objects.setdefault(resource, {})
    return {
        "kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig")),
        "nodes": [{"name": "gpu-1", "address": "10.0.0.1", "addresses": ["10.0.0.1"], "expect": {"gpus": 8}}],
        "known_hosts": str(signer.known_hosts),
        "ledger_dir": str(tmp_path / "admission"),
        "wait_s": 0,
    }


def entry(api: FakeApi, name: str = "gpu-1") -> dict[str, Any]:
    return api.objects[LEDGER][name]


def test_the_inventory_is_written_once(run_module: RunModule, parameters: dict[str, Any], api: FakeApi) -> None:
    code, would = run_module(check=True, **parameters)
    assert (code, would["changed"], api.writes()) == (0, True, [])
    assert would["diff"]["after"]["gpu-1"]["hardware"]["gpus"] == 8
    code, done = run_module(**parameters)
    assert (code, done["changed"], done["nodes"][0]["action"]) == (0, True, "created")
    kept = {name: item["spec"] for name, item in api.objects["customresourcedefinitions"].items()}
    assert kept == {made["metadata"]["name"]: made["spec"] for made in definitions(NAMES)}
    spec = entry(api)["spec"]
    assert spec["identity"]["hostKey"].startswith("ssh-ed25519 ") and spec["identity"]["addresses"] == ["10.0.0.1"]
    assert spec["evidence"] == {"level": "standard", "maxAgeSeconds": 604800.0}
    written = len(api.writes())
    for check in (True, False):
        code, again = run_module(check=check, **parameters)
        assert (code, again["changed"], len(api.writes())) == (0, False, written)


def test_place_and_model_are_written_and_taken_back(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    before = json.dumps(entry(api)["spec"])
    assert "place" not in before and "model" not in before
    [node] = parameters["nodes"]
    there = {"rack": "r12", "switch": "leaf-7", "pdu": "p4"}
    placed = {**node, "expect": {"gpus": 8, "model": "h100-sxm5-80gb"}, "place": there}
    _, done = run_module(**{**parameters, "nodes": [placed]})
    spec = entry(api)["spec"]
    assert done["changed"] and spec["hardware"]["model"] == "h100-sxm5-80gb"
    assert spec["place"] == {"rack": "r12", "leaf": "leaf-7"}
    assert not run_module(**{**parameters, "nodes": [placed]})[1]["changed"]
    _, new = run_module(**{**parameters, "nodes": [placed, {**placed, "name": "gpu-2"}]})
    assert new["changed"] and entry(api, "gpu-2")["spec"]["place"] == {"rack": "r12", "leaf": "leaf-7"}
    run_module(**parameters)
    spec = entry(api)["spec"]
    assert "model" not in spec["hardware"] and not spec["place"]


def test_nics_and_spine_are_the_inventorys_and_one_nic_the_first_address(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    [node] = parameters["nodes"]
    assert entry(api)["spec"]["fabric"] == [{"rail": 0, "address": node["addresses"][0]}]
    nics = [{"rail": 0, "address": "198.51.100.1"}, {"rail": 1, "address": "198.51.100.2"}]
    place = {"leaf": "leaf-7", "spine": "s1"}
    run_module(**{**parameters, "nodes": [{**node, "fabric_nics": nics, "place": place}]})
    assert (entry(api)["spec"]["fabric"], entry(api)["spec"]["place"]) == (nics, place)


def test_an_entry_without_a_place_stays_as_it_was_when_something_else_changes(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    [node] = parameters["nodes"]
    run_module(**{**parameters, "nodes": [{**node, "level": "quick"}]})
    assert set(entry(api)["spec"]) == {"identity", "hardware", "evidence", "fabric"}


def test_a_place_that_cannot_be_a_label_is_refused(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    [node] = parameters["nodes"]
    code, failed = run_module(**{**parameters, "nodes": [{**node, "place": {"rack": "row 3"}}]})
    assert code == 1 and "gpu-1: fleet_place.rack is 'row 3', which cannot be" in failed["msg"] and not api.writes()


def test_the_heartbeat_of_a_node_that_has_left_goes_with_its_entry(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**{**parameters, "nodes": [{"name": "gpu-1"}, {"name": "gpu-2"}]})
    api.put("agentheartbeats", {"metadata": {"name": "gpu-1"}, "spec": {}})
    code, done = run_module(**{**parameters, "nodes": []})
    assert (code, done["changed"]) == (0, True), done
    assert (api.objects[LEDGER], api.objects["agentheartbeats"]) == ({}, {})


def test_what_people_ask_stays_when_the_inventory_changes(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    hold = {"who": "admin", "why": "loud fan", "since": "2026-11-21T11:00:00Z"}
    entry(api)["spec"]["hold"] = hold
    entry(api)["status"] = READY
    [node] = parameters["nodes"]
    _, done = run_module(**{**parameters, "nodes": [{**node, "level": "extended"}]})
    assert (done["nodes"][0]["action"], list(done["diff"]["before"])) == ("changed", ["gpu-1"])
    assert entry(api)["spec"]["evidence"]["level"] == "extended"
    assert (entry(api)["spec"]["hold"], entry(api)["status"]) == (hold, READY)


def test_an_entry_goes_when_its_node_has_gone(run_module: RunModule, parameters: dict[str, Any], api: FakeApi) -> None:
    run_module(**parameters)
    api.put_node(make_node())
    _, done = run_module(**{**parameters, "nodes": []})
    assert "gpu-1" in api.objects[LEDGER] and "not in the inventory" in done["notes"][0]
    del api.objects["nodes"]["gpu-1"]
    _, done = run_module(**{**parameters, "nodes": []})
    assert (done["changed"], api.objects[LEDGER], done["notes"]) == (True, {}, [])


ANA = {"who": "ana", "why": "loud fan", "since": "2026-11-21T11:00:00Z"}
OWED = {"code": "XID_FATAL", "bootID": BOOT, "since": "2026-11-21T11:00:00Z"}


@pytest.mark.parametrize(
    ("part", "field", "value", "note"),
    [
        ("spec", "hold", ANA, "the hold of ana stands (loud fan), so its entry stays; release it"),
        ("spec", "quarantine", ANA, "the quarantine of ana stands (loud fan), so its entry stays; release it"),
        ("spec", "repair", ANA, "the repair of ana stands (loud fan), so its entry stays; have it ended"),
        ("status", "powerCycle", OWED, "(muster node retest gpu-1 --power-cycled --reason REASON) and run this again"),
    ],
)
def test_an_entry_with_what_nobody_else_knows_stays(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, part: str, field: str, value: Any, note: str
) -> None:
    """A PASS alone would let a machine in that comes back and owes a power cycle."""
    run_module(**parameters)
    entry(api)["status"] = dict(READY)
    entry(api)[part][field] = value
    _, done = run_module(**{**parameters, "nodes": []})
    assert "gpu-1" in api.objects[LEDGER] and not done["changed"] and note in done["notes"][0]
    del entry(api)[part][field]
    assert run_module(**{**parameters, "nodes": []})[1]["changed"] and api.objects[LEDGER] == {}


def test_a_machine_that_comes_back_goes_on_from_what_was_seen(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    key = entry(api)["spec"]["identity"]["hostKey"]
    entry(api)["status"] = {**READY, "hostKey": key, "highestSequence": 9, "highestReportSHA256": "9" * 64}
    # Again with the entry that has the number from the controller alone.
    for _ in range(2):
        run_module(**{**parameters, "nodes": []})
        assert api.objects[LEDGER] == {}
        run_module(**parameters)
        identity = entry(api)["spec"]["identity"]
        assert (identity["carriedSequence"], identity["carriedReportSHA256"]) == (9, "9" * 64)
    assert not run_module(**parameters)[1]["changed"]


def test_a_key_that_is_not_pinned_any_more_stays(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, tmp_path: Path
) -> None:
    """Taken back and pinned again it would be a new key, for which an old PASS is new."""
    run_module(**parameters)
    key = entry(api)["spec"]["identity"]["hostKey"]
    (tmp_path / "empty").write_text("")
    _, done = run_module(**{**parameters, "known_hosts": str(tmp_path / "empty")})
    assert (done["changed"], entry(api)["spec"]["identity"]["hostKey"]) == (False, key)
    assert "the one in the cluster stays" in done["notes"][0]


def test_a_machine_id_that_is_not_known_now_stays_with_its_key(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, tmp_path: Path
) -> None:
    [node] = parameters["nodes"]
    run_module(**parameters)
    assert not entry(api)["spec"]["identity"].get("machineID")
    run_module(**{**parameters, "nodes": [{**node, "machine_id": "a" * 32}]})
    assert entry(api)["spec"]["identity"]["machineID"] == "a" * 32
    _, done = run_module(**parameters)
    assert (done["changed"], entry(api)["spec"]["identity"]["machineID"]) == (False, "a" * 32)
    # Another machine with the same key is told by its own id.
    run_module(**{**parameters, "nodes": [{**node, "machine_id": "b" * 32}]})
    assert entry(api)["spec"]["identity"]["machineID"] == "b" * 32
    # One of a new key that is not known is not the old one: its evidence would be refused.
    (tmp_path / "other").write_text("10.0.0.1 ssh-ed25519 AAAA\n")
    run_module(**{**parameters, "known_hosts": str(tmp_path / "other")})
    assert not entry(api)["spec"]["identity"].get("machineID")


def test_a_key_that_comes_back_goes_on_from_what_was_seen_of_it(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, tmp_path: Path
) -> None:
    run_module(**parameters)
    key = entry(api)["spec"]["identity"]["hostKey"]
    entry(api)["status"] = {**READY, "hostKey": key, "highestSequence": 9, "highestReportSHA256": "9" * 64}
    (tmp_path / "other").write_text("10.0.0.1 ssh-ed25519 AAAA\n")
    _, done = run_module(**{**parameters, "known_hosts": str(tmp_path / "other")})
    assert "its host key is another one now" in done["notes"][0]
    identity = entry(api)["spec"]["identity"]
    assert (identity["hostKey"], identity["carriedSequence"]) == ("ssh-ed25519 AAAA", 0)
    entry(api)["status"] = {**READY, "hostKey": "ssh-ed25519 AAAA"}
    run_module(**parameters)
    identity = entry(api)["spec"]["identity"]
    assert (identity["hostKey"], identity["carriedSequence"]) == (key, 9)


def test_nodes_that_nobody_knows_are_told(run_module: RunModule, parameters: dict[str, Any], api: FakeApi) -> None:
    api.put_node(make_node("stranger"))
    api.put_node(make_node("system-1"))
    system = [{"name": "system-1", "addresses": ["10.0.0.9"]}]
    [node] = parameters["nodes"]
    unmet = {**node, "name": "gpu-2", "address": "10.0.0.2"}
    _, done = run_module(**{**parameters, "nodes": [node, unmet], "system_nodes": system})
    assert [note.split(":")[0] for note in done["notes"]] == ["gpu-2", "stranger"]
    assert "its host key is not pinned" in done["notes"][0] and "nobody admits it" in done["notes"][1]


def test_an_old_ledger_begins_the_entry(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, signer: Signer
) -> None:
    directory = Path(parameters["ledger_dir"])
    directory.mkdir()
    key = " ".join(signer.key.with_suffix(".pub").read_text().split()[:2])
    seen = {"host_key": key, "highest_sequence": 41, "highest_report_sha256": "4" * 64, "admitted": None}
    (directory / "gpu-1.json").write_text(json.dumps({"schema": "muster-admission/v1", "node": "gpu-1", **seen}))
    run_module(**parameters)
    assert entry(api)["spec"]["identity"]["carriedSequence"] == 41
    _, again = run_module(**parameters)
    assert not again["changed"]
    (directory / "gpu-1.json").write_text("{")
    code, failed = run_module(**parameters)
    assert code == 1 and "cannot read the admission ledger" in failed["msg"]


def test_a_held_node_is_an_answer(run_module: RunModule, parameters: dict[str, Any], api: FakeApi) -> None:
    run_module(**parameters)
    quarantined = {
        **READY,
        "state": "quarantined",
        "code": "XID_FATAL",
        "message": "gpu-1: XID 79",
        "highestSequence": 7,
    }
    entry(api)["status"] = quarantined
    labels = {"muster.node-restriction.kubernetes.io/verdict": "fail"}
    api.put_node(make_node(labels=labels))
    code, done = run_module(**parameters, expect=["gpu-1"])
    [node] = done["nodes"]
    assert (code, node["state"], node["course"], node["verdict"]) == (0, "held", "quarantined", "fail")
    assert node["reasons"] == [{"code": "XID_FATAL", "message": "gpu-1: XID 79"}]
    assert (node["boot_id"], node["sequence"]) == (BOOT, 7)
    # The ledger is written first: until the Node is, the node takes no work.
    entry(api)["status"] = READY
    _, done = run_module(**parameters, expect=["gpu-1"])
    assert done["nodes"][0]["state"] == "held"
    let_in(api)
    for check in (False, True):
        _, done = run_module(check=check, **parameters, expect=["gpu-1"])
        assert (done["nodes"][0]["state"], done["nodes"][0]["reasons"][0]["code"]) == ("ready", "PASS")


def let_in(api: FakeApi) -> None:
    """As the admitter does it."""
    node = make_node(labels={READY_LABEL: "true"})
    node["spec"]["taints"] = []
    api.put_node(node)


def test_a_closed_gate_is_told_with_the_reason_of_a_node_that_is_held_and_a_note_on_one_that_is_not(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    [node] = parameters["nodes"]
    closed = {**parameters, "nodes": [{**node, "gate_closed": "run 6 has begun"}]}
    run_module(**parameters)
    api.put_node(make_node())
    _, done = run_module(**closed)
    [reason] = done["nodes"][0]["reasons"]
    assert reason["message"].endswith("(its own gate is closed: run 6 has begun)")
    entry(api)["status"] = READY
    let_in(api)
    _, done = run_module(**closed)
    assert done["nodes"][0]["reasons"][0]["code"] == "PASS" and "gate is closed (run 6 has begun)" in done["notes"][0]


def test_evidence_that_was_not_read_yet_is_waited_for(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, signer: Signer
) -> None:
    """Else a node that has passed after its repair would be told as quarantined for its old FAIL."""
    run_module(**parameters)
    entry(api)["status"] = {**READY, "state": "quarantined", "code": "XID_FATAL", "highestSequence": 4}
    api.put_node(make_node())
    signer.publish(api)
    code, failed = run_module(**parameters, expect=["gpu-1"])
    assert code == 0 and "gpu-1: the admitter has not read the newest evidence yet" in failed["late"]
    for changed in ({"highestSequence": 5}, {"code": "EVIDENCE_SIGNATURE"}):
        entry(api)["status"] = {**READY, "state": "suspect", "highestSequence": 4, **changed}
        code, done = run_module(**parameters, expect=["gpu-1"])
        assert (code, done["nodes"][0]["state"], done["late"]) == (0, "held", "")


def test_a_node_that_waits_for_a_brake_is_waited_for_and_one_in_a_pause_is_not(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    api.put_node(make_node())
    waits = {**READY, "state": "suspect", "next": {"what": "let in", "why": "20 at once", "at": ""}}
    entry(api)["status"] = waits
    code, failed = run_module(**parameters, expect=["gpu-1"])
    assert code == 0 and "next: let in (20 at once)" in failed["late"]
    entry(api)["status"] = {**waits, "next": {"what": "let in", "why": "the fleet is paused: ana: storm", "at": ""}}
    code, done = run_module(**parameters, expect=["gpu-1"])
    assert (code, done["nodes"][0]["next"]) == (0, "let in: the fleet is paused: ana: storm")


def test_only_what_is_waited_for_is_read_again(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(**parameters)
    api.put_node(make_node())

    def let_in_after(path: str) -> None:
        if path == "/api/v1/nodes/gpu-1":
            entry(api)["status"] = READY
            let_in(api)

    monkeypatch.setattr("gpu_burnin.admission.waiting.POLL_S", 0.0)
    api.before_read = let_in_after
    api.requests.clear()
    code, done = run_module(**{**parameters, "wait_s": 60}, expect=["gpu-1"])
    assert (code, done["nodes"][0]["state"]) == (0, "ready")
    assert [path for _, path, _ in api.requests].count("/api/v1/nodes") == 2


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({}, "the admitter has not looked at it yet (no admitter leads"),
        (
            {**READY, "state": "testing", "code": "EVIDENCE_BOOT", "message": "gpu-1: evidence is of boot 2",
             "next": {"what": "wait", "why": "its burn-in", "at": ""}},
            "gpu-1: evidence is of boot 2 (EVIDENCE_BOOT); next: wait (its burn-in)",
        ),
    ],
)  # fmt: skip
def test_a_node_without_answer_is_told(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, status: dict[str, Any], word: str
) -> None:
    run_module(**parameters)
    entry(api)["status"] = status
    api.put_node(make_node())
    code, failed = run_module(**parameters, expect=["gpu-1"])
    assert code == 0 and word in failed["late"], "a node may have died, and the report comes first"


def test_a_node_that_does_not_register_is_told(run_module: RunModule, parameters: dict[str, Any], api: FakeApi) -> None:
    code, failed = run_module(**parameters, expect=["gpu-1"])
    head = "after 0 s these nodes, whose own gate is open, have not come:\n- gpu-1"
    assert code == 0 and failed["late"].startswith(head) and "kubelet has not registered" in failed["late"]
    [node] = parameters["nodes"]
    api.csrs["csr-client"] = client_csr()
    strange = [{**node, "name": "gpu-9"}]
    code, failed = run_module(**{**parameters, "nodes": strange}, expect=["gpu-9"])
    assert code == 0 and "gpu-9" in failed["late"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"device_plugin": "plugin", "mig_strategy": "single"}, {"offered": True, "migStrategy": "single"}),
        ({"device_plugin": "plugin", "mig_strategy": "none"}, {"offered": True}),
        ({"device_plugin": "plugin"}, {"offered": True}),
        ({"mig_strategy": "mixed"}, {"offered": False}),
    ],
)
def test_the_strategy_of_the_inventorys_plugin_comes_into_the_entry(
    run_module: RunModule, parameters: dict[str, Any], given: dict[str, str], kept: dict[str, Any]
) -> None:
    nodes = [{**parameters["nodes"][0], **given}]
    code, would = run_module(check=True, **{**parameters, "nodes": nodes})
    assert code == 0
    hardware = would["diff"]["after"]["gpu-1"]["hardware"]
    assert hardware == {"gpus": 8, "resource": "nvidia.com/gpu", **kept}


def test_an_expected_name_that_is_no_node_is_refused(run_module: RunModule, parameters: dict[str, Any]) -> None:
    code, done = run_module(**parameters, expect=["gpu-7"])
    assert code == 1 and "gpu-7" in done["msg"]


@pytest.mark.parametrize(("times", "word"), [(1, ""), (10**6, "changed at each of 10 tries")])
def test_a_definition_that_changes_meanwhile_is_read_again(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi, times: int, word: str
) -> None:
    """The API server itself writes its status, soon after each change."""
    run_module(**parameters)
    api.objects["customresourcedefinitions"][NAMES.crd]["spec"]["versions"] = []
    left = [times]

    def conflict(path: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise Refused(409, "the object has been modified")

    api.before_write = conflict
    code, done = run_module(**parameters)
    assert code == (1 if word else 0) and word in done.get("msg", "")


def test_an_entry_that_somebody_else_has_made_meanwhile_is_one_sentence(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    def conflict(path: str) -> None:
        if path.endswith(LEDGER):
            raise Refused(409, "already exists")

    api.before_write = conflict
    code, failed = run_module(**parameters)
    assert code == 1 and "gpu-1: somebody else has made its NodeAdmission meanwhile" in failed["msg"]


def test_a_definition_of_another_version_is_replaced(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    run_module(**parameters)
    definition = api.objects["customresourcedefinitions"][NAMES.crd]
    # What the API server adds is no difference; a field more or less in the schema is.
    definition["spec"]["conversion"] = {"strategy": "None"}
    _, same = run_module(**parameters)
    assert not same["changed"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    schema["older"] = {"type": "string"}
    _, other = run_module(**parameters)
    assert other["changed"]
    assert api.objects["customresourcedefinitions"][NAMES.crd]["spec"] == crd(NAMES)["spec"]


POWER = {"address": "10.30.0.1", "uuid": "4c4c4544-0042-3510-8047-b7c04f595631"}


def with_power(parameters: dict[str, Any], *powers: dict[str, Any], **expect: Any) -> dict[str, Any]:
    (node,) = parameters["nodes"]
    hardware = {"gpus": 8, "model": "h100-sxm5-80gb", **expect}
    nodes = [{**node, "name": f"gpu-{n}", "expect": hardware, "power": power} for n, power in enumerate(powers, 1)]
    return {**parameters, "nodes": nodes, "scale": True}


def test_a_machine_that_is_switched_gets_its_object_once(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    api.objects["machinepowers"] = {}
    given = with_power(parameters, POWER, {})
    code, would = run_module(check=True, **given)
    assert (code, would["changed"], api.writes()) == (0, True, [])
    code, done = run_module(**given)
    assert (code, done["changed"]) == (0, True)
    assert set(api.objects["machinepowers"]) == {"gpu-1"}
    assert api.objects["machinepowers"]["gpu-1"]["spec"]["supply"]["uuid"] == POWER["uuid"]
    assert "machinepowers.muster.dev" in api.objects["customresourcedefinitions"]
    assert run_module(**given)[1]["changed"] is False


def test_without_scale_no_machine_and_no_definition_is_made(
    run_module: RunModule, parameters: dict[str, Any], api: FakeApi
) -> None:
    api.unknown.add("machinepowers")
    code, _ = run_module(**{**with_power(parameters, POWER), "scale": False})
    assert code == 0 and "machinepowers" not in api.objects
    assert "machinepowers.muster.dev" not in api.objects["customresourcedefinitions"]


@pytest.mark.parametrize(
    ("powers", "expect", "says"),
    [
        ([{"adress": "10.30.0.1"}], {}, "gpu-1: fleet_power cannot be read"),
        ([{"address": "10.30.0.1"}], {}, "gpu-1: fleet_power needs address, and uuid or serial"),
        ([{"uuid": "u"}], {}, "gpu-1: fleet_power needs address, and uuid or serial"),
        ([POWER], {"model": ""}, "gpu-1: has fleet_power, and gpu_burnin_expect names not both gpus and model"),
        ([POWER, {**POWER, "uuid": "other"}], {}, "gpu-1, gpu-2: have the same BMC in fleet_power"),
        ([POWER, {**POWER, "address": "10.30.0.2"}], {}, "gpu-1, gpu-2: have the same uuid in fleet_power"),
    ],
)
def test_a_power_that_would_go_to_another_machine_is_refused_before_anything_is_written(
    run_module: RunModule,
    parameters: dict[str, Any],
    api: FakeApi,
    powers: list[dict[str, Any]],
    expect: dict[str, Any],
    says: str,
) -> None:
    code, failed = run_module(**with_power(parameters, *powers, **expect))
    assert code == 1 and says in failed["msg"] and api.writes() == []
