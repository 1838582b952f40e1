"""The admitter's own configuration, /etc/muster/admitter.yaml: read strictly, each mistake one sentence."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gpu_burnin.admission.approve import InventoryNode
from gpu_burnin.admission.calendar import Window, read_calendar
from gpu_burnin.admission.fabric_config import FabricRules, with_off
from gpu_burnin.admission.fabric_config import problem as fabric_problem
from gpu_burnin.admission.jobs_config import JobsConfig
from gpu_burnin.admission.jobs_config import problem as jobs_problem
from gpu_burnin.admission.schedule.rules import TestRules, parse_tests
from gpu_burnin.admission.view import Rules, RuleSeconds
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.heartbeat import RENEW_S
from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.files import read_text
from gpu_burnin.system.yaml_text import load

DEFAULT_CONFIG = Path("/etc/muster/admitter.yaml")
DEFAULT_KUBECONFIG = Path("/etc/muster/kubeconfig")
DEFAULT_LISTEN = "127.0.0.1:10270"
# Two heartbeats, and what their jitter and an API server that is restarted may add.
_LEAST_SILENT_S = 2.5 * RENEW_S
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_LISTEN = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:]+):(\d{1,5})")


class SettingsError(GpuBurninError):
    """A configuration that cannot be used; the message names file and key."""


@dataclass(frozen=True)
class SystemNode:
    """A node without GPUs that is no NodeAdmission's: its kubelet's certificates are approved, and nothing else."""

    name: str
    addresses: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdmitterConfig:
    """What the admitter is told. `identity` names this host in the Lease; shares are of the fleet's GPU nodes.

    At most `joins_per_s` nodes are let in in any second; by itself the admitter keeps at most `max_unready_share` of
    the nodes from work (new boots and people's asks are not counted), and `expire_share` of them for old evidence. All
    nodes are looked at again each `resync_s`, spread over that time. `confirm_power_cycle` is as in view.Rules.
    `jobs` is None for a fleet without teams. `mode` says how it stands to its cluster: attached, it approves no
    certificate.
    """

    domain: str = DEFAULT_DOMAIN
    kubeconfig: str = str(DEFAULT_KUBECONFIG)
    listen: str = DEFAULT_LISTEN
    identity: str = ""
    rules: RuleSeconds = field(default_factory=RuleSeconds)
    joins_per_s: float = 5.0
    max_unready_share: float = 0.2
    expire_share: float = 0.05
    system_nodes: tuple[SystemNode, ...] = ()
    workers: int = 8
    resync_s: float = 900.0
    confirm_power_cycle: bool = True
    tests: TestRules = field(default_factory=TestRules)
    calendar: tuple[Window, ...] = ()
    jobs: JobsConfig | None = None
    mode: Mode = Mode.BUILT
    fabric: FabricRules = field(default_factory=FabricRules)

    @property
    def names(self) -> Names:
        """Keys below the domain."""
        return Names(self.domain)

    @property
    def kubeconfig_path(self) -> Path:
        """Where the kubeconfig is."""
        return Path(self.kubeconfig)

    @property
    def decision_rules(self) -> Rules:
        """What decisions depend on."""
        power = self.confirm_power_cycle
        return Rules(
            **vars(self.rules), names=self.names, confirm_power_cycle=power, mode=self.mode, fabric=self.fabric
        )

    @property
    def tests_between_nodes(self) -> bool:
        """Whether anything asks for them: admission, the schedule, or a queue."""
        return self.fabric.on or (self.jobs is not None and self.jobs.gang_test)

    @property
    def address(self) -> tuple[str, int]:
        """Where health and metrics are served."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def inventory_nodes(self) -> dict[str, InventoryNode]:
        """The system nodes, for the certificates of their kubelets."""
        return {one.name: InventoryNode.of(one.name, one.addresses, one.dns_names) for one in self.system_nodes}


def read_settings(path: Path) -> AdmitterConfig:
    """The configuration in a file. Raises SettingsError (and GpuBurninError for what is below a key)."""
    try:
        document = load(read_text(path), path) or {}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{path}: cannot be read ({why}); site.yml or `muster attach` writes it") from error
    if not isinstance(document, Mapping):
        raise SettingsError(f"{path}: must be keys with values; see the role admitter")
    plain = {key: value for key, value in document.items() if key not in ("tests", "calendar")}
    if "fabric" in plain:
        plain["fabric"] = with_off(plain["fabric"])
    try:
        config = from_json(AdmitterConfig, plain)
        tests = parse_tests(document["tests"]) if "tests" in document else config.tests
        calendar = read_calendar(document.get("calendar"))
    except Misfit as error:
        raise SettingsError(f"{path}: {error}; correct the key, or leave it out for its default") from error
    except GpuBurninError as error:
        raise SettingsError(f"{path}: {error}") from error
    config = replace(config, identity=config.identity or socket.gethostname(), tests=tests, calendar=calendar)
    if problem := _problem(config):
        raise SettingsError(f"{path}: {problem}")
    config.inventory_nodes()
    return config


def _problem(config: AdmitterConfig) -> str:
    """What is wrong with a value, "" for nothing."""
    if not _DOMAIN.fullmatch(config.domain):
        return f"domain is {config.domain!r}; give a DNS name such as {DEFAULT_DOMAIN}"
    match = _LISTEN.fullmatch(config.listen)
    if match is None or not 0 <= int(match[2]) < 65536:
        return f"listen is {config.listen!r}; give ADDRESS:PORT such as {DEFAULT_LISTEN}"
    for key in ("max_unready_share", "expire_share"):
        if not 0 < (share := getattr(config, key)) <= 1:
            return f"{key} is {share:g}; give a share of the nodes above 0 and up to 1"
    if not 0 < config.joins_per_s <= 10_000:
        return f"joins_per_s is {config.joins_per_s:g}; give a number above 0 and up to 10000"
    if not 1 <= config.workers <= 64:
        return f"workers is {config.workers}; give 1 to 64"
    if not 60 <= config.resync_s <= 86_400:
        return f"resync_s is {config.resync_s:g}; give 60 to 86400 seconds"
    for f in fields(RuleSeconds):
        if not 0 <= (seconds := getattr(config.rules, f.name)) <= 366 * 86_400:
            return f"rules.{f.name} is {seconds:g}; give seconds, 0 or more"
    if config.rules.agent_silent_s < _LEAST_SILENT_S:
        return (
            f"rules.agent_silent_s is {config.rules.agent_silent_s:g}; give {_LEAST_SILENT_S:g} or more: an agent "
            f"sends a heartbeat each {RENEW_S:g} s, and one may be lost"
        )
    doubled = [one.name for one in config.system_nodes]
    if len(set(doubled)) != len(doubled):
        return "system_nodes names a node twice; name each once"
    if config.tests_between_nodes and config.mode is not Mode.BUILT:
        key = "fabric" if config.fabric.on else "gang_test of a queue"
        return (
            f"{key} asks for tests between nodes, and where attached there are none: an agent in a pod has an address "
            "of the pod network, and reads all Nodes with the secrets of tests; take the key out"
        )
    if why := fabric_problem(config.fabric):
        return why
    return jobs_problem(config.jobs) if config.jobs is not None else ""
