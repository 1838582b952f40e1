"""What a driver's packages are called: each source and system on both sides of the branch that renamed them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver_names, driver_packages
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.driver import OPEN, PROPRIETARY

KERNEL = "6.8.0-90-generic"
PAGE = Path(__file__).parents[3] / "docs/operations/nvidia-stack.md"


def ubuntus(branch: str, suffix: str = "-open") -> str:
    return (
        f"nvidia-headless-no-dkms-{branch}-server{suffix}=V nvidia-utils-{branch}-server=V "
        f"nvidia-compute-utils-{branch}-server=V linux-modules-nvidia-{branch}-server{suffix}-{KERNEL}="
    )


@pytest.mark.parametrize(
    ("source", "on", "version", "flavour", "expected"),
    [
        ("nvidia", "ubuntu24.04", "580.105.08", OPEN, "nvidia-headless-580-open=V nvidia-utils-580=V"),
        ("nvidia", "ubuntu24.04", "580.105.08", PROPRIETARY, "nvidia-headless-580=V nvidia-utils-580=V"),
        ("nvidia", "ubuntu24.04", "590.48.01", OPEN, "nvidia-headless-open=V nvidia-persistenced=V"),
        ("nvidia", "ubuntu24.04", "595.71.05", OPEN, "nvidia-headless-open=V nvidia-persistenced=V"),
        ("nvidia", "ubuntu24.04", "595.71.05", PROPRIETARY, "nvidia-headless=V nvidia-persistenced=V"),
        *(
            ("nvidia", "debian12", version, flavour, f"{kernel}=V nvidia-driver-cuda=V")
            for version in ("580.105.08", "590.48.01", "595.71.05")
            for flavour, kernel in ((OPEN, "nvidia-kernel-open-dkms"), (PROPRIETARY, "nvidia-kernel-dkms"))
        ),
        *(("ubuntu", "ubuntu24.04", f"{branch}.1", OPEN, ubuntus(branch)) for branch in ("580", "590", "595")),
        ("ubuntu", "ubuntu24.04", "590.1", PROPRIETARY, ubuntus("590", "")),
        *(
            (
                "debian", "debian12", version, OPEN,
                "nvidia-open-kernel-dkms=V nvidia-smi=V libnvidia-ml1=V libcuda1=V nvidia-persistenced=",
            )
            for version in ("535.261.03", "590.48.01")
        ),
    ],
)  # fmt: skip
def test_packages_of_each_source(source: str, on: str, version: str, flavour: str, expected: str) -> None:
    found = driver_packages.packages(source, on, version, flavour, (KERNEL,))
    assert " ".join(f"{one.name}={one.version}" for one in found) == expected.replace("=V", f"={version}")
    assert all(driver_packages.is_driver(one.name) for one in found if one.name != "nvidia-persistenced")


BRANCHED = ("nvidia-headless-580-open", "libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-compute-utils-580")
UNBRANCHED = ("nvidia-headless-open", "libnvidia-compute", "nvidia-dkms-open", "nvidia-persistenced")


@pytest.mark.parametrize(
    ("source", "on", "version", "away"),
    [
        ("nvidia", "ubuntu24.04", "595.71.05", BRANCHED),
        ("nvidia", "ubuntu24.04", "580.105.08", UNBRANCHED),
        ("nvidia", "debian12", "595.71.05", ()),
        ("ubuntu", "ubuntu24.04", "595.71.05", ()),
    ],
)
def test_what_gives_way_over_the_border(source: str, on: str, version: str, away: tuple[str, ...]) -> None:
    others = ("nvidia-modprobe", "nvidia-container-toolkit", "nvidia-fabricmanager", "linux-headers-6.8.0-90-generic")
    assert driver_packages.giving_way(source, on, version, (*BRANCHED, *UNBRANCHED, *others)) == away


@pytest.mark.parametrize(
    ("source", "on", "branch", "flavour", "marked"),
    [
        ("nvidia", "debian12", 580, OPEN, ()),
        ("nvidia", "debian12", 590, PROPRIETARY, ("nvidia-kernel-dkms",)),
        ("nvidia", "ubuntu24.04", 580, OPEN, ()),
        ("nvidia", "ubuntu24.04", 590, OPEN, ("nvidia-headless-open", "nvidia-persistenced")),
        ("nvidia", "ubuntu24.04", 595, PROPRIETARY, ("nvidia-headless", "nvidia-persistenced")),
        ("debian", "debian12", 535, OPEN, ()),
        ("ubuntu", "ubuntu24.04", 590, OPEN, ()),
        (
            "ubuntu", "ubuntu24.04", 595, OPEN,
            ("nvidia-headless-no-dkms-595-server-open", "nvidia-utils-595-server", "nvidia-compute-utils-595-server"),
        ),
    ],
)  # fmt: skip
def test_what_nobody_read_in_its_source_is_marked_and_the_page_says_so(
    source: str, on: str, branch: int, flavour: str, marked: tuple[str, ...]
) -> None:
    assert driver_packages.unread(source, on, f"{branch}.1", flavour) == marked
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("| `")]
    for one in driver_names.names(source, on, branch, is_open=flavour == OPEN):
        shown = f"`{one.name.replace(str(branch), 'BRANCH')}`"
        assert any(shown in row and one.mark in row.rsplit("|", 2)[1] for row in rows), (shown, one.mark)
