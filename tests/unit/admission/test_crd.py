"""The definition of NodeAdmission and the types that read it are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_burnin.api import crd, record
from gpu_burnin.api.heartbeat import Heartbeat, heartbeat_document
from gpu_burnin.api.machine_power import (
    Change,
    Failure,
    MachineError,
    MachinePower,
    MachineSpec,
    MachineStatus,
    Power,
    Supply,
    Wish,
    machine_document,
    parse_machine,
)
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import (
    Accepted,
    Ask,
    DrainRequest,
    Next,
    NodeAdmission,
    Request,
    Spec,
    State,
    Status,
    Transition,
    Use,
    document,
    status_document,
)
from gpu_burnin.system.codec import to_json

TIME = "2026-11-22T12:00:00Z"
ASK = Ask("admin", "loud fan", TIME)
FULL = NodeAdmission(
    "gpu-1",
    Spec(hold=ASK, quarantine=ASK, retest=ASK, repair=ASK),
    Status(
        State.READY,
        accepted=Accepted(1, "b", "r", "h", "quick", TIME, TIME, TIME, hardware={"driver": "1"}),
        last_test=record.Tested(1, "quick", "PASS", TIME),
        proofs={"quick": TIME},
        next=Next("tested", "age"),
        request=Request("id", "quick", TIME, "age"),
        leave=DrainRequest(TIME, TIME, "fault"),
        use=Use(TIME, TIME, busy=True),
        transitions=(Transition(TIME, "new", "ready", "PASS", "passed"),),
    ),
)


def version(domain: str = "muster.dev") -> dict[str, Any]:
    (found,) = crd.crd(Names(domain))["spec"]["versions"]
    assert isinstance(found, dict)
    return found


def unknown(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of `value` that a structural schema would prune."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            inner = schema.get("additionalProperties") or schema.get("properties", {}).get(key)
            if inner is None:
                yield f"{path}.{key}"
            else:
                yield from unknown(item, inner, f"{path}.{key}")
    if isinstance(value, list):
        for item in value:
            yield from unknown(item, schema["items"], f"{path}[]")


def leaves(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for one in below:
        if one:
            yield from leaves(one)


def test_everything_that_a_record_says_is_kept() -> None:
    whole = {**document(FULL, Names()), "status": status_document(FULL.status)}
    schema = version()["schema"]["openAPIV3Schema"]
    assert list(unknown({"spec": whole["spec"], "status": whole["status"]}, schema)) == []
    assert list(unknown({"spec": {"made_up": 1}}, schema)) == [".spec.made_up"]


def test_every_text_list_and_number_is_bounded() -> None:
    bounds = {"string": ("maxLength", "enum"), "array": ("maxItems",), "integer": ("maximum",)}
    for schema in leaves(version()["schema"]["openAPIV3Schema"]):
        wanted = bounds.get(schema["type"])
        assert wanted is None or any(bound in schema for bound in wanted), schema


def test_the_columns_of_kubectl_name_fields_that_there_are() -> None:
    whole = version()["schema"]["openAPIV3Schema"]
    for column in version()["additionalPrinterColumns"]:
        schema = whole
        for step in column["jsonPath"].strip(".").split("."):
            schema = schema["properties"][step]
        assert schema["type"] == ("string" if column["type"] == "date" else column["type"])


def test_the_group_is_the_domain() -> None:
    made = crd.crd(Names("fleet.example"))
    assert (made["metadata"]["name"], made["spec"]["group"]) == ("nodeadmissions.fleet.example", "fleet.example")


def test_a_heartbeat_is_kept_whole_and_has_no_status() -> None:
    made = crd.heartbeat_crd(Names("fleet.example"))
    assert (made["metadata"]["name"], made["spec"]["group"]) == ("agentheartbeats.fleet.example", "fleet.example")
    (found,) = made["spec"]["versions"]
    schema = found["schema"]["openAPIV3Schema"]
    sent = heartbeat_document("gpu-1", Heartbeat("b", TIME, TIME), Names())
    assert list(unknown({"spec": sent["spec"]}, schema)) == []
    assert schema["properties"]["spec"]["required"] == ["bootID", "startedAt", "renewTime"]
    assert "subresources" not in found


def test_a_type_without_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: complex

    with pytest.raises(TypeError, match="no schema for <class 'complex'>"):
        crd._schema(Odd)


def test_a_machine_power_is_kept_whole_and_bounded() -> None:
    made = crd.machine_crd(Names("fleet.example"))
    assert (made["metadata"]["name"], made["spec"]["group"]) == ("machinepowers.fleet.example", "fleet.example")
    (found,) = made["spec"]["versions"]
    schema = found["schema"]["openAPIV3Schema"]
    supply = Supply("cloud", "10.0.0.1", "1", "u", "s", {"type": "p5"})
    wish = Wish(Power.ON, "muster:scaler", "for a/b", TIME, "a/b", "boot")
    spec = MachineSpec(supply, 8, "h100", record.Place("r", "l", "f"), wish, ASK, ASK)
    failure = Failure(TIME, "LATE", "late", TIME)
    change = Change(TIME, "on", "x", "muster:scaler")
    status = MachineStatus(Power.ON, TIME, 1, failure, "held", TIME, TIME, (change,))
    assert list(unknown({"spec": to_json(spec), "status": to_json(status)}, schema)) == []
    assert crd.definitions(Names())[-1]["metadata"]["name"] != "machinepowers.muster.dev"
    assert crd.definitions(Names(), machines=True)[-1]["metadata"]["name"] == "machinepowers.muster.dev"
    for one in leaves(schema):
        bounds = {"string": ("maxLength", "enum"), "array": ("maxItems",), "integer": ("maximum",)}.get(one["type"])
        assert bounds is None or any(bound in one for bound in bounds), one


def test_a_machine_power_is_read_as_it_was_written_and_a_broken_one_is_one_sentence() -> None:
    wish = Wish(Power.OFF, "muster:scaler", "idle", TIME)
    machine = MachinePower("gpu-1", MachineSpec(wanted=wish), MachineStatus(Power.OFF))
    sent = {**machine_document(machine, Names()), "status": to_json(machine.status)}
    assert parse_machine(sent) == machine and machine.off
    assert not replace(machine, status=MachineStatus(Power.ON)).off
    with pytest.raises(MachineError, match="gpu-1: its MachinePower cannot be read"):
        parse_machine({"metadata": {"name": "gpu-1"}, "spec": {"gpus": "eight"}})
