"""The packages of the NVSwitch fabric: fabric manager, subnet manager, IMEX.

Names and versions as in NVIDIA's repository: until branch 575 the branch is in the name (nvidia-fabricmanager-575, as
NVIDIA/apt-packaging-fabric-manager makes it, with Provides, Replaces and Conflicts), since 580 it is not
(nvidia-fabricmanager=580.95.05-1, nvidia-imex, libnvidia-nscq, libnvsdm: NVIDIA/gpu-driver-container). nvlsm has a
version of dates. Neither service is enabled by its package (Fabric Manager User Guide).
"""

from __future__ import annotations

from .deb import Package, package
from .driver import VERSIONS, configured, service_ends, tool

_FIRST_WITHOUT_BRANCH = 580
NVLSM_VERSION = "2025.06.11-1"
_UNIT = """[Unit]
Description={description}
After=network-online.target
Wants=network-online.target

[Service]
User=root
PrivateTmp=false
Type=forking
TimeoutStartSec=720
PIDFile=/run/{folder}
ExecStart={start}

[Install]
WantedBy=multi-user.target
"""
_SHARE = "/usr/share/nvidia/nvswitch"
_CONFIGURATION = "LOG_LEVEL=4\nLOG_FILE_NAME=/var/log/fabricmanager.log\nFABRIC_MODE=0\nDAEMONIZE=1\n"


def packages() -> list[Package]:
    """The fabric's packages for every version of the driver."""
    built = [one for version in VERSIONS for one in _of_version(version)]
    nvlsm = {
        "/opt/nvidia/nvlsm/sbin/nvlsm": "#!/bin/sh\nexec sleep infinity\n",
        "/usr/share/nvidia/nvlsm/nvlsm.conf": "# stand-in\n",
    }
    return [*built, configured(package("nvlsm", NVLSM_VERSION, nvlsm))]


def _of_version(version: str) -> list[Package]:
    full, branch = f"{version}-1", version.split(".")[0]
    suffix = "" if int(branch) >= _FIRST_WITHOUT_BRANCH else f"-{branch}"

    def named(name: str) -> dict[str, str]:
        return dict.fromkeys(("provides", "conflicts", "replaces"), name) if suffix else {}

    manager = "nvidia-fabricmanager.service"
    start = f"/usr/bin/nvidia-fabricmanager-start.sh --mode start --fm-config-file {_SHARE}/fabricmanager.cfg"
    imex = "nvidia-imex.service"
    return [
        configured(
            package(
                f"nvidia-fabricmanager{suffix}",
                full,
                {
                    "/usr/bin/nv-fabricmanager": tool("fabric", "main", version),
                    "/usr/bin/nvidia-fabricmanager-start.sh": '#!/bin/sh\nexec /usr/bin/nv-fabricmanager "$@"\n',
                    f"{_SHARE}/fabricmanager.cfg": _CONFIGURATION,
                    f"/usr/lib/systemd/system/{manager}": _UNIT.format(
                        description="NVIDIA fabric manager service",
                        folder="nvidia-fabricmanager/nv-fabricmanager.pid",
                        start=start,
                    ),
                },
                **named("nvidia-fabricmanager"),
            ),
            prerm=service_ends(manager),
        ),
        configured(
            package(
                f"nvidia-imex{suffix}",
                full,
                {
                    "/usr/bin/nvidia-imex": tool("fabric", "imex", version),
                    "/usr/bin/nvidia-imex-ctl": tool("fabric", "imex_ctl", version),
                    "/etc/nvidia-imex/config.cfg": "LOG_LEVEL=4\n",
                    "/etc/nvidia-imex/nodes_config.cfg": "",
                    f"/usr/lib/systemd/system/{imex}": _UNIT.format(
                        description="NVIDIA IMEX service",
                        folder="nvidia-imex/nvidia-imex.pid",
                        start="/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg",
                    ),
                },
                **named("nvidia-imex"),
            ),
            prerm=service_ends(imex),
        ),
        *(configured(package(f"{name}{suffix}", full, {}, **named(name))) for name in ("libnvidia-nscq", "libnvsdm")),
    ]
