"""The driver's packages, with the names, versions and dependencies of NVIDIA's repository.

Debian: names and versions as they were installed by hand on Debian 12 and 13 from NVIDIA's repository in 2025 and 2026
(nvidia-kernel-open-dkms=580.126.20-1, nvidia-driver-cuda, libcuda1, libnvidia-ml1, firmware-nvidia-gsp,
nvidia-kernel-support, nvidia-persistenced, nvidia-modprobe, nvidia-driver-pinning-580) and NVIDIA's installation guide
("compute-only: nvidia-driver-cuda nvidia-kernel-open-dkms"). Ubuntu: the branch is in the names
(nvidia-driver-580-open=580.105.08-0ubuntu1, nvidia-dkms-580-open, libnvidia-compute-580, ...), as in the control
template of NVIDIA/ubuntu-packaging-nvidia-driver. From 590 on it is gone:
nvidia-headless-open=615.71.09-1ubuntu1 and nvidia-persistenced were installed so, and there is no nvidia-utils. Where
nvidia-smi is then, and what excludes the packages of earlier branches, is as we suppose it.

That of Debian's 580 packages is not published: that
`nvidia-smi` is in nvidia-driver-cuda, that the two kinds of kernel modules exclude each other and that libraries lie
directly in the multiarch folder is as we understood the guide, not as we saw in a package.

Only what a GPU node needs is here: no X server, OpenGL, video or 32-bit libraries.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .deb import File, Package, package, with_scripts

# The branches that the tests upgrade between, and down again; the first is what a new host gets.
VERSIONS = ("580.105.08", "580.65.06", "575.57.08")
# Of the branches whose Ubuntu packages have no branch in their names; Debian's are called as before.
UNBRANCHED = "595.71.05"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MACHINE = "/usr/local/lib/muster-lab"
KERNEL = "/var/lib/muster-lab/kernel"


def packages(distribution: str, libraries: Path) -> list[Package]:
    """The driver's packages of every version."""
    is_debian = distribution.startswith("debian")
    of_version = _debian if is_debian else _ubuntu
    built = [one for version in VERSIONS for one in of_version(version, libraries)]
    if not is_debian:
        built += _ubuntu(UNBRANCHED, libraries)
    branches = sorted({version.split(".")[0] for version in VERSIONS})
    return [*built, *(_pinning(branch) for branch in branches)]


def tool(module: str, function: str = "main", version: str = "") -> str:
    """The text of a program that calls a function of the stand-in machine with its words, and with a version."""
    last = f", {version!r}" if version else ""
    return (
        f"#!/usr/bin/python3\nimport sys\nsys.path.insert(0, {MACHINE!r})\n"
        f"from machine import {module}\nsys.exit({module}.{function}(sys.argv[1:]{last}))\n"
    )


def configured(built: Package, then: str = "", prerm: str = "") -> Package:
    """A package whose configuration the scenario can interrupt, and that does something `then`."""
    hook = f"if command -v lab-nvidia >/dev/null; then lab-nvidia package {built.name}; fi"
    text = f'[ "$1" = configure ] || exit 0\n{hook}\n{then}'
    scripts = {"postinst": text} | ({"prerm": prerm} if prerm else {})
    return with_scripts(built, **scripts)


def service(unit: str) -> str:
    """The lines of a postinst that enable a unit and start it, as dh_installsystemd's."""
    return (
        "if [ -d /run/systemd/system ]; then\n"
        f"  systemctl --system daemon-reload\n  systemctl enable --quiet {unit}\n  systemctl start {unit} || true\nfi\n"
    )


def service_ends(unit: str) -> str:
    """The lines of a prerm that stop a unit."""
    return f"if [ -d /run/systemd/system ]; then systemctl stop {unit} || true; fi\n"


def _debian(version: str, libraries: Path) -> list[Package]:
    full, branch = f"{version}-1", version.split(".")[0]
    same = [f"{name} (= {full})" for name in ("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")]
    modules = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}

    def plain(name: str, *depends: str, **fields: str) -> Package:
        return configured(package(name, full, {}, depends, **fields))

    kernels = [
        _dkms(
            package(
                name,
                full,
                _source(version, flavour),
                ("dkms (>= 3.0)", f"firmware-nvidia-gsp (= {full})", f"nvidia-kernel-support (= {full})"),
                conflicts=modules["open" if flavour == "proprietary" else "proprietary"],
                provides=f"nvidia-kernel-{version}",
            ),
            version,
        )
        for flavour, name in modules.items()
    ]
    recommends = f"nvidia-kernel-dkms (= {full}) | nvidia-kernel-open-dkms (= {full})"
    return [
        *kernels,
        with_ldconfig(package("libnvidia-ml1", full, library_files("libnvidia-ml", version, libraries))),
        with_ldconfig(package("libcuda1", full, library_files("libcuda", version, libraries), recommends=recommends)),
        persistenced(full),
        plain("nvidia-modprobe"),
        plain("firmware-nvidia-gsp"),
        configured(package("nvidia-kernel-support", full, modprobe_files(), ("nvidia-modprobe",))),
        configured(
            package(
                "nvidia-driver-cuda", full, {"/usr/bin/nvidia-smi": tool("nvidia_smi")}, same,
                provides="nvidia-smi", conflicts="nvidia-smi", replaces="nvidia-smi",
            )
        ),
        plain("nvidia-driver", f"nvidia-driver-cuda (= {full})"),
        *(
            plain(name, f"nvidia-driver (= {full})", f"nvidia-driver-cuda (= {full})", f"{modules[flavour]} (= {full})")
            for base, flavour in (("nvidia-open", "open"), ("cuda-drivers", "proprietary"))
            for name in (base, f"{base}-{branch}")
        ),
    ]  # fmt: skip


def _ubuntu(version: str, libraries: Path) -> list[Package]:
    branch = version.split(".")[0]
    has_branch = version != UNBRANCHED
    full, of_branch = (f"{version}-0ubuntu1", f"-{branch}") if has_branch else (f"{version}-1ubuntu1", "")
    common, compute = f"nvidia-kernel-common{of_branch}", f"libnvidia-compute{of_branch}"
    daemon = f"nvidia-compute-utils{of_branch}" if has_branch else "nvidia-persistenced"

    def plain(name: str, *depends: str, **fields: str) -> Package:
        return configured(package(name, full, {}, depends, **fields))

    def one_of(name: str) -> dict[str, str]:
        """Of all branches one alone can be installed: each provides the name without the branch."""
        return {"provides": name, "conflicts": name, "replaces": name}

    tools = {"/usr/bin/nvidia-smi": tool("nvidia_smi")}
    both = library_files("libnvidia-ml", version, libraries) | library_files("libcuda", version, libraries)
    built = [
        with_ldconfig(
            package(compute, full, both, **one_of("libnvidia-compute"))
            if has_branch
            else package(
                compute, full, {**both, **tools}, provides="nvidia-smi", conflicts="nvidia-smi", replaces="nvidia-smi"
            )
        ),
        persistenced(full, daemon, compute, **(one_of("nvidia-persistenced") if has_branch else {})),
        configured(package(common, full, modprobe_files(), **one_of("nvidia-kernel-common"))),
        plain("nvidia-modprobe"),
    ]
    if has_branch:
        utils = package(f"nvidia-utils-{branch}", full, tools, (compute,), **one_of("nvidia-smi"))
        built.append(configured(utils))
    for suffix, flavour in (("-open", "open"), ("", "proprietary")):
        dkms = f"nvidia-dkms{of_branch}{suffix}"
        source = f"nvidia-kernel-source{of_branch}{suffix}"
        built += [
            configured(package(source, full, _source(version, flavour), **one_of("nvidia-kernel-source"))),
            _dkms(
                package(dkms, full, {}, ("dkms (>= 3.0)", f"{source} (= {full})", f"{common} (= {full})"),
                        **one_of("nvidia-dkms-kernel")),
                version,
            ),
        ]  # fmt: skip
        headless = [f"{part} (= {full})" for part in (dkms, source, compute, daemon)]
        smi = [f"nvidia-utils-{branch} (= {full})"] if has_branch else []
        built += [
            plain(f"nvidia-headless{of_branch}{suffix}", *headless),
            plain(f"nvidia-driver{of_branch}{suffix}", *headless, *smi),
        ]
        meta = "nvidia-open" if flavour == "open" else "cuda-drivers"
        built.append(plain(f"{meta}{of_branch}", f"nvidia-driver{of_branch}{suffix} (= {full})"))
    return built


def _pinning(branch: str) -> Package:
    """What keeps a host on a branch. The real package's file of preferences is not known to us in its wording."""
    name = f"nvidia-driver-pinning-{branch}"
    text = f"Package: *nvidia* libcuda* cuda-drivers*\nPin: version {branch}.*\nPin-Priority: 1001\n"
    return package(
        name, f"{branch}-1", {f"/etc/apt/preferences.d/{name}": text},
        provides="nvidia-driver-pinning", conflicts="nvidia-driver-pinning",
    )  # fmt: skip


def library_files(library: str, version: str, libraries: Path) -> dict[str, File]:
    """A library under its full name, and the link by its SONAME."""
    name = f"{library}.so.{version}"
    return {
        f"{LIBRARIES}/{name}": File((libraries / f"{library}.so.1").read_bytes()),
        f"{LIBRARIES}/{library}.so.1": File(link=name),
    }


def with_ldconfig(built: Package) -> Package:
    """A package of libraries, which the loader's cache then has."""
    return configured(replace(built, triggers="activate-noawait ldconfig\n"))


def _source(version: str, flavour: str) -> dict[str, str]:
    text = f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\nFLAVOUR="{flavour}"\n'
    return {f"/usr/src/nvidia-{version}/dkms.conf": text}


def _dkms(built: Package, version: str) -> Package:
    """Builds for every kernel with headers, and says which it leaves out, as dkms' common.postinst."""
    build = f"""dkms add -m nvidia -v {version}
running=$(cat {KERNEL}/proc/sys/kernel/osrelease)
for folder in {KERNEL}/lib/modules/*; do
  release=${{folder##*/}}
  if [ -e "$folder/build/Makefile" ]; then
    echo "Building for $release"
    dkms install -m nvidia -v {version} -k "$release"
  elif [ "$release" = "$running" ]; then
    echo "Module build for kernel $release was skipped since the" \\
      "kernel headers for this kernel do not seem to be installed."
  fi
done
"""
    return configured(built, build, f"dkms remove -m nvidia -v {version} --all\n")


def modprobe_files() -> dict[str, str]:
    """Nouveau is kept from loading; which file the real package has for it is not the same in all releases."""
    return {"/usr/lib/modprobe.d/nvidia-kernel-common.conf": "blacklist nouveau\noptions nouveau modeset=0\n"}


def persistenced(full: str, name: str = "nvidia-persistenced", *depends: str, **fields: str) -> Package:
    """The package with the persistence daemon, which is started when it is installed."""
    unit = """[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode --verbose
ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
    files = {
        "/usr/bin/nvidia-persistenced": tool("persistenced"),
        "/usr/lib/systemd/system/nvidia-persistenced.service": unit,
    }
    built = package(name, full, files, depends, **fields)
    unit_name = "nvidia-persistenced.service"
    return configured(built, service(unit_name), service_ends(unit_name))
