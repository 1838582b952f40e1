"""The CustomResourceDefinitions of the fleet, made of the types in record.py, heartbeat.py, machine_power.py and
enrolment.py: what is not in them is not kept.

Every text, list and map is bounded, so that no writer can fill etcd with one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from gpu_burnin.api.enrolment import EnrolmentSpec
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.api.machine_power import MachineSpec, MachineStatus
from gpu_burnin.api.names import (
    ENROLMENT_KIND,
    ENROLMENT_PLURAL,
    HEARTBEAT_KIND,
    HEARTBEAT_PLURAL,
    KIND,
    MACHINE_KIND,
    MACHINE_PLURAL,
    PLURAL,
    VERSION,
    Names,
)
from gpu_burnin.api.record import Spec, Status
from gpu_burnin.system.codec import json_fields

MOST_CHARACTERS = 1024
MOST_ITEMS = 64
# JSON readers that know floating point alone keep integers up to here.
MOST_INTEGER = 2**53
# What `kubectl get` shows: heading, type, path. Those after the first six only with -o wide.
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("State", "string", ".status.state"),
    ("Reason", "string", ".status.code"),
    ("Since", "date", ".status.since"),
    ("Level", "string", ".status.accepted.level"),
    ("Tested", "date", ".status.lastTest.finishedAt"),
    ("Next", "string", ".status.next.what"),
    ("Expires", "string", ".status.accepted.expiresAt"),
    ("Sequence", "integer", ".status.highestSequence"),
    ("Boot", "string", ".status.accepted.bootID"),
    ("Message", "string", ".status.message"),
    ("Team", "string", ".status.team"),
)
HEARTBEAT_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Renewed", "date", ".spec.renewTime"),
    ("Started", "date", ".spec.startedAt"),
    ("Boot", "string", ".spec.bootID"),
)
MACHINE_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Power", "string", ".status.power"),
    ("Wanted", "string", ".spec.wanted.power"),
    ("Since", "date", ".spec.wanted.since"),
    ("Why", "string", ".spec.wanted.why"),
    ("Model", "string", ".spec.model"),
    ("Held", "string", ".status.held"),
    ("Failures", "integer", ".status.failures"),
    ("Provider", "string", ".spec.supply.provider"),
    ("Request", "string", ".spec.wanted.request"),
)
ENROLMENT_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Approved", "boolean", ".spec.decision.approved"),
    ("Who", "string", ".spec.decision.who"),
    ("Why", "string", ".spec.decision.why"),
    ("Token", "string", ".spec.token"),
    ("Ends", "string", ".spec.ends"),
)
_IN_FRONT = 6


def definitions(names: Names, *, machines: bool = False, enrolments: bool = False) -> tuple[dict[str, Any], ...]:
    """All of the fleet, as the API server wants them.

    `machines`: with what the scaler switches. `enrolments`: with what machines say of themselves at their first boot.
    """
    more = (*([machine_crd(names)] if machines else []), *([enrolment_crd(names)] if enrolments else []))
    return crd(names), heartbeat_crd(names), *more


def crd(names: Names) -> dict[str, Any]:
    """NodeAdmission's."""
    schema = {
        "type": "object",
        "description": "Whether a GPU node may take work, what is asked of it, and what is known of it.",
        "properties": {"spec": _schema(Spec), "status": _schema(Status)},
    }
    kept = {"subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    return _definition(names.crd, names.domain, (KIND, PLURAL, "na"), COLUMNS, kept)


def heartbeat_crd(names: Names) -> dict[str, Any]:
    """AgentHeartbeat's."""
    schema = {
        "type": "object",
        "description": "That the agent of a GPU node watches its GPUs: it renews this as long as it does.",
        "properties": {"spec": _schema(Heartbeat)},
        "required": ["spec"],
    }
    kinds = (HEARTBEAT_KIND, HEARTBEAT_PLURAL, "ahb")
    return _definition(
        names.heartbeat_crd, names.domain, kinds, HEARTBEAT_COLUMNS, {"schema": {"openAPIV3Schema": schema}}
    )


def machine_crd(names: Names) -> dict[str, Any]:
    """MachinePower's."""
    schema = {
        "type": "object",
        "description": "The power of a machine that the scaler switches: what is wanted, and what was seen.",
        "properties": {"spec": _schema(MachineSpec), "status": _schema(MachineStatus)},
    }
    kept = {"subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    return _definition(names.machine_crd, names.domain, (MACHINE_KIND, MACHINE_PLURAL, "mp"), MACHINE_COLUMNS, kept)


def enrolment_crd(names: Names) -> dict[str, Any]:
    """NodeEnrolment's."""
    schema = {
        "type": "object",
        "description": "Who a machine that boots from the fleet's image says it is, and what was decided of it.",
        "properties": {"spec": _schema(EnrolmentSpec)},
        "required": ["spec"],
    }
    kinds = (ENROLMENT_KIND, ENROLMENT_PLURAL, "ne")
    return _definition(
        names.enrolment_crd, names.domain, kinds, ENROLMENT_COLUMNS, {"schema": {"openAPIV3Schema": schema}}
    )


def _definition(
    name: str,
    group: str,
    kinds: tuple[str, str, str],
    columns: tuple[tuple[str, str, str], ...],
    kept: Mapping[str, Any],
) -> dict[str, Any]:
    """A definition of kind, plural and short name, with what its version keeps."""
    kind, plural, short = kinds
    shown = [
        {"name": heading, "type": what, "jsonPath": path, "priority": int(number >= _IN_FRONT)}
        for number, (heading, what, path) in enumerate(columns)
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "versions": [{"name": VERSION, "served": True, "storage": True, "additionalPrinterColumns": shown, **kept}],
        },
    }


def _schema(hint: Any) -> dict[str, Any]:
    """The structural schema of a type. Raises TypeError for one that it has no rule for."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (kind,) = (one for one in args if one is not NoneType)
        return _schema(kind)
    if origin is tuple:
        return {"type": "array", "maxItems": MOST_ITEMS, "items": _schema(args[0])}
    if origin is not None and issubclass(origin, Mapping):
        if args[1] is str:
            return {"type": "object", "maxProperties": MOST_ITEMS, "additionalProperties": _schema(str)}
        # Facts in words (GPU UUIDs, driver): their shape is the node's. Who writes bounds them.
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if is_dataclass(hint) and isinstance(hint, type):
        fields = json_fields(hint)
        needed = [field.json_name for field in fields if field.make is None]
        made: dict[str, Any] = {
            "type": "object",
            "properties": {field.json_name: _schema(field.hint) for field in fields},
        }
        return {**made, "required": needed} if needed else made
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"type": "string", "enum": [str(member.value) for member in hint]}
    scalars: Mapping[Any, dict[str, Any]] = {
        str: {"type": "string", "maxLength": MOST_CHARACTERS},
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64", "minimum": 0, "maximum": MOST_INTEGER},
        float: {"type": "number", "minimum": 0},
    }
    if hint in scalars:
        return scalars[hint]
    raise TypeError(f"no schema for {hint}: add a rule for it in crd.py")
