"""The packages of DCGM 4 and its exporter.

Names, the epoch and that all parts are of one version: NVIDIA's repository as it was installed from in 2025 and 2026
(datacenter-gpu-manager-4-cuda13=1:4.5.2-1 with `Depends: datacenter-gpu-manager-4-core (= same version)`). The old
package (3.x, without the 4 in its name) excludes the new ones. No package enables its service. The exporter's unit and
files are those of NVIDIA/dcgm-exporter (packaging/); which versions of the two fit is not told by a dependency there.
"""

from __future__ import annotations

from dataclasses import replace

from .deb import Package, package
from .driver import configured, service_ends, tool

VERSIONS = ("4.5.2", "4.4.1")
OLD_VERSION = "3.3.9"
EXPORTER_VERSIONS = ("4.8.2", "4.5.0")
_CUDA = ("cuda12", "cuda13")
_USER = (
    "getent passwd nvidia-dcgm >/dev/null || "
    "useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nvidia-dcgm\n"
)
_UNIT = """[Unit]
Description=NVIDIA DCGM service
Wants=network-online.target
After=network-online.target

[Service]
User=root
PrivateTmp=false
ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm
Restart=on-abort

[Install]
WantedBy=multi-user.target
Alias=dcgm.service
"""
_EXPORTER_UNIT = """[Unit]
Description=NVIDIA DCGM-exporter service
Wants=nvidia-dcgm.service
After=nvidia-dcgm.service

[Service]
User=root
PrivateTmp=false
StandardOutput=append:/var/dcgm-exporter.log
StandardError=append:/var/dcgm-exporter.log
ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv
Restart=on-abort

[Install]
WantedBy=multi-user.target
"""
_COUNTERS = """# DCGM FIELD, Prometheus metric type, help message
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_GPU_TEMP,  gauge, GPU temperature (in C).
DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.
"""


def packages() -> list[Package]:
    """DCGM's packages, of every version."""
    old = package("datacenter-gpu-manager", f"1:{OLD_VERSION}", {"/usr/bin/dcgmi": tool("dcgm", "dcgmi", OLD_VERSION)})
    new = [one for version in VERSIONS for one in _of_version(version)]
    return [old, *new, *(_exporter(version) for version in EXPORTER_VERSIONS)]


def _of_version(version: str) -> list[Package]:
    full, base = f"1:{version}-1", "datacenter-gpu-manager-4"
    core = f"{base}-core (= {full})"
    unit = "nvidia-dcgm.service"
    files = {
        "/usr/bin/nv-hostengine": tool("dcgm", "hostengine", version),
        "/usr/bin/dcgmi": tool("dcgm", "dcgmi", version),
        f"/usr/lib/systemd/system/{unit}": _UNIT,
    }
    old = "datacenter-gpu-manager (<< 1:4.0)"

    def plain(name: str, *depends: str) -> Package:
        return configured(package(f"{base}-{name}", full, {}, depends))

    return [
        configured(
            package(f"{base}-core", full, files, conflicts=old, replaces=old), then=_USER, prerm=service_ends(unit)
        ),
        plain("proprietary", core),
        *(plain(cuda, core) for cuda in _CUDA),
        *(plain(f"proprietary-{cuda}", core, f"{base}-{cuda} (= {full})") for cuda in _CUDA),
        plain("cuda-all", *(f"{base}-{cuda} (= {full})" for cuda in _CUDA)),
    ]


def _exporter(version: str) -> Package:
    unit, counters = "nvidia-dcgm-exporter.service", "/etc/dcgm-exporter/default-counters.csv"
    files = {
        "/usr/bin/dcgm-exporter": tool("exporter", "main", version),
        counters: _COUNTERS,
        f"/usr/lib/systemd/system/{unit}": _EXPORTER_UNIT,
    }
    built = package("datacenter-gpu-manager-exporter", f"{version}-1", files, ("datacenter-gpu-manager-4-core",))
    return configured(replace(built, conffiles=(counters,)), prerm=service_ends(unit))
