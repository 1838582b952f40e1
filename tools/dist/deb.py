"""The .deb of the node's part: the Python packages for each supported Python, and the role's own systemd units."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jinja2

from . import python
from .source import Source, run

UNITS = ("gpu-burnin-boot.service", "gpu-burnin-watch.service")
# What the role sets in its templates; a role that comes later has its own below /etc, which wins.
_VALUES = {
    "ansible_managed": "From the package gpu-burnin; the role gpu_burnin has its own in /etc, which wins.",
    "__gpu_burnin_program": "/usr/bin/gpu-burnin",
    "gpu_burnin_power_waves": "granted",
}
_POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ -d "/{home}/lib/python$version" ]; then
    # Templates of other projects among the packages may be no Python.
    python3 -m compileall -q -q "/{home}/lib/python$version" || true
  fi
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    [ -z "$2" ] || systemctl try-restart gpu-burnin-watch.service
  fi
fi
"""
_PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ ! -e /etc/systemd/system/gpu-burnin-watch.service ]; then
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now {units} || true
  else
    rm -f {wants}
  fi
fi
find /{home} -name __pycache__ -prune -exec rm -rf {{}} +
"""
# What a run has left is the host's history: purge alone removes it, and never that of a host that the role has built.
_POSTRM = """\
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
if [ "$1" = purge ] && [ ! -e /etc/systemd/system/gpu-burnin-watch.service ]; then
  rm -rf /etc/gpu-burnin /var/lib/gpu-burnin
fi
"""


def package_name(cuda: str) -> str:
    """gpu-burnin, or the one that brings CUDA's libraries."""
    return "gpu-burnin" if cuda == "none" else f"gpu-burnin-cuda{cuda}"


def build_deb(source: Source, wheelhouse: Path, cuda: str, pythons: Sequence[str], output: Path) -> Path:
    """Build the package of one CUDA version from its wheelhouse. Raises DistError, OSError."""
    name = package_name(cuda)
    archive = output / f"{name}_{source.version}_amd64.deb"
    with tempfile.TemporaryDirectory(prefix=".deb-", dir=output) as scratch:
        tree = Path(scratch)
        # A folder of mkdtemp is its owner's alone; in the package this is /.
        tree.chmod(0o755)
        python.lay_out([wheelhouse], pythons, "/usr/bin/python3", tree)
        for unit, text in units(source.tree).items():
            _write(tree / "usr/lib/systemd/system" / unit, text)
        documents = tree / "usr/share/doc" / name
        _write(documents / "copyright", (source.tree / "LICENSE").read_text())
        home = python.HOME
        wants = " ".join(f"/etc/systemd/system/multi-user.target.wants/{unit}" for unit in UNITS)
        for script, text in (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM)):
            filled = text if script == "postrm" else text.format(home=home, units=" ".join(UNITS), wants=wants)
            _write(tree / "DEBIAN" / script, filled)
            (tree / "DEBIAN" / script).chmod(0o755)
        _write(tree / "DEBIAN/control", control(source.version, cuda, pythons, _size_kib(tree)))
        env = os.environ | {"SOURCE_DATE_EPOCH": str(source.epoch_s)}
        # -Zgzip -z1: CUDA's libraries get no smaller by more, and xz takes minutes for them.
        run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, archive], archive.name, env=env)
    return archive


def units(checkout: Path) -> dict[str, str]:
    """The units of the role gpu_burnin, as its templates say for the program's place in the package."""
    templates = checkout / "roles/gpu_burnin/templates"
    # As Ansible reads templates.
    surroundings = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return {unit: surroundings.from_string((templates / f"{unit}.j2").read_text()).render(_VALUES) for unit in UNITS}


def control(version: str, cuda: str, pythons: Sequence[str], size_kib: int) -> str:
    """The control file: one of the packages on a host, and only with a Python that it has packages for."""
    minors = sorted(int(python.split(".")[1]) for python in pythons)
    others = [package_name(other) for other in ("none", "12", "13") if other != cuda]
    brings = "without CUDA's libraries" if cuda == "none" else f"with the libraries of CUDA {cuda}"
    return f"""\
Package: {package_name(cuda)}
Version: {version}
Architecture: amd64
Maintainer: Muster
Section: admin
Priority: optional
Installed-Size: {size_kib}
Depends: python3 (>= 3.{minors[0]}), python3 (<< 3.{minors[-1] + 1}), openssh-client
Conflicts: {", ".join(others)}
Replaces: {", ".join(others)}
Description: burn-in of GPU nodes whose PASS means something
 Commands gpu-burnin and muster {brings}, and the units of a
 node: its agent and its burn-in at boot. No unit is enabled or started.
"""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _size_kib(tree: Path) -> int:
    sizes = {(state.st_dev, state.st_ino): state.st_size for path in tree.rglob("*") if (state := path.lstat())}
    return sum(sizes.values()) // 1024
