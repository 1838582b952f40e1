"""What an inventory says about the fleet that it plans, as the Ansible action `fleet_given` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.types import JSON


@dataclass(frozen=True)
class Setting:
    """One value of a variable: on how many hosts, the first of them, and the file and line where it is set."""

    value: JSON
    hosts: int
    first: str
    where: str = ""


@dataclass(frozen=True)
class Fault:
    """What the inventory's own rules or this plan found: what is wrong, what to do, and where it stands."""

    message: str
    fix: str
    where: str = ""

    @property
    def line(self) -> str:
        """All of it in one sentence."""
        return f"{self.where}: {self.message}; {self.fix}" if self.where else f"{self.message}; {self.fix}"


@dataclass(frozen=True)
class Addresses:
    """The addresses of a group's hosts: how many, the first and the last."""

    group: str
    hosts: int
    first: str
    last: str


@dataclass(frozen=True)
class Pods:
    """The range of all pods, the prefix that most nodes' ranges have, and for how many nodes there is room."""

    cidr: str
    prefix: int
    room: int


@dataclass(frozen=True)
class Monitoring:
    """What Prometheus takes for the planned fleet, by the calculation that the role fleet_monitoring makes."""

    series: int
    samples_per_s: float
    disk_bytes: int
    memory_bytes: int
    days: float


@dataclass(frozen=True)
class Given:
    """One inventory. `groups` has the number of hosts of each group; `settings` the values of each variable that the
    plan reads, the most usual first, on the hosts that it is for; `unknown` the variables that could not be resolved,
    with the reason. `certificates` counts those of each CA."""

    name: str
    planned_nodes: int
    forks: int
    may_be_single: bool = False
    service_cidr: str = ""
    groups: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    certificates: Mapping[str, int] = field(default_factory=dict)
    addresses: tuple[Addresses, ...] = ()
    pods: Pods | None = None
    monitoring: Monitoring | None = None
    faults: tuple[Fault, ...] = ()

    def hosts(self, group: str) -> int:
        """How many hosts a group has."""
        return self.groups.get(group, 0)

    def usual(self, name: str) -> JSON:
        """The value that most hosts have; None where there is none."""
        found = self.settings.get(name, ())
        return found[0].value if found else None

    def number(self, name: str) -> float | None:
        """The usual value as a number; None where it is none."""
        return number_of(self.usual(name))


def number_of(value: JSON) -> float | None:
    """A value as a number, which the command line gives as text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


# Which variables the plan reads: by role, with the groups of the hosts that have it. An empty group: the controller.
VARIABLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kube_apiserver": (
        ("kube_apiserver",),
        (
            "kube_apiserver_planned_nodes",
            "kube_apiserver_max_requests_inflight",
            "kube_apiserver_max_mutating_requests_inflight",
            "kube_apiserver_goaway_chance",
            "kube_apiserver_extra_args",
            "kube_apiserver_audit_max_files",
            "kube_apiserver_audit_max_size_mib",
        ),
    ),
    "preflight": (("kube_apiserver",), ("preflight_min_disk_free_bytes",)),
    "kube_controller_manager": (
        ("kube_apiserver",),
        (
            "kube_controller_manager_api_qps",
            "kube_controller_manager_api_burst",
            "kube_controller_manager_kubelet_certificate_days",
        ),
    ),
    "kube_scheduler": (("kube_apiserver",), ("kube_scheduler_api_qps", "kube_scheduler_api_burst")),
    "api_loadbalancer": (("api_loadbalancer",), ("api_loadbalancer_max_connections",)),
    "etcd": (("etcd", "etcd_events"), ("etcd_quota_bytes",)),
    "local_ssd": (("etcd", "etcd_events"), ("local_ssd_max_p99_ms",)),
    "admitter": (("kube_apiserver",), ("admitter_joins_per_s", "admitter_tests")),
    "node_admission": (("kube_apiserver",), ("node_admission_evidence_ttl_s",)),
    "gpu_burnin": (
        ("gpu_nodes",),
        (
            "gpu_burnin_level",
            "gpu_burnin_extended_s",
            "gpu_burnin_power_waves",
            "gpu_burnin_wave_max_nodes",
            "gpu_burnin_expect",
        ),
    ),
    "fleet": (("gpu_nodes",), ("fleet_feed_limits", "fleet_place")),
    "kubelet": (("gpu_nodes", "system_nodes"), ("kubelet_max_pods",)),
    "pod_network": (("gpu_nodes", "system_nodes"), ("pod_network_routing", "pod_network_manage_routes")),
    "pki": (("",), ("pki_ca_days", "pki_leaf_days", "pki_renew_before_days")),
    "fleet_monitoring": (
        ("monitoring",),
        ("fleet_monitoring_interval_s", "fleet_monitoring_retention_days", "fleet_monitoring_disk_gib"),
    ),
}
