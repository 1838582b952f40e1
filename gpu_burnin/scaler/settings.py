"""The scaler's own configuration, /etc/muster-scaler/scaler.yaml: read strictly, each mistake one sentence.

Its secrets stand in a file of their own, which the scaler's user alone may read.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gpu_burnin.admission.calendar import Window, read_calendar
from gpu_burnin.admission.settings import SettingsError
from gpu_burnin.api.machine_power import REDFISH
from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.power.port import Provider
from gpu_burnin.power.program import CALL_S, SHOWN_S, Program
from gpu_burnin.scaler.model import Rules
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.files import read_text
from gpu_burnin.system.yaml_text import load

DEFAULT_CONFIG = Path("/etc/muster-scaler/scaler.yaml")
DEFAULT_LISTEN = "127.0.0.1:10276"
_SHARES = ("in_share", "doubt_share")
_COUNTS = ("on_per_feed", "most_failures")


@dataclass(frozen=True)
class RedfishConfig:
    """How all BMCs are logged in to. `password_file` is read when the scaler starts."""

    user: str
    password_file: str
    ca_file: str = ""
    verify: bool = True


@dataclass(frozen=True)
class ProgramConfig:
    """A program that switches machines; `command` is its path and what comes before create, delete or list."""

    command: tuple[str, ...]
    call_s: float = CALL_S
    shown_s: float = SHOWN_S


@dataclass(frozen=True)
class ScalerConfig:
    """What the scaler is told. `identity` names this host in the Lease.

    `dry_run`: it says what it would do, and does nothing. All machines are looked at each `observe_s`, `orders` of them
    at a time. After the API server could not be read, nothing is switched for `quiet_s`.
    """

    domain: str = DEFAULT_DOMAIN
    kubeconfig: str = "/etc/muster-scaler/kubeconfig"
    listen: str = DEFAULT_LISTEN
    identity: str = ""
    dry_run: bool = False
    observe_s: float = 600.0
    quiet_s: float = 300.0
    orders: int = 16
    rules: Rules = field(default_factory=Rules)
    redfish: RedfishConfig | None = None
    programs: Mapping[str, ProgramConfig] = field(default_factory=dict)
    calendar: tuple[Window, ...] = ()

    @property
    def names(self) -> Names:
        """Keys below the domain."""
        return Names(self.domain)

    @property
    def address(self) -> tuple[str, int]:
        """Where health and metrics are served."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def read_settings(path: Path) -> ScalerConfig:
    """The configuration in a file. Raises SettingsError."""
    try:
        document = load(read_text(path), path) or {}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{path}: cannot be read ({why}); run site.yml, which writes it") from error
    if not isinstance(document, Mapping):
        raise SettingsError(f"{path}: must be keys with values; see the role scaler")
    try:
        config = from_json(ScalerConfig, {key: value for key, value in document.items() if key != "calendar"})
        calendar = read_calendar(document.get("calendar"))
    except Misfit as error:
        raise SettingsError(f"{path}: {error}; correct the key, or leave it out for its default") from error
    except GpuBurninError as error:
        raise SettingsError(f"{path}: {error}") from error
    if problem := _problem(config):
        raise SettingsError(f"{path}: {problem}")
    return replace(config, identity=config.identity or socket.gethostname(), calendar=calendar)


def providers(config: ScalerConfig) -> dict[str, Provider]:
    """The providers by name. Raises SettingsError where a secret cannot be read."""
    found: dict[str, Provider] = {
        name: Program(name, one.command, one.call_s, one.shown_s) for name, one in config.programs.items()
    }
    if (given := config.redfish) is not None:
        # Only who has BMCs needs their client.
        from gpu_burnin.power.redfish import Redfish

        try:
            password = read_text(Path(given.password_file)).rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{given.password_file}: the password of the BMCs cannot be read ({error}); run site.yml, which "
                "writes it"
            ) from error
        found[REDFISH] = Redfish(given.user, password, given.ca_file, given.verify)
    return found


def _problem(config: ScalerConfig) -> str:
    """What is wrong with a value, "" for nothing."""
    host, _, port = config.listen.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        return f"listen is {config.listen!r}; give ADDRESS:PORT such as {DEFAULT_LISTEN}"
    rules = config.rules
    for name in _SHARES:
        if not 0 < (share := getattr(rules, name)) <= 1:
            return f"rules.{name} is {share:g}; give a share of the nodes above 0 and up to 1"
    for name in _COUNTS:
        if not 1 <= (count := getattr(rules, name)) <= 10_000:
            return f"rules.{name} is {count}; give 1 or more"
    for one in fields(Rules):
        if one.name.endswith("_s") and not 0 <= (seconds := getattr(rules, one.name)) <= 366 * 86_400:
            return f"rules.{one.name} is {seconds:g}; give seconds, 0 or more"
    if bad := [model for model, count in rules.spare.items() if count < 0]:
        return f"rules.spare of {bad[0]} is below 0; give the number of idle nodes that are kept"
    if not 1 <= config.orders <= 256:
        return f"orders is {config.orders}; give 1 to 256"
    if REDFISH in config.programs:
        return f"a program is called {REDFISH}, which is the BMCs' own; give it another name"
    if bad := [name for name, one in config.programs.items() if not one.command or not one.command[0].startswith("/")]:
        return f"programs.{bad[0]}.command does not begin with a path; give the program's path from the root on"
    return ""
