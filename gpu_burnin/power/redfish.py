"""A machine's power by Redfish, through its BMC. Every order is believed only when the power state shows it.

sushy (OpenStack Ironic's client) finds the machine, its actions and their allowed values with every maker's BMC.
community.general's redfish_command would be one task more simple, but takes an order for done once the BMC accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import sushy
from sushy import auth, exceptions
from sushy.resources.constants import PowerState, ResetType

from gpu_burnin.power.port import Clock, PowerError, Target

# A BMC answers within seconds when it is well; some take half a minute under load.
CONNECT_S, READ_S = 10.0, 60.0
# How long an operating system may take to shut down, and a power supply to do as it is told.
SHUTDOWN_S, SWITCH_S = 300.0, 120.0
# Until capacitors are empty: what a power cycle shall clear is kept by them for some seconds.
OFF_S = 15.0
_POLL_S = 1.0
# What firmware writes where nobody entered a serial number.
_NO_SERIALS = frozenset(
    {"", "0", "none", "n/a", "default string", "to be filled by o.e.m.", "not specified", "unknown"}
)


class BmcError(PowerError):
    """A BMC that refuses, does not answer, or does not do as it is told; one sentence."""


@dataclass(frozen=True)
class Access:
    """How a node's BMC is reached. `ca_file` "" means the system's authorities; `system` "" the only machine it has.

    `settings` is what the names of these begin with where a person sets them, `otherwise` what he may do beside
    correcting the address of another machine's BMC.
    """

    node: str
    address: str
    user: str
    password: str
    ca_file: str = ""
    verify: bool = True
    system: str = ""
    settings: str = "repair_bmc_"
    otherwise: str = ", or set repair_bmc_identity_check to false for machines that share or hide them"

    def __repr__(self) -> str:
        return f"Access({self.node}, {self.address})"

    @property
    def url(self) -> str:
        """https alone: the password goes along. Raises BmcError for another."""
        url = self.address if "://" in self.address else f"https://{self.address}"
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            raise BmcError(
                f"{self.node}: {self.settings}address {self.address} is no address for https; write HOST, HOST:PORT or "
                "https://HOST"
            )
        return url


class Machine:
    """The machine behind a BMC. All methods raise BmcError."""

    def __init__(self, access: Access, clock: Clock | None = None) -> None:
        """Log in and find it."""
        self.access = access
        self._clock = clock or Clock()
        verify: bool | str = (access.ca_file or True) if access.verify else False
        self._system: Any = self._ask("find its machine", lambda: self._find(verify))

    def _find(self, verify: bool | str) -> Any:
        root = sushy.Sushy(
            self.access.url,
            # A session would have to be ended, and a BMC has few of them.
            auth=auth.BasicAuth(self.access.user, self.access.password),
            verify=verify,
            server_side_retries=0,
            read_timeout=READ_S,
            connect_timeout=CONNECT_S,
        )
        return root.get_system(f"/redfish/v1/Systems/{self.access.system}" if self.access.system else None)

    @property
    def on(self) -> bool:
        """Whether the BMC says that the power is on. A state on the way (PoweringOff) is on still."""
        self._ask("say whether the power is on", self._system.refresh)
        state = self._system.power_state
        if state is None:
            raise BmcError(f"{self._name} does not say whether the power is on; look at its firmware's Redfish service")
        return bool(state is not PowerState.OFF)

    def refuse_other(self, dmi: Mapping[str, str]) -> None:
        """Refuse a BMC of another machine: nobody's work is ended by a wrong line in the inventory.

        `dmi` is what the node itself says (system.host). One of UUID and serial number has to be the same.
        """
        own_uuid, own_serial = dmi.get("product_uuid", ""), dmi.get("product_serial", "")
        uuid, serial = str(self._system.uuid or ""), str(self._system.serial_number or "")
        if own_uuid and uuid and _hex(uuid) in _orders(own_uuid):
            return
        if _known(own_serial) and own_serial.strip().lower() == serial.strip().lower():
            return
        raise BmcError(
            f"{self._name} is not shown to be that of this node: it tells UUID {uuid or 'none'} and serial number "
            f"{serial or 'none'}, the node UUID {own_uuid or 'none'} and serial number {own_serial or 'none'}; correct "
            f"{self._settings}address{self.access.otherwise}"
        )

    def power_cycle(self, off_s: float = OFF_S) -> None:
        """Off, with an orderly shutdown where that works, and on again. A machine that is off is put on."""
        if self.on:
            self.turn_off()
            self._clock.sleep(off_s)
        self.turn_on()

    def turn_on(self) -> None:
        """Have the power on; returns when the BMC shows that it is."""
        self._order(ResetType.ON)
        self._await(True, ResetType.ON, SWITCH_S)

    def turn_off(self) -> None:
        """Have the power off, with an orderly shutdown where that works; returns when the BMC shows that it is."""
        if not self._shut_down():
            self._order(ResetType.FORCE_OFF)
            self._await(False, ResetType.FORCE_OFF, SWITCH_S)

    def _shut_down(self) -> bool:
        """Ask the operating system to end; whether it did. One that hangs does not."""
        allowed = self._ask("name its orders", self._system.get_allowed_reset_system_values)
        if ResetType.GRACEFUL_SHUTDOWN not in allowed:
            return False
        try:
            self._order(ResetType.GRACEFUL_SHUTDOWN)
            self._await(False, ResetType.GRACEFUL_SHUTDOWN, SHUTDOWN_S)
        except BmcError:
            return False
        return True

    def _order(self, kind: ResetType) -> None:
        self._ask(f"take the order {kind.value}", lambda: self._system.reset_system(kind))

    def _await(self, on: bool, kind: ResetType, timeout_s: float) -> None:
        deadline_s = self._clock.now_s() + timeout_s
        while self.on is not on:
            if self._clock.now_s() >= deadline_s:
                raise BmcError(
                    f"{self._name} took the order {kind.value}, and {timeout_s:.0f} s later the power is still "
                    f"{'off' if on else 'on'}; look at the BMC's own log, and restart the BMC"
                )
            self._clock.sleep(_POLL_S)

    @property
    def _settings(self) -> str:
        return self.access.settings

    @property
    def _name(self) -> str:
        return f"{self.access.node}: its BMC {self.access.address}"

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except exceptions.AccessError as error:
            raise BmcError(
                f"{self._name} refuses user {self.access.user} to {what}; correct {self._settings}user and the password"
            ) from error
        except exceptions.ConnectionError as error:
            if "certificate" in str(error).lower():
                raise BmcError(
                    f"{self._name} has a certificate that cannot be trusted ({_cause(error)}); give its authority as "
                    f"{self._settings}ca_file"
                ) from error
            raise BmcError(
                f"{self._name} does not answer ({_cause(error)}); check {self._settings}address and the way to its "
                "network"
            ) from error
        except exceptions.HTTPError as error:
            detail = str(error.detail or "no word").rstrip(".")
            raise BmcError(
                f"{self._name} cannot {what}: it answered {error.status_code} ({detail}); look at the BMC's own log"
            ) from error
        except (exceptions.SushyError, ValueError, KeyError, OSError) as error:
            detail = " ".join(str(error).split()).rstrip(".")
            raise BmcError(f"{self._name} cannot {what} ({detail}); look at its Redfish service") from error


@dataclass(frozen=True)
class Redfish:
    """The machines whose BMCs take this user. See port.Provider."""

    user: str
    password: str
    ca_file: str = ""
    verify: bool = True
    clock: Clock = field(default_factory=Clock)

    def __repr__(self) -> str:
        return f"Redfish({self.user})"

    def is_on(self, target: Target) -> bool:
        """See port.Provider. What another machine's BMC says is no answer."""
        return self._machine(target).on

    def turn_on(self, target: Target) -> None:
        """See port.Provider."""
        machine = self._machine(target)
        if not machine.on:
            machine.turn_on()

    def turn_off(self, target: Target) -> None:
        """See port.Provider."""
        machine = self._machine(target)
        if machine.on:
            machine.turn_off()

    def _machine(self, target: Target) -> Machine:
        if not (target.uuid or target.serial):
            raise BmcError(
                f"{target.name}: neither UUID nor serial number of it is pinned, so nobody knows whose BMC answers; "
                "give fleet_power.uuid or fleet_power.serial"
            )
        access = Access(
            node=target.name,
            address=target.address,
            user=self.user,
            password=self.password,
            ca_file=self.ca_file,
            verify=self.verify,
            system=target.system,
            settings="fleet_power.",
            otherwise=", or fleet_power.uuid and fleet_power.serial, which are pinned",
        )
        machine = Machine(access, self.clock)
        machine.refuse_other({"product_uuid": target.uuid, "product_serial": target.serial})
        return machine


def _cause(error: Exception) -> str:
    """The innermost words of an error that others wrap."""
    text = " ".join(str(error).split())
    return text.rpartition("Caused by ")[2].rpartition("Error: ")[2].strip("()'\" .") or text


def _known(serial: str) -> bool:
    return serial.strip().lower() not in _NO_SERIALS


def _hex(uuid: str) -> str:
    return uuid.replace("-", "").lower()


def _orders(uuid: str) -> frozenset[str]:
    """A UUID, and the same with its first three fields in the other byte order: firmware differs (SMBIOS 2.6)."""
    plain = _hex(uuid)
    fields = plain[0:8], plain[8:12], plain[12:16]
    swapped = "".join("".join(part[at : at + 2] for at in range(len(part) - 2, -2, -2)) for part in fields)
    return frozenset({plain, swapped + plain[16:]})
