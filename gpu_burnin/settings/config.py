"""The host's configuration file: defaults for run, gate and publish. Each key is declared here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.settings.options import (
    FLAG,
    NAMES,
    PATH,
    Flag,
    OptionError,
    Role,
    choice,
    duration,
    option,
    read,
    section,
    text,
    whole,
)
from gpu_burnin.settings.state_dir import default_state_dir
from gpu_burnin.system.own_name import host_name

DEFAULT_PATH = Path("/etc/gpu-burnin/config.yaml")
BACKENDS = ("auto", "cuda", "cpu")
# When a node's power waves may run: at once, when they are granted, not at all.
POWER_WAVES = (ALWAYS, GRANTED, NEVER) = ("always", "granted", "never")
# Whose notices of maintenance the agent reads. A machine that guesses would ask a stranger at a well-known address.
MAINTENANCE_PROVIDERS = ("none", "azure", "gcp", "aws")
# An extended run that is shorter has hardly looped and makes no GPU known: our own figure. A shorter one that new GPUs
# ask for would come again with each run.
LEAST_EXTENDED_S = 1800.0
_MOST_EXTENDED_S = 30 * 86400.0
_COUNT = whole(1)
_HTTP = re.compile(r"http://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?", re.ASCII)


@dataclass(frozen=True)
class PublishConfig:
    """How the node reaches its own Node object."""

    server: str = option(
        text("an https:// address"),
        "URL of the API servers' load balancer, where the node publishes its evidence. When empty, no cluster hears of "
        "the node.",
        "",
        # An inventory of GPU nodes alone has no API servers to name.
        role=Role(
            "{{ fleet_node_api_url if fleet_api_address is defined else '' }}",
            "gpu_burnin_api_url",
        ),
    )
    ca: Path = option(PATH, "Certificate of the cluster's authority.", Path("/etc/kubernetes/pki/ca.crt"))
    client_cert: Path = option(
        PATH,
        "The kubelet's client certificate and key, in one PEM file.",
        Path("/var/lib/kubelet/pki/kubelet-client-current.pem"),
    )
    domain: str = option(
        text("a domain name"),
        "Domain of the cluster's taints and annotations.",
        DEFAULT_DOMAIN,
        role=Role(variable=None, value="{{ fleet_domain }}"),
    )
    token: Path | None = option(
        PATH,
        "File with a token of the API, which is read for each request. When set, the node speaks with it and not with "
        "C(client_cert).",
    )

    @property
    def names(self) -> Names:
        """Keys of taints and annotations."""
        return Names(self.domain)


@dataclass(frozen=True)
class Shapes:
    """Reduced sizes of the checks."""

    gemm_m: int | None = option(_COUNT, "Rows of the products.")
    gemm_n: int | None = option(_COUNT, "Columns of the products.")
    gemm_k: int | None = option(_COUNT, "Length of the dot products.")
    hbm_bytes: int | None = option(_COUNT, "Memory to test on each GPU, in bytes.")
    transfer_bytes: int | None = option(_COUNT, "One copy between host and GPU, or between two GPUs, in bytes.")
    collective_bytes: int | None = option(_COUNT, "The largest message of a collective operation, in bytes.")

    def by_name(self) -> dict[str, int]:
        """Those that are set."""
        return {name: count for name, count in asdict(self).items() if count is not None}


@dataclass(frozen=True)
class Config:
    """What this host's operator sets. None: not set, the command's own default holds; times are in seconds."""

    level: str | None = option(
        choice(LEVEL_NAMES),
        "Level to run. A pass of a lower one counts only while one of this level stands.",
        role=Role("standard"),
        flag=Flag(
            ("--level",),
            "How thorough: quick takes up to a minute, standard up to five, extended as long as --for.  "
            "[default: standard]",
        ),
    )
    checks: tuple[str, ...] | None = option(
        NAMES,
        "Names of the checks to run; empty for all of the level.",
        role=Role([]),
        flag=Flag(("--checks",), "Only these checks."),
    )
    dcgm: bool = option(
        FLAG,
        "Ask NVIDIA's own diagnostics (C(dcgmi diag)) too, as the last check. DCGM must be on the hosts.",
        False,
        role=Role(False),
    )
    power_waves: str | None = option(
        choice(POWER_WAVES),
        "When the load of all GPUs of a host may swing between nothing and full together. C(granted): in turn; plays "
        "let O(gpu_burnin_wave_max_nodes) hosts swing at a time, and at boot none. C(always): at any time, at boot "
        "too, when a whole row of machines may swing at once after a power cut. C(never): not at all.",
        # A run by hand is one node and needs no turn.
        role=Role(GRANTED, value="{{ None if gpu_burnin_power_waves == 'granted' else gpu_burnin_power_waves }}"),
        flag=Flag(
            ("--waves",),
            "Whether all GPUs swing between idle and full load together: always, when granted (gpu-burnin "
            "power-grant), or never.  [default: always]",
            "waves",
        ),
    )
    wave_wait_s: float = option(
        duration(),
        "How long a run waits for a grant of its power waves, such as C(45m).",
        1800.0,
        key="wave_wait",
        default_text="30m",
        flag=Flag(("--wave-wait",), "How long to wait for the grant.  [default: 30m]"),
    )
    extended_for_new_s: float | None = option(
        duration(LEAST_EXTENDED_S, _MOST_EXTENDED_S),
        "With a length such as C(2h), a run becomes an extended burn-in of that length while a GPU has not passed one "
        "on its host. When empty, the report only warns (C(EXTENDED_WANTED)).",
        key="extended_for_new",
        role=Role(""),
    )
    expect: Expectations = section(
        Expectations,
        "What the host must look like. The data of its GPU models, and what the host shows, decide the keys that are "
        "not set.",
        role=Role({}),
    )
    backend: str = option(
        choice(BACKENDS),
        "Where the checks compute. The CPU is simulation, which never passes for real.",
        "auto",
        role=Role("auto"),
        flag=Flag(("--backend",), "What computes.  [default: auto]"),
    )
    allow_simulated: bool = option(
        FLAG,
        "Accept a pass on simulated hardware. For labs only; the admission requires it too.",
        False,
        role=Role(False),
        flag=Flag(
            ("--allow-simulated", "--simulated-ok"),
            "Let a run without real GPUs pass. Its evidence stays marked as simulated.",
        ),
    )
    node_name: str = option(
        text("the name of the Node object"),
        "Name of the host's Node object.",
        factory=lambda: host_name().lower(),
        default_text="the hostname",
        role=Role(variable=None, value="{{ inventory_hostname }}"),
    )
    host_key: Path = option(
        PATH, "Private SSH key of the host, which signs the evidence.", Path("/etc/ssh/ssh_host_ed25519_key")
    )
    require_evidence: bool = option(
        FLAG,
        "Refuse a run that could not be signed at once, as on a host whose gate waits for it. Runs that no gate waits "
        "for need no key: in another directory than C(state_dir), and simulated ones without C(allow_simulated).",
        False,
        role=Role(variable=None, value=True),
    )
    kernel_log: str = option(
        text("auto or an absolute path", lambda value: value == "auto" or Path(value).is_absolute()),
        "Source of XID events, C(auto) or the path of a file in the format of /dev/kmsg (which marks the run "
        "simulated).",
        "auto",
        role=Role("auto"),
    )
    state_dir: Path = option(
        PATH,
        "Where runs, reports and evidence are kept.",
        factory=default_state_dir,
        default_text="/var/lib/gpu-burnin",
    )
    metrics_file: Path | None = option(
        PATH,
        "File on the host into which each run writes its metrics too, for the textfile collector of node_exporter; "
        "ends in C(.prom). Its folder must exist. C(gpu-burnin watch) keeps C(gpu_burnin_watch.prom) beside it. When "
        "empty, no file is written.",
        role=Role(
            "{{ '/var/lib/prometheus/node-exporter/gpu_burnin.prom' if groups['monitoring'] | default([]) else '' }}"
        ),
    )
    maintenance_provider: str = option(
        choice(MAINTENANCE_PROVIDERS),
        "The cloud whose metadata service announces the host's maintenance; C(gpu-burnin watch) reads it. C(none) for "
        "machines of your own.",
        "none",
        role=Role("none"),
    )
    maintenance_url: str = option(
        text("an address such as http://198.51.100.1:8080", lambda value: bool(_HTTP.fullmatch(value))),
        "Address of that metadata service. When empty, the provider's own.",
        "",
        role=Role(""),
    )
    maintenance_before_s: float = option(
        duration(),
        "How long before a maintenance window no burn-in is started any more.",
        3600.0,
        key="maintenance_before",
        default_text="1h",
        role=Role(variable=None, value="{{ fleet_maintenance_before_s }}s"),
    )
    watch_poll_s: float = option(
        duration(5.0, 3600.0),
        "How often C(gpu-burnin watch) reads the GPUs through NVML. The kernel log and events of NVML come at once.",
        30.0,
        key="watch_poll",
        default_text="30s",
        role=Role("30s"),
    )
    shapes: Mapping[str, int] = section(
        Shapes, "Reduced sizes of the checks. For simulated hardware only.", convert=Shapes.by_name, role=Role({})
    )
    publish: PublishConfig = section(PublishConfig, "How the node reaches its own Node object.")


def load_config(path: Path | None = None) -> Config:
    """The configuration at `path` (default /etc/gpu-burnin/config.yaml, which may be missing).

    Raises GpuBurninError (exit 2) that names file, line and key, and what is wrong, a line for each mistake.
    """
    from gpu_burnin.system import yaml_text
    from gpu_burnin.system.files import read_text

    chosen = path or DEFAULT_PATH
    try:
        content = read_text(chosen)
    except FileNotFoundError as error:
        if path is None:
            return Config()
        raise GpuBurninError(f"{chosen}: no such configuration file; correct --config") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise GpuBurninError(
            f"{chosen}: cannot read the configuration ({reason}); correct the file or run as root"
        ) from error
    document, lines = yaml_text.load_with_lines(content, chosen)
    try:
        return read(Config, {} if document is None else document)
    except OptionError as error:
        mistakes = sorted((error, *error.further), key=lambda one: lines.get(one.key, 1))
        raise GpuBurninError("\n".join(f"{chosen}:{lines.get(one.key, 1)}: {one}" for one in mistakes)) from error
