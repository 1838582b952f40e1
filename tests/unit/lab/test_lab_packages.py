"""The stand-in of NVIDIA's repository: real apt, dpkg and gpgv take it, and refuse what is signed otherwise."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt as role_apt
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver_packages, offered, openpgp

from gpu_burnin.fleet.mirror.commands import run
from tests.lab.packages import deb, distribution, driver, toolkit
from tests.lab.packages import repository as apt_repository
from tests.lab.packages.build import ensure_repository
from tests.lab.packages.deb import File, package, with_scripts
from tests.lab.packages.keys import keys
from tests.lab.packages.machine.kernel import describe
from tests.support.lab_apt import MACHINE_STATUS, Apt


@pytest.fixture(scope="module")
def repository() -> Path:
    return ensure_repository()


@pytest.fixture(scope="module")
def debian(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Apt:
    apt = Apt(tmp_path_factory.mktemp("apt"), repository, "debian12/x86_64", "good")
    done = apt("update")
    assert done.returncode == 0 and not done.stderr, done.stderr
    return apt


def test_apt_installs_the_newest_driver_with_all_of_one_version(debian: Apt) -> None:
    plan = debian.plan("nvidia-open")
    assert {"nvidia-kernel-open-dkms", "libnvidia-ml1", "libcuda1", "nvidia-driver-cuda", "nvidia-persistenced"} <= set(
        plan
    )
    assert "nvidia-kernel-dkms" not in plan
    assert set(plan.values()) == {"580.105.08-1"}


def test_an_older_driver_needs_each_package_named_as_in_the_real_repository(debian: Apt) -> None:
    done = debian("--simulate", "install", "nvidia-driver-cuda=575.57.08-1")
    assert done.returncode != 0 and "unmet dependencies" in done.stdout + done.stderr
    names = ("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")
    plan = debian.plan(*(f"{name}=575.57.08-1" for name in names))
    assert plan == dict.fromkeys(names, "575.57.08-1")


def test_the_two_kinds_of_kernel_modules_exclude_each_other(debian: Apt) -> None:
    done = debian("--simulate", "install", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms")
    assert done.returncode != 0 and "Conflicts" in done.stdout + done.stderr


def test_ubuntus_packages_have_the_branch_in_their_names(repository: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path, repository, "ubuntu2404/x86_64", "good")
    assert apt("update").returncode == 0
    plan = apt.plan("nvidia-driver-580-open")
    assert plan["nvidia-dkms-580-open"] == plan["libnvidia-compute-580"] == "580.105.08-0ubuntu1"
    apt.plan("nvidia-headless-575-open")
    both = apt("--simulate", "install", "nvidia-headless-580-open", "nvidia-headless-575-open")
    assert both.returncode != 0 and "you have held broken packages" in both.stderr


def test_from_590_on_ubuntus_packages_have_none_and_exclude_those_before(repository: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path, repository, "ubuntu2404/x86_64", "good")
    assert apt("update").returncode == 0
    plan = apt.plan("nvidia-headless-open")
    assert plan["nvidia-dkms-open"] == plan["libnvidia-compute"] == f"{driver.UNBRANCHED}-1ubuntu1"
    assert not any("595" in name or "utils" in name for name in plan)
    both = apt("--simulate", "install", "nvidia-headless-580-open", "nvidia-headless-open")
    assert both.returncode != 0 and "you have held broken packages" in both.stderr


@pytest.mark.parametrize(("before", "after"), [("580.105.08", driver.UNBRANCHED), (driver.UNBRANCHED, "580.105.08")])
def test_over_the_border_one_driver_takes_the_place_of_the_other(
    repository: Path, tmp_path: Path, before: str, after: str
) -> None:
    apt = Apt(tmp_path, repository, "ubuntu2404/x86_64", "good")
    assert apt("update").returncode == 0

    def wanted(version: str) -> list[str]:
        release = "1ubuntu1" if version == driver.UNBRANCHED else "0ubuntu1"
        found = driver_packages.packages("nvidia", driver_packages.UBUNTU, version, "open", ())
        return [f"{one.name}={version}-{release}" for one in found]

    there = apt.plan(*wanted(before))
    stanzas = (repository / "ubuntu2404/x86_64/Packages").read_text().strip().split("\n\n")
    whole = [
        f"{stanza}\nStatus: install ok installed\n"
        for stanza in stanzas
        if any(f"Package: {name}\n" in stanza and f"Version: {full}\n" in stanza for name, full in there.items())
    ]
    assert len(whole) == len(there)
    (tmp_path / "status").write_text("\n".join([MACHINE_STATUS, *whole]))
    # As the module calls it.
    words = ["--simulate", "--no-install-recommends", "--allow-downgrades", "install", *wanted(after)]
    away = driver_packages.giving_way("nvidia", driver_packages.UBUNTU, after, there)
    done = apt(*words, *(f"{name}-" for name in away))
    assert done.returncode == 0, done.stdout + done.stderr
    gone = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("Remv ")}
    kept = set(there) - gone
    came = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")}
    assert gone and kept <= came, f"{kept - came} stay in the old version"


def test_ubuntus_own_modules_are_signed_and_need_no_dkms(repository: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path, repository, "distribution/ubuntu2404", "good")
    assert apt("update").returncode == 0
    release = distribution.KERNELS["ubuntu2404"][0]
    modules = f"linux-modules-nvidia-580-server-open-{release}"
    plan = apt.plan("nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server", modules)
    assert plan["libnvidia-compute-580-server"] == "580.105.08-0ubuntu0.24.04.1" and "nvidia-dkms" not in str(plan)
    run(
        [
            "dpkg-deb",
            "--raw-extract",
            next(repository.glob(f"distribution/ubuntu2404/{modules}_*.deb")),
            tmp_path / "root",
        ]
    )
    found = next((tmp_path / "root").rglob("nvidia.ko"))
    assert describe(found)["signer"] == distribution.SIGNER and describe(found)["license"] == "Dual MIT/GPL"


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["open", "proprietary"])
@pytest.mark.parametrize(
    ("source", "system", "folder", "version", "release"),
    [
        ("nvidia", driver_packages.DEBIAN, "debian12/x86_64", "580.105.08", "1"),
        ("nvidia", driver_packages.UBUNTU, "ubuntu2404/x86_64", "580.105.08", "0ubuntu1"),
        ("nvidia", driver_packages.UBUNTU, "ubuntu2404/x86_64", driver.UNBRANCHED, "1ubuntu1"),
        ("ubuntu", driver_packages.UBUNTU, "distribution/ubuntu2404", "580.105.08", "0ubuntu0.24.04.1"),
    ],
)
def test_what_the_role_installs_can_be_installed(
    repository: Path, tmp_path: Path, flavour: str, source: str, system: str, folder: str, version: str, release: str
) -> None:
    apt = Apt(tmp_path, repository, folder, "good")
    assert apt("update").returncode == 0
    kernels = distribution.KERNELS["ubuntu2404"] if source == "ubuntu" else ()
    wanted = driver_packages.packages(source, system, version, flavour, kernels)
    plan = apt.plan(*(f"{one.name}={one.version}-{release}" if one.version else one.name for one in wanted))
    assert {one.name for one in wanted} <= set(plan)
    assert all(driver_packages.is_driver(name) for name in plan if name.startswith(("libnvidia", "libcuda", "linux-")))


@pytest.mark.parametrize(
    ("folder", "key", "reason"),
    [
        ("wrong-key/debian12/x86_64", "good", "NO_PUBKEY"),
        ("expired-key/debian12/x86_64", "expired", "EXPKEYSIG"),
        ("debian12/x86_64", "wrong", "NO_PUBKEY"),
    ],
)
def test_apt_refuses_a_repository_of_another_key(
    repository: Path, tmp_path: Path, folder: str, key: str, reason: str
) -> None:
    done = Apt(tmp_path, repository, folder, key)("update")
    assert done.returncode != 0 and reason in done.stderr


def test_the_fingerprint_is_that_of_the_key_that_signed(repository: Path, tmp_path: Path) -> None:
    run(["gpg", "--batch", "--quiet", "--dearmor", "--output", tmp_path / "key.gpg", repository / "keys/good.asc"])
    release = repository / "debian12/x86_64/InRelease"
    done = subprocess.run(
        ["gpgv", "--status-fd=1", "--keyring", tmp_path / "key.gpg", release],
        capture_output=True,
        text=True,
        check=True,
    )
    fingerprint = (repository / "keys/good.fingerprint").read_text().strip()
    assert f"VALIDSIG {fingerprint}" in done.stdout
    changed = tmp_path / "InRelease"
    changed.write_text(release.read_text().replace("NVIDIA CUDA", "NVIDIA OTHER"))
    done = subprocess.run(
        ["gpgv", "--keyring", tmp_path / "key.gpg", changed], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "BAD signature" in done.stderr


def test_dpkg_reads_what_python_wrote(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    made = package(
        "nvidia-container-toolkit", "1:1.20.1-1",
        {"/usr/bin/nvidia-ctk": program, "/etc/x.toml": "a = 1\n", "/usr/lib/x.so": File(link="x.so.1")},
        ["libc6 (>= 2.27)"], conflicts="nvidia-docker2", provides="toolkit",
    )  # fmt: skip
    path = deb.write(with_scripts(made, postinst="exit 0\n"), tmp_path)
    assert path.name == "nvidia-container-toolkit_1.20.1-1_amd64.deb"
    fields = run(["dpkg-deb", "--field", path])
    assert "Version: 1:1.20.1-1\n" in fields and "Depends: libc6 (>= 2.27)\n" in fields
    assert "Conflicts: nvidia-docker2\n" in fields and "Provides: toolkit\n" in fields
    run(["dpkg-deb", "--raw-extract", path, tmp_path / "root"])
    assert (tmp_path / "root/usr/bin/nvidia-ctk").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "root/etc/x.toml").read_text() == "a = 1\n"
    assert (tmp_path / "root/usr/lib/x.so").readlink() == Path("x.so.1")
    run(["md5sum", "--check", "--quiet", "DEBIAN/md5sums"], cwd=tmp_path / "root")
    assert deb.archive(made) == deb.archive(made)


def test_a_script_that_dpkg_would_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="postinstall is no maintainer script"):
        deb.archive(with_scripts(package("x", "1", {}), postinstall="exit 0\n"))


def test_scripts_are_sound_shell(repository: Path, tmp_path: Path) -> None:
    for path in sorted((repository / "debian12/x86_64").glob("*580.105.08*.deb")):
        run(["dpkg-deb", "--control", path, tmp_path / path.stem])
        for script in ("postinst", "prerm"):
            if (tmp_path / path.stem / script).exists():
                run(["sh", "-n", tmp_path / path.stem / script])


def test_every_package_is_nvidias_by_its_maintainer_and_kernels_are_not(repository: Path) -> None:
    index = (repository / "debian12/x86_64/Packages").read_text()
    assert index.count("Package: ") == index.count(f"Maintainer: {deb.MAINTAINER}\n") > 30
    assert deb.MAINTAINER not in (repository / "distribution/debian12/Packages").read_text()
    assert len(driver.VERSIONS) == 3 and distribution.KERNELS["debian12"][0] == "6.1.0-41-amd64"


@pytest.fixture(scope="module")
def with_toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the toolkit alone, signed; its binaries are short."""
    top = tmp_path_factory.mktemp("toolkit")
    for name in toolkit.BINARIES:
        (top / name).write_text("#!/bin/sh\nexit 0\n")
        (top / name).chmod(0o755)
    with keys() as signers:
        apt_repository.write(top / "flat", toolkit.packages(top), signers["good"])
        (top / "keys").mkdir()
        (top / "keys/good.asc").write_text(signers["good"].public)
    return top


@pytest.mark.parametrize("version", toolkit.VERSIONS)
def test_the_toolkits_packages_come_in_one_version(with_toolkit: Path, tmp_path: Path, version: str) -> None:
    apt = Apt(tmp_path, with_toolkit, "flat", "good")
    assert apt("update").returncode == 0
    full = f"{version}-1"
    assert apt.plan(f"nvidia-container-toolkit-base={full}") == {"nvidia-container-toolkit-base": full}
    newest = f"{toolkit.VERSIONS[0]}-1"
    names = ("nvidia-container-toolkit-base", "libnvidia-container-tools")
    wanted = [f"{name}={full}" for name in ("nvidia-container-toolkit", *names)]
    planned = apt.plan(*wanted)
    assert {name: planned[name] for name in ("nvidia-container-toolkit", *names)} == dict.fromkeys(
        ("nvidia-container-toolkit", *names), full
    )
    assert planned["libnvidia-container1"] == newest, "its version is not bound, as in the real control file"


def test_units_of_the_toolkit_leave_etc_with_the_newer_release(with_toolkit: Path, tmp_path: Path) -> None:
    for version, folder in (("1.18.1", "etc/systemd/system"), ("1.20.1", "usr/lib/systemd/system")):
        path = with_toolkit / f"flat/nvidia-container-toolkit-base_{version}-1_amd64.deb"
        run(["dpkg-deb", "--raw-extract", path, tmp_path / version])
        assert (tmp_path / version / folder / "nvidia-cdi-refresh.service").exists()
        assert (tmp_path / version / "DEBIAN/conffiles").exists() == (version == "1.18.1")
        for script in ("preinst", "postinst", "postrm"):
            if (tmp_path / version / "DEBIAN" / script).exists():
                run(["sh", "-n", tmp_path / version / "DEBIAN" / script])


@pytest.mark.slow
def test_apt_tells_what_is_offered(repository: Path, tmp_path: Path) -> None:
    """The real apt reads the configuration of module nvidia_offered; of this machine it reads no source."""
    (tmp_path / "status").write_text(MACHINE_STATUS)
    key = next((repository / "keys").glob("good.asc")).read_text()
    source = role_apt.Repository(f"file:{repository}/debian12/x86_64", key, openpgp.fingerprints(key)[0])

    def with_no_source_of_this_machine(environment: Mapping[str, str]) -> Run:
        conf = Path(environment["APT_CONFIG"])
        settings = {"Dir::Etc::sourcelist": "/dev/null", "Dir::State::status": tmp_path / "status"}
        settings |= {"APT::Architecture": "amd64", "APT::Sandbox::User": "root", "Acquire::Languages": "none"}
        conf.write_text(conf.read_text() + "".join(f'{name} "{value}";\n' for name, value in settings.items()))
        return offered.of_this_host(environment)

    def lacks(version: str) -> str:
        wanted = {"nvidia-driver-cuda": version}
        return offered.lacks(
            wanted, {}, source, of_nvidia=True, run_with=with_no_source_of_this_machine, sources_of_host=tmp_path
        )

    assert lacks("575.57.08") == ""
    assert lacks("580.99.01").startswith("no package source of the host has nvidia-driver-cuda 580.99.01; they have 5")
