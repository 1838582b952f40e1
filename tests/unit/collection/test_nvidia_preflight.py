"""What would stop the NVIDIA stack of a GPU node: every rule in its case, and what is no problem."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import preflight
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.offers import (
    Offers,
    apt_versions,
    free_bytes,
    repository_fault,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.preflight import (
    Asked,
    Finding,
    System,
    is_there,
    observe,
    problems,
)

from tests.support.nvidia_host import KERNEL, NvidiaHost, bare, h100, secure_boot
from tests.support.server_helpers import QuietFiles, listening

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30
MODELS = Models(json.loads(gpu_models("all")))
IMAGE = Asked("image", "", "13", "", 4 * GIB)
NVIDIA = Asked("nvidia", "580.105.08", "13", "https://mirror/debian12", 4 * GIB)
DEBIAN = Asked("debian", "535.261.03", "12", "", 4 * GIB)
UBUNTU = Asked("ubuntu", "580.105.08", "13", "", 4 * GIB)
FULL = "580.105.08-0ubuntu0.24.04.1"
OPEN, PROPRIETARY = (
    {
        f"linux-modules-nvidia-580-server{suffix}-{KERNEL}": ("6.8.0-88.89",),
        f"nvidia-headless-no-dkms-580-server{suffix}": (FULL,),
        "nvidia-utils-580-server": (FULL,),
        "nvidia-compute-utils-580-server": (FULL,),
    }
    for suffix in ("-open", "")
)
OFFERS = Offers(
    {"nvidia-smi": ("535.261.03-1~deb12u1",), f"linux-headers-{KERNEL}": ("6.1.176-1",), **OPEN},
    "",
    {"/usr": 20 * GIB},
)
Change = Callable[[NvidiaHost], None]


def found(host: NvidiaHost, asked: Asked, offers: Offers = OFFERS, system: System | None = None) -> list[Finding]:
    runs = System("ubuntu" if asked.source == "ubuntu" else "debian", "x86_64")
    return problems(asked, host.gather(), MODELS, offers, system or runs)


def other_gpu(device: str) -> Change:
    return lambda host: host.add_device("0000:90:00.0", device)


def only_gpu(device: str) -> Change:
    return lambda host: host.add_device(device=device)


def untrusted_key(host: NvidiaHost) -> None:
    secure_boot(host)
    host.put("var/lib/dkms/mok.pub", "")
    host.answers["mokutil"] = Output(1, "K is not enrolled\n", "")


def unread_key(host: NvidiaHost) -> None:
    secure_boot(host)
    host.put("var/lib/dkms/mok.pub", "")


def no_headers(host: NvidiaHost) -> None:
    (host.root / "lib/modules" / KERNEL / "build/Makefile").unlink()


def old_kernel(host: NvidiaHost) -> None:
    host.put("proc/sys/kernel/osrelease", "4.9.0-19-amd64\n")
    host.put("lib/modules/4.9.0-19-amd64/build/Makefile", "")


def two_sources(host: NvidiaHost) -> None:
    host.add_package("nvidia-open", "580.105.08-1")
    host.add_package("libcuda1", "535.261.03-1", "debian")


def runfile(host: NvidiaHost) -> None:
    host.put("usr/bin/nvidia-uninstall", "")


def nothing(host: NvidiaHost) -> None:
    pass


@pytest.mark.parametrize("asked", [NVIDIA, DEBIAN, UBUNTU])
def test_a_bare_host_has_no_problem(tmp_path: Path, asked: Asked) -> None:
    assert found(bare(tmp_path), asked) == []


@pytest.mark.parametrize("asked", [IMAGE, replace(IMAGE, driver_version="580.105.08"), NVIDIA])
def test_a_whole_stack_has_no_problem(tmp_path: Path, asked: Asked) -> None:
    assert found(h100(tmp_path), asked) == []


@pytest.mark.parametrize(
    ("asked", "change", "message"),
    [
        (
            replace(NVIDIA, driver_version="583.10.01"),
            nothing,
            "is of branch 583, which is none of NVIDIA's for data centers since 450 (the nea",
        ),
        (
            replace(NVIDIA, driver_version="550.90.07", cuda="12"),
            only_gpu("2901"),
            "fleet_nvidia_driver_version 550.90.07 is too old for NVIDIA B200, which needs 570.133.20 or newer",
        ),
        (
            replace(NVIDIA, driver_version="570.124.06", cuda="12"),
            only_gpu("2901"),
            "too old for NVIDIA B200, which needs 570.133.20 or newer",
        ),
        (replace(NVIDIA, driver_version="590.48.01"), only_gpu("1d81"), "too new for volta: its last branch is 580"),
        (NVIDIA, only_gpu("3fff"), "its GPU with PCI id 10de:3fff is of no known architecture"),
        (
            replace(NVIDIA, driver_version="580.105.08"),
            lambda host: [only_gpu("2b85")(host), other_gpu("1d81")(host)],
            "no kernel modules drive all of its GPUs: blackwell needs open ones, volta needs proprietary ones",
        ),
        (
            replace(NVIDIA, driver_version="575.57.08"),
            nothing,
            "is older than 580.65.06, which the CUDA 13 libraries of the burn-in need",
        ),
        (
            replace(NVIDIA, driver_version="520.61.05", cuda="12"),
            nothing,
            "is older than 525.60.13, which the CUDA 12 libraries",
        ),
        (NVIDIA, two_sources, "has driver packages of two sources: debian (libcuda1) and nvidia (nvidia-open)"),
        (
            NVIDIA,
            lambda host: host.add_package("nvidia-driver", "535.261.03-1", "debian"),
            "has driver packages of debian (nvidia-driver), but fleet_nvidia_source is nvidia",
        ),
        (NVIDIA, runfile, "has a driver of NVIDIA's installer beside packages"),
        (NVIDIA, no_headers, f"has no headers for its running kernel {KERNEL} and apt knows none"),
        (NVIDIA, old_kernel, "runs kernel 4.9.0-19-amd64, and NVIDIA's drivers need 4.15 or newer"),
        (NVIDIA, secure_boot, "Secure Boot is on and DKMS has no key"),
        (DEBIAN, untrusted_key, "Secure Boot is on and the firmware does not trust the key"),
        (NVIDIA, unread_key, "nobody can tell if the firmware trusts the key that DKMS signs with: mokutil is not in"),
        (DEBIAN, no_headers, "has no headers for its running kernel"),
        (
            replace(DEBIAN, driver_version="550.163.01"),
            nothing,
            "Debian has no driver 550.163.01 (apt knows 535.261.03-",
        ),
    ],
)
def test_each_rule_where_packages_are_installed(tmp_path: Path, asked: Asked, change: Change, message: str) -> None:
    host = bare(tmp_path)
    change(host)
    offers = replace(OFFERS, versions={**(OFFERS.versions or {}), f"linux-headers-{KERNEL}": ()})
    (one,) = found(host, asked, offers)
    assert message in one.message
    assert one.fix


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        (
            replace(OFFERS, repository_fault="the repository X cannot be reached: timed out"),
            "the repository X cannot be",
        ),
        (replace(OFFERS, free_bytes={"/usr": 20 * GIB, "/var": GIB}), "has 1.0 GiB free on /var, 4.0 are needed"),
    ],
)
def test_each_rule_of_what_is_offered(tmp_path: Path, offers: Offers, message: str) -> None:
    (one,) = found(bare(tmp_path), NVIDIA, offers)
    assert message in one.message
    # A host that has what is asked needs no space, and is not asked for the repository (the tests of observe()).
    assert found(h100(tmp_path / "there"), NVIDIA, replace(offers, repository_fault="")) == []


@pytest.mark.parametrize("asked", [IMAGE, NVIDIA, DEBIAN, UBUNTU])
def test_a_repository_that_does_not_answer_stops_whatever_is_there(tmp_path: Path, asked: Asked) -> None:
    host = h100(tmp_path)
    asked = replace(asked, driver_version="580.105.08", cuda="13")
    (one,) = [
        one for one in found(host, asked, Offers(None, "the repository X cannot be reached", {})) if "X" in one.message
    ]
    assert not one.of_machine


B200, H100, V100 = "2901", "2330", "1d81"
OLDER = ("580.65.06-0ubuntu1", "580.95.05-0ubuntu1")


@pytest.mark.parametrize(
    ("gpu", "modules", "offered", "said"),
    [
        (H100, "auto", OPEN, []),
        (H100, "proprietary", PROPRIETARY, []),
        (V100, "auto", PROPRIETARY, []),
        (V100, "auto", OPEN, ["Ubuntu has no signed proprietary modules of driver 580 for its kernel"]),
        (B200, "auto", PROPRIETARY, ["Ubuntu has no signed open modules of driver 580 for its kernel"]),
        (H100, "proprietary", OPEN, ["Ubuntu has no signed proprietary modules of driver 580 for its kernel"]),
        # The modules' package has the kernel's version; whose driver they are for, the others tell.
        (B200, "auto", OPEN | {"nvidia-utils-580-server": OLDER},
         ["no driver 580.105.08 (of nvidia-utils-580-server apt knows 580.65.06-0ubuntu1, 580.95.05-0ubuntu1)"]),
        (B200, "auto", {name: versions for name, versions in OPEN.items() if "headless" not in name},
         ["no driver 580.105.08 (of nvidia-headless-no-dkms-580-server-open apt knows none)"]),
        (B200, "auto", {f"nvidia-headless-no-dkms-580-server{suffix}": OLDER for suffix in ("", "-open")},
         [f"for its kernel {KERNEL} (linux-modules-nvidia-580-server-open-{KERNEL})",
          "(of nvidia-headless-no-dkms-580-server-open apt knows 580.65.06-0ubuntu1, 580.95.05-0ubuntu1)"]),
        (B200, "auto", {}, ["Ubuntu has no signed open modules of driver 580"]),
    ],
)  # fmt: skip
def test_ubuntu_is_asked_for_the_modules_that_the_gpus_need_and_for_the_exact_version(
    tmp_path: Path, gpu: str, modules: str, offered: dict[str, tuple[str, ...]], said: list[str]
) -> None:
    host = bare(tmp_path)
    only_gpu(gpu)(host)
    asked = replace(UBUNTU, modules=modules)
    host.put("var/lib/apt/lists/ubuntu_Packages", "")
    rows = [f" {name} | {version} | http://mirror x\n" for name, versions in offered.items() for version in versions]
    host.answers["apt-cache"] = Output(0, "".join(rows), "")
    offers = observe(host.root, host.run, asked, host.gather(), MODELS, 1)
    told = found(host, asked, replace(offers, free_bytes={}))
    assert len(told) == len(said) and all(words in one.message for words, one in zip(said, told, strict=True))


def test_what_a_host_has_already_ubuntu_need_not_have(tmp_path: Path) -> None:
    host = bare(tmp_path)
    for name, (version,) in OPEN.items():
        host.add_package(name, version, "ubuntu")
    none = replace(OFFERS, versions={})
    assert found(host, UBUNTU, none) == []
    (one,) = found(host, replace(UBUNTU, driver_version="580.126.09"), none)
    assert "Ubuntu has no driver 580.126.09" in one.message


def test_gpus_that_no_modules_drive_together_are_told_once(tmp_path: Path) -> None:
    host = bare(tmp_path)
    only_gpu("2b85")(host)
    other_gpu(V100)(host)
    (one,) = found(host, UBUNTU)
    assert "no kernel modules drive all of its GPUs" in one.message


def test_debian_without_non_free(tmp_path: Path) -> None:
    (one,) = found(bare(tmp_path), DEBIAN, replace(OFFERS, versions={}))
    assert (one.message, one.fix[:37]) == (
        "apt knows no package nvidia-smi",
        "add contrib, non-free and non-free-fi",
    )


@pytest.mark.parametrize(
    ("asked", "system", "message"),
    [
        (DEBIAN, System("ubuntu", "x86_64"), "fleet_nvidia_source is debian, but it runs ubuntu"),
        (UBUNTU, System("debian", "x86_64"), "fleet_nvidia_source is ubuntu, but it runs debian"),
        (NVIDIA, System("debian", "riscv64"), "NVIDIA has no driver for riscv64"),
    ],
)
def test_each_rule_of_the_system(tmp_path: Path, asked: Asked, system: System, message: str) -> None:
    assert [one.message for one in found(bare(tmp_path), asked, system=system)] == [message]


def test_what_nobody_knows_is_no_problem(tmp_path: Path) -> None:
    host = bare(tmp_path)
    no_headers(host)
    for asked in (NVIDIA, DEBIAN, UBUNTU):
        assert found(host, asked, Offers(None, "", {})) == []


def unload(host: NvidiaHost) -> None:
    host.answer_nvml(code=9, error="not loaded", driver_version=None, gpus=None)
    (host.root / "proc/driver/nvidia/version").unlink()


def no_module(host: NvidiaHost) -> None:
    unload(host)
    for path in (host.root / "lib/modules" / KERNEL).rglob("nvidia.ko"):
        path.unlink()


def nouveau(host: NvidiaHost) -> None:
    unload(host)
    host.put("proc/modules", "nouveau 2000000 1 - Live 0x0\n")


def old_driver(host: NvidiaHost) -> None:
    host.answer_nvml(driver_version="575.57.08")


def mismatch(host: NvidiaHost) -> None:
    host.load("575.57.08")
    host.answer_nvml(code=18, error="mismatch", gpus=None)


@pytest.mark.parametrize(
    ("asked", "change", "message"),
    [
        (IMAGE, lambda host: host.answer_nvml(code=12, error="none", gpus=None), "libnvidia-ml.so.1 is not installed"),
        (IMAGE, no_module, f"there is no module for the running kernel {KERNEL}"),
        (IMAGE, nouveau, "the NVIDIA driver is not loaded (NVML error 9): nouveau is"),
        (IMAGE, mismatch, "libnvidia-ml is 580.105.08 and the loaded kernel module is 575.57.08 (NVML error 18)"),
        (IMAGE, old_driver, "its driver 575.57.08 is older than 580.65.06, which the CUDA 13 libraries"),
        (
            replace(IMAGE, cuda="12", driver_version="580.105.08"),
            old_driver,
            "its image has driver 575.57.08, and fleet",
        ),
        (IMAGE, two_sources, "has driver packages of two sources"),
        (IMAGE, runfile, "has a driver of NVIDIA's installer beside packages"),
        (IMAGE, other_gpu("1d81"), "its open kernel modules do not drive volta"),
    ],
)
def test_each_rule_of_an_image(tmp_path: Path, asked: Asked, change: Change, message: str) -> None:
    host = h100(tmp_path)
    change(host)
    (one,) = found(host, asked)
    assert message in one.message
    assert one.fix and ";" not in one.message
    assert one.of_machine


@pytest.mark.parametrize(
    ("version", "message"),
    [("583.10.01", "which is none of NVIDIA's for data centers since 450"), ("575.57.08", "is older")],
)
def test_a_version_that_the_inventory_gives_for_an_image_is_the_inventorys_mistake(
    tmp_path: Path, version: str, message: str
) -> None:
    host = h100(tmp_path)
    host.answer_nvml(driver_version=version)
    (one,) = found(host, replace(IMAGE, driver_version=version))
    assert message in one.message and not one.of_machine


def test_nothing_of_an_installation_is_of_one_machine(tmp_path: Path) -> None:
    host = bare(tmp_path)
    two_sources(host)
    assert [one.of_machine for one in found(host, NVIDIA)] == [False]


def test_what_is_no_fault_of_an_image(tmp_path: Path) -> None:
    host = h100(tmp_path)
    no_headers(host)
    host.add_device("0000:90:00.0", "3fff")
    assert found(host, IMAGE, replace(OFFERS, free_bytes={"/usr": 0})) == []
    host.answer_nvml(code=999, error="a sick GPU", driver_version=None, gpus=None)
    assert found(host, IMAGE) == []
    host.answer_nvml(code=9, error="loaded, and silent", driver_version=None, gpus=None)
    assert found(host, IMAGE) == []
    lost = NvidiaHost(tmp_path / "lost")
    lost.answer_nvml(code=9, error="not loaded", driver_version=None, gpus=None)
    assert found(lost, IMAGE) == []


def test_an_image_is_asked_for_no_package_list_and_no_repository(tmp_path: Path) -> None:
    host = h100(tmp_path)
    facts = host.gather()
    host.commands.clear()
    assert observe(host.root, host.run, IMAGE, facts, MODELS, 1) == Offers(None, "", {})
    assert (
        observe(host.root, host.run, replace(NVIDIA, repository_url="http://127.0.0.1:1"), facts, MODELS, 1).free_bytes
        == {}
    )
    assert host.commands == []


def test_look_asks_apt_and_the_repository(tmp_path: Path) -> None:
    host = bare(tmp_path)
    no_headers(host)
    host.put("var/lib/apt/lists/mirror_debian_Packages.lz4", "")
    host.answers["apt-cache"] = Output(0, f" linux-headers-{KERNEL} | 6.1.176-1 | http://mirror bookworm/main\n", "")
    offers = observe(
        host.root, host.run, replace(NVIDIA, repository_url="http://127.0.0.1:1"), host.gather(), MODELS, 1
    )
    assert offers.versions == {f"linux-headers-{KERNEL}": ("6.1.176-1",)}
    assert "http://127.0.0.1:1 cannot be reached: [Errno 111] Connection refused" in offers.repository_fault
    assert set(offers.free_bytes) == {"/var"}
    # apt that cannot answer is no lack of packages.
    host.answers["apt-cache"] = CommandError("apt-cache gave no answer in 30 s")
    assert observe(host.root, host.run, DEBIAN, host.gather(), MODELS, 1).versions is None


def test_a_driver_that_a_reboot_would_change_is_not_there(tmp_path: Path) -> None:
    host = h100(tmp_path)
    assert is_there(host.gather(), "580.105.08")
    assert not is_there(host.gather(), "580.65.06")
    host.add_module("575.57.08")
    assert not is_there(host.gather(), "580.105.08")


def test_apt_s_lists(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    assert apt_versions(tmp_path, ["nvidia-driver"], host.run) is None
    host.put("var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_non-free_binary-amd64_Packages", "")
    rows = "".join(
        f" nvidia-driver | {version} | http://mirror x\n" for version in ("535.261.03-1", "535.261.03-1", "5-1")
    )
    host.answers["apt-cache"] = Output(0, rows, "")
    found = apt_versions(tmp_path, ["nvidia-driver", "other"], host.run)
    assert found == {"nvidia-driver": ("535.261.03-1", "5-1"), "other": ()}
    assert Offers(found, "", {}).has("nvidia-driver", "535.261.03") is True
    assert Offers(found, "", {}).has("nvidia-driver", "535.261.04") is False
    host.answers["apt-cache"] = Output(100, "", "E: broken lists")
    with pytest.raises(CommandError, match="broken lists"):
        apt_versions(tmp_path, ["nvidia-driver"], host.run)


def test_free_space_counts_each_file_system_once(tmp_path: Path) -> None:
    for name in ("usr", "var", "lib/modules"):
        (tmp_path / name).mkdir(parents=True)
    assert list(free_bytes(tmp_path)) == ["/usr"]
    assert free_bytes(tmp_path)["/usr"] > 0


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    for name, text in (
        ("good", "-----BEGIN PGP SIGNED MESSAGE-----\nOrigin: NVIDIA\n"),
        ("portal", "<html>log in</html>"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "InRelease").write_text(text)
    with listening(partial(QuietFiles, directory=str(tmp_path))) as url:
        yield url


def test_repository(mirror: str, tmp_path: Path) -> None:
    assert repository_fault(f"{mirror}/good/", 5) == ""
    assert repository_fault(f"file://{tmp_path}/good", 5) == ""
    assert "has an InRelease that is not signed" in repository_fault(f"{mirror}/portal", 5)
    assert "answers HTTP 404 File not found for InRelease" in repository_fault(f"{mirror}/none", 5)
    assert "cannot be reached: " in repository_fault("nonsense", 5)


def words(call: ast.Call) -> list[str]:
    """The fixed parts of a finding's message, longest first; none for one that is worded elsewhere."""
    parts = [
        node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return sorted((part.strip(" ,(:") for part in parts), key=len, reverse=True)


def test_the_page_has_every_message() -> None:
    page = (ROOT / "docs/operations/nvidia-stack.md").read_text().replace("`", "")
    tree = ast.parse(Path(preflight.__file__).read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    worded = [
        found
        for call in calls
        if (found := [part for part in words(call) if len(part) >= 12 and "fleet_nvidia" not in part])
    ]
    assert len(worded) > 15
    assert [found for found in worded if not any(part in page for part in found)] == []
