"""DCGM on a node: its units' drop-ins, the exporter's counters, and reading what dcgmi and the exporter say.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ENGINE, EXPORTER = "nvidia-dcgm.service", "nvidia-dcgm-exporter.service"
# gpu_burnin/node/unit.py stops the target before a burn-in, and names the resuming service as what follows it.
TARGET, RESUME = "gpu-monitoring.target", "gpu-monitoring-resume.service"
# A Unix socket: a port on loopback is open to every pod with the host's network, and the engine runs as root.
SOCKET = "/run/nvidia-dcgm/nv-hostengine"
ADDRESS = f"unix://{SOCKET}"
_BASE = "datacenter-gpu-manager-4"
# CUDA's major follows it.
NUMBERED = f"{_BASE}-cuda"
COUNTERS = "/etc/dcgm-exporter/muster-counters.csv"
_UUID = re.compile(r"\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_WATCH = re.compile(r"^\|\s*(?P<name>[A-Za-z][^|]*?)\s*\|\s*(?P<state>On|Off)\s*\|", re.MULTILINE)
_HEAD = "# Made by the role nvidia_dcgm.\n"


_TARGET = """# Paused while a burn-in runs. Your own services that use GPUs without doing work on them: make them
# PartOf= and After= this target, and name them in Wants= of a drop-in.
[Unit]
Description=What observes the GPUs
Wants={services}

[Install]
WantedBy=multi-user.target
"""
_RESUME = f"""# What follows each burn-in, started by systemd itself.
[Unit]
Description=End of the pause of what observes the GPUs

[Service]
Type=oneshot
ExecStart=systemctl --no-block start {TARGET}
"""
_ENGINE = f"""[Unit]
PartOf={TARGET}
After={TARGET} nvidia-persistenced.service nvidia-fabricmanager.service

[Service]
RuntimeDirectory=nvidia-dcgm
RuntimeDirectoryMode=0755
ExecStart=
ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm --domain-socket {SOCKET}
# Watches are lost with the engine's process, so each start sets them; the start is over when it answers.
ExecStartPost=/bin/sh -c 'until dcgmi health --host {ADDRESS} -s a; do sleep 1; done'
TimeoutStartSec=120
# A burn-in waits for it.
TimeoutStopSec=10
Restart=on-failure
RestartSec=5
"""
_EXPORTER = f"""[Unit]
PartOf={TARGET}
Requires={ENGINE}
After={TARGET} {ENGINE}

[Service]
StandardOutput=journal
StandardError=journal
ExecStart=
ExecStart=/usr/bin/dcgm-exporter --collectors {COUNTERS} --address {{address}} --remote-hostengine-info {ADDRESS}
TimeoutStopSec=10
Restart=on-failure
RestartSec=5
"""


@dataclass(frozen=True)
class Counter:
    """A field that the exporter shows. `reason`: what somebody does with it."""

    field: str
    kind: str
    explained: str
    reason: str


COUNTER_TABLE: tuple[Counter, ...] = (
    Counter("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the newest XID.", "an XID beside the metrics of its time"),
    Counter("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature in degrees C.", "a hot GPU or a failing fan"),
    Counter(
        "DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature in degrees C.", "HBM throttles before the GPU does"
    ),
    Counter("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw in W.", "a job that idles, and the power of a row"),
    Counter("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock in MHz.", "a GPU slower than the others of its job"),
    Counter(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Why the clock is low, as bits.", "whether heat or power did it"
    ),
    Counter("DCGM_FI_DEV_GPU_UTIL", "gauge", "Share of time with a kernel running, in %.", "a GPU that nobody uses"),
    Counter("DCGM_FI_DEV_FB_USED", "gauge", "Memory in use in MiB.", "a job near the end of its memory"),
    Counter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Uncorrected memory errors since boot.", "a GPU for repair"),
    Counter("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether a row could not be remapped.", "a GPU for replacement"),
    Counter("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether a row waits for a reset.", "a GPU that needs a reset"),
    Counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for good.", "a GPU that wears out"),
    Counter(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "counter",
        "NVLink recoveries, up to NVLink 4.",
        "a link that goes down and comes back, so that each transfer waits",
    ),
    Counter(
        "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
        "counter",
        "NVLinks that went down for good, since NVLink 5.",
        "a GPU whose jobs hang or crawl",
    ),
    Counter(
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
        "gauge",
        "Registration with the NVLink fabric.",
        "a GPU that is off the fabric, though the service runs",
    ),
    Counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", "a bad slot, riser or cable"),
    Counter("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of cycles of tensor cores.", "what utilisation hides"),
    Counter("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of cycles of memory.", "whether memory bounds a job"),
)


def is_supported(version: str) -> bool:
    """Whether it is a release of DCGM 4, whose packages, units and command lines these are."""
    return version.startswith("4.")


def packages(version: str, exporter_version: str, cuda: str) -> dict[str, str]:
    """{package: version}; without the exporter where its version is empty."""
    wanted = {f"{_BASE}-core": version, f"{NUMBERED}{cuda}": version}
    return wanted | ({"datacenter-gpu-manager-exporter": exporter_version} if exporter_version else {})


def counter_file() -> str:
    """The exporter's counter file, each field with its reason."""
    rows = (f"# For: {row.reason}.\n{row.field}, {row.kind}, {row.explained}\n" for row in COUNTER_TABLE)
    return _HEAD + "".join(rows)


def unit_files(exporter: str) -> dict[str, str]:
    """{path: text} of the target that pauses with a burn-in and of the services' drop-ins.

    `exporter` is the address on which the exporter listens, empty for none.
    """
    services = f"{ENGINE} {EXPORTER}" if exporter else ENGINE
    texts = {
        TARGET: _TARGET.format(services=services),
        RESUME: _RESUME,
        f"{ENGINE}.d/10-muster.conf": _ENGINE,
        **({f"{EXPORTER}.d/10-muster.conf": _EXPORTER.format(address=exporter)} if exporter else {}),
    }
    return {f"/etc/systemd/system/{name}": f"{_HEAD}{text}" for name, text in texts.items()}


def blind_because(started_at: float | None, kernel_root: Path) -> str:
    """Why an engine of that start (Unix time) sees no GPU, or too few, for good; empty when nothing shows it.

    An engine looks for GPUs at its start. The driver's first device file tells since when it has been loaded; what
    reloads it later stops the engine for it.
    """
    lab = kernel_root / "proc/driver/nvidia/version"
    loaded = Path("/dev/nvidiactl") if kernel_root == Path("/") else lab
    try:
        loaded_at = loaded.stat().st_mtime
    except OSError:
        return ""
    # A time in the future is a clock that was set back, and proves nothing.
    older = started_at is not None and started_at < loaded_at <= time.time()
    return "it is older than the driver" if older else ""


def metrics_url(address: str) -> str:
    """Where the exporter answers on the host itself, by the address on which it listens (`:9400`, `[::]:9400`)."""
    host, _, port = address.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{port}/metrics"


def uuids(text: str) -> frozenset[str]:
    """The UUIDs of the GPUs that an answer of `dcgmi discovery -l`, or of the exporter, names."""
    return frozenset(_UUID.findall(text))


def watches_off(text: str) -> list[str] | None:
    """The health watches that `dcgmi health -f` shows as off; None when it shows none at all."""
    shown = {match["name"]: match["state"] for match in _WATCH.finditer(text)}
    return [name for name, state in shown.items() if state != "On"] if shown else None


def difference(who: str, seen: Collection[str], by_nvml: Collection[str]) -> str:
    """The GPUs on which DCGM and NVML do not agree, as a clause; empty when they do."""
    blind, more = sorted(set(by_nvml) - set(seen)), sorted(set(seen) - set(by_nvml))
    parts = [f"{who} does not see {', '.join(blind)}"] if blind else []
    parts += [f"{who} sees {', '.join(more)}, which NVML does not"] if more else []
    return " and ".join(parts)
