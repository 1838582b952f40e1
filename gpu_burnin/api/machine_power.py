"""A MachinePower as typed values: how a machine is switched, what power is wanted of it, and what was seen.

One for each machine that the scaler may switch, named as its node. Times are RFC 3339 UTC texts ending in Z, "" for
none. The CRD (gpu_burnin/api/crd.py) is made of these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from gpu_burnin.api.names import MACHINE_KIND, MACHINE_PLURAL, Names
from gpu_burnin.api.record import Ask, Place
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.types import JSON_NAME, OMIT_DEFAULT

# The newest changes are kept in the object; all of them are in the journal and in events.
MOST_CHANGES = 20
REDFISH = "redfish"
_ABSENT: dict[str, object] = {OMIT_DEFAULT: True}


class MachineError(GpuBurninError):
    """A MachinePower that cannot be read."""


class Power(StrEnum):
    """What a machine's supply says, or should say."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Supply:
    """How its power is switched. No secret is in it: the scaler has those by the provider's name.

    `provider` is `redfish`, or the name of a program in the scaler's configuration. `address` and `system` are a BMC's.
    UUID and serial number are pinned: an order goes to no machine that has neither. `parameters` are the program's.
    """

    provider: str = REDFISH
    address: str = field(default="", metadata=_ABSENT)
    system: str = field(default="", metadata=_ABSENT)
    uuid: str = field(default="", metadata=_ABSENT)
    serial: str = field(default="", metadata=_ABSENT)
    parameters: Mapping[str, str] = field(default_factory=dict, metadata=_ABSENT)


@dataclass(frozen=True)
class Wish:
    """The power that is wanted. `since` tells one wish from the next; `who` is the API user, which the gate compares.

    `request` is the ProvisioningRequest that it is for, as NAMESPACE/NAME; `boot_id` the boot that is to end.
    """

    power: Power
    who: str
    why: str
    since: str
    request: str = field(default="", metadata=_ABSENT)
    boot_id: str = field(default="", metadata={JSON_NAME: "bootID", **_ABSENT})


@dataclass(frozen=True)
class MachineSpec:
    """What is to be switched and where it stands (the provisioner's); the wish; a person's hold, and the end of one.

    `gpus` and `model` are as in NodeAdmission. `hold` keeps the scaler's hands off; `release` is asked for after a
    failure that keeps the machine for a person.
    """

    supply: Supply = field(default_factory=Supply)
    gpus: int = 0
    model: str = ""
    place: Place = field(default_factory=Place)
    wanted: Wish | None = field(default=None, metadata=_ABSENT)
    hold: Ask | None = field(default=None, metadata=_ABSENT)
    release: Ask | None = field(default=None, metadata=_ABSENT)


@dataclass(frozen=True)
class Failure:
    """Why the machine did not do as was wished: `wish` is the `since` of that wish."""

    at: str
    code: str
    message: str
    wish: str = ""


@dataclass(frozen=True)
class Change:
    """One thing that was done with the machine, or that became of it. `who` is the scaler, or who asked."""

    at: str
    what: str
    message: str
    who: str = ""


@dataclass(frozen=True)
class MachineStatus:
    """What the scaler has seen. `failures` are those in a row; `held` is why a person has to look, "" for no reason.

    `reached` is the `since` of the wish that has come true: the node takes work, or the power is off.
    """

    power: Power = Power.UNKNOWN
    since: str = ""
    failures: int = 0
    last_failure: Failure | None = field(default=None, metadata={JSON_NAME: "lastFailure", **_ABSENT})
    held: str = field(default="", metadata=_ABSENT)
    held_since: str = field(default="", metadata={JSON_NAME: "heldSince", **_ABSENT})
    reached: str = field(default="", metadata=_ABSENT)
    changes: tuple[Change, ...] = field(default=(), metadata=_ABSENT)


@dataclass(frozen=True)
class MachinePower:
    """One object. `version` is its resourceVersion, "" for one that is not in the cluster yet."""

    name: str
    spec: MachineSpec = field(default_factory=MachineSpec)
    status: MachineStatus = field(default_factory=MachineStatus)
    version: str = ""

    @property
    def off(self) -> bool:
        """Whether it is off because that is wanted: then nobody misses it."""
        wish = self.spec.wanted
        return wish is not None and wish.power is Power.OFF and self.status.power is Power.OFF


def machines_path(names: Names, name: str = "") -> str:
    """Where the MachinePowers are, or one of them."""
    base = f"/apis/{names.api_version}/{MACHINE_PLURAL}"
    return f"{base}/{quote(name, safe='')}" if name else base


def parse_machine(document: Mapping[str, Any]) -> MachinePower:
    """A MachinePower as the API server sends it; fields of a newer version are passed over. Raises MachineError."""
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name", ""))
    try:
        return MachinePower(
            name=name,
            spec=from_json(MachineSpec, document.get("spec") or {}, tolerant=True),
            status=from_json(MachineStatus, document.get("status") or {}, tolerant=True),
            version=str(metadata.get("resourceVersion", "")),
        )
    except Misfit as error:
        raise MachineError(
            f"{name}: its {MACHINE_KIND} cannot be read ({error}); apply the CRD of this version with site.yml"
        ) from error


def machine_document(machine: MachinePower, names: Names) -> dict[str, Any]:
    """A whole object, to create."""
    return {
        "apiVersion": names.api_version,
        "kind": MACHINE_KIND,
        "metadata": {"name": machine.name},
        "spec": to_json(machine.spec),
    }
