"""The packages of the container toolkit, with the real nvidia-ctk and nvidia-cdi-hook of the lab's binaries.

Names and relations: packaging/debian of NVIDIA/nvidia-container-toolkit. Its units for the CDI specification were
configuration files in /etc first, which a later release takes away; in which one is as we chose. Both releases here
have the binaries of one, so what `nvidia-ctk --version` says is not the package's version.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .deb import Package, package, with_scripts
from .driver import configured

VERSIONS = ("1.20.1", "1.18.1")
BINARIES = ("nvidia-ctk", "nvidia-cdi-hook")
_UNITS_ARE_CONFFILES = ("1.18.1",)
_ENDS_CONFFILES = "1.19.0~"
_UNITS = {
    "nvidia-cdi-refresh.service": """[Unit]
Description=Refresh NVIDIA CDI specification file
ConditionPathExists=/usr/bin/nvidia-ctk

[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
""",
    "nvidia-cdi-refresh.path": """[Unit]
Description=Trigger CDI refresh on NVIDIA driver install / uninstall events

[Path]
PathChanged=/lib/modules/%v/modules.dep

[Install]
WantedBy=multi-user.target
""",
}
_CONFIGURE = """/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  systemctl enable --now nvidia-cdi-refresh.path || true
  systemctl enable --now nvidia-cdi-refresh.service || true
fi
"""


def packages(binaries: Path) -> list[Package]:
    """The toolkit's packages of every version; `binaries` is the folder with the real ones."""
    return [one for version in VERSIONS for one in _of_version(version, binaries)]


def _of_version(version: str, binaries: Path) -> list[Package]:
    full = f"{version}-1"
    old = {"breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook"}
    old["replaces"] = old["breaks"]
    base = f"nvidia-container-toolkit-base (= {full})"
    tools = (f"libnvidia-container-tools (= {full})", "libnvidia-container-tools (<< 2.0.0)")
    return [
        _base(version, binaries, old),
        configured(package("libnvidia-container1", full, {})),
        configured(package("libnvidia-container-tools", full, {}, (f"libnvidia-container1 (>= {full})",))),
        configured(package("nvidia-container-toolkit", full, {}, (base, *tools), **old)),
        configured(package("nvidia-container-toolkit-operator-extensions", full, {}, (base,))),
    ]


def _base(version: str, binaries: Path, old: dict[str, str]) -> Package:
    in_etc = version in _UNITS_ARE_CONFFILES
    folder = "/etc/systemd/system" if in_etc else "/usr/lib/systemd/system"
    units = {f"{folder}/{name}": text for name, text in _UNITS.items()}
    programs = {f"/usr/bin/{name}": binaries / name for name in BINARIES}
    built = package("nvidia-container-toolkit-base", f"{version}-1", {**programs, **units}, **old)
    if in_etc:
        return configured(replace(built, conffiles=tuple(units)), then=_CONFIGURE)
    ends = "".join(
        f'dpkg-maintscript-helper rm_conffile /etc/systemd/system/{name} {_ENDS_CONFFILES} {built.name} -- "$@"\n'
        for name in _UNITS
    )
    return with_scripts(configured(built, then=ends + _CONFIGURE), preinst=ends, postrm=ends)
