"""How GPUs reach each other: what NVML says (through the fake), what sysfs says, and the sentence that follows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.telemetry.topology import (
    LEVELS,
    P2P_STATUS,
    PairTopology,
    Seen,
    acs_control,
    bar1_bytes,
    iommu_types,
    pair_from,
    read_topology,
    redirecting_bridges,
    redirects,
    socket_of,
    why_not,
)

READ = """
import json
from gpu_burnin.telemetry.nvml import Nvml, read_inventory
from gpu_burnin.telemetry.topology import read_topology
with Nvml() as nvml:
    uuids = [gpu.uuid for gpu in read_inventory(nvml)]
found = {}
for index, own in enumerate(uuids):
    for other, pair in read_topology(own, [u for u in uuids if u != own]).items():
        found[f"{index}-{uuids.index(other)}"] = pair.to_json()
print(json.dumps(found))
"""

Run = Callable[..., Any]


def _read(run_python: Run, scenario: str) -> dict[str, Any]:
    done = run_python(scenario, READ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_gpus_on_switches(run_python: Run) -> None:
    found = _read(run_python, "gpus = 3\n")
    assert set(found) == {f"{a}-{b}" for a in range(3) for b in range(3) if a != b}
    for pair in found.values():
        assert (pair["path"], pair["links"], pair["level"]) == ("nvswitch", 18, "across NUMA nodes")
        assert pair["read"] == pair["write"] == pair["nvlink"] == "ok"
        assert pair["mig"] is False and pair["redirecting"] == [] and pair["iommu"] == []


def test_gpus_with_links_to_each_other(run_python: Run) -> None:
    found = _read(run_python, "gpus = 3\nnvlink_remote = 0\nnvlink_links = 4\nnvlink_down = 1\n")
    assert (found["0-1"]["path"], found["0-1"]["links"]) == ("nvlink", 3)
    assert found["1-0"]["path"] == "nvlink"


def test_gpus_without_nvlink(run_python: Run) -> None:
    found = _read(run_python, "gpus = 2\nnvlink_links = 0\ntopology_level = 10\n")
    assert {(p["path"], p["level"], p["nvlink"]) for p in found.values()} == {
        ("pcie", "one PCIe switch", "not_supported")
    }


def test_a_status_of_one_gpu_is_that_of_its_pairs(run_python: Run) -> None:
    found = _read(
        run_python,
        "gpus = 3\ngpu1.p2p_write_status = 4\ngpu1.p2p_nvlink_status = 4\ngpu1.mig_current = yes\n"
        "gpu1.topology_level = 30\ntopology_level = 10\n",
    )
    assert (found["0-1"]["path"], found["0-1"]["write"], found["0-1"]["mig"]) == ("none", "disabled_by_regkey", True)
    assert found["0-1"]["level"] == found["1-2"]["level"] == "one host bridge"
    assert (found["0-2"]["path"], found["0-2"]["write"], found["0-2"]["mig"]) == ("nvswitch", "ok", False)


def test_what_nvml_does_not_say_is_none(run_python: Run) -> None:
    scenario = (
        "gpus = 2\nerror.nvmlDeviceGetP2PStatus = function_not_found\nerror.nvmlDeviceGetNvLinkState = not_supported\n"
        "error.nvmlDeviceGetTopologyCommonAncestor = unknown\n"
    )
    for pair in _read(run_python, scenario).values():
        assert (pair["path"], pair["level"], pair["read"]) == ("", None, None)


def test_a_gpu_that_is_lost_or_no_driver_gives_nothing(run_python: Run) -> None:
    assert _read(run_python, "gpus = 2\ngpu1.lost = handle\n") == {}
    code = "from gpu_burnin.telemetry.topology import read_topology as r; print(r('GPU-a', ['GPU-b']))"
    assert run_python("init_error = driver_not_loaded\n", code).stdout == "{}\n"
    assert run_python("gpus = 2\n", code).stdout == "{}\n"  # no such GPUs


def test_names_are_those_of_the_header() -> None:
    import pynvml

    for name, value in (("CHIPSET_NOT_SUPPORTED", 1), ("GPU_NOT_SUPPORTED", 2), ("DISABLED_BY_REGKEY", 4), ("OK", 0)):
        assert getattr(pynvml, f"NVML_P2P_STATUS_{name}") == value
        assert P2P_STATUS[value] == name.lower()
    assert set(LEVELS) == {
        getattr(pynvml, f"NVML_TOPOLOGY_{name}")
        for name in ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM")
    }


def _seen(**change: Any) -> Seen:
    whole: dict[str, Any] = {
        "read": 0, "write": 0, "nvlink": 5, "level": 30, "switched": False, "direct_links": 0, "active_links": 0,
        "mig": False, **change,
    }  # fmt: skip
    return Seen(**whole)


@pytest.mark.parametrize(
    ("change", "path", "links", "possible"),
    [
        ({}, "pcie", None, True),
        ({"direct_links": 4, "active_links": 12}, "nvlink", 4, True),
        ({"nvlink": 0, "switched": True, "active_links": 18}, "nvswitch", 18, True),
        # Whose links these are is not known.
        ({"nvlink": 0, "active_links": 2}, "nvlink", None, True),
        ({"read": 3, "write": 3}, "none", None, False),
        ({"write": 99}, "none", None, False),
        ({"read": None}, "", None, None),
    ],
)
def test_the_path_of_a_pair(change: dict[str, Any], path: str, links: int | None, possible: bool | None) -> None:
    pair = pair_from(_seen(**change))
    assert (pair.path, pair.links, pair.possible) == (path, links, possible)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (PairTopology(mig=True, write="not_supported"), "nvidia-smi -mig 0"),
        (PairTopology(read="disabled_by_regkey"), "setting of the driver"),
        (
            PairTopology(write="topology_not_supported", level="across NUMA nodes"),
            r"PCIe \(across NUMA nodes\) does not",
        ),
        (PairTopology(write="chipset_not_supported"), "under one PCIe switch"),
        (PairTopology(write="gpu_not_supported"), "nothing can be done"),
        (PairTopology(read="ok", write="ok", redirecting=("0000:01:00.0",)), "ACS .* 0000:01:00.0: switch it off"),
        (PairTopology(read="ok", write="ok", iommu=("DMA-FQ",)), r"iommu=pt.*\(it said no\)"),
        (PairTopology(read="ok", write="ok", iommu=("identity",)), "^it said no$"),
        (PairTopology(write="not_supported"), "topo -p2p"),
        (PairTopology(), "^it said no$"),
    ],
)
def test_why_a_pair_cannot_copy_is_one_sentence_with_the_fix(pair: PairTopology, words: str) -> None:
    import re

    assert re.search(words, why_not(pair, "it said no"))


def test_models_with_nvlink_are_not_told_to_move_their_cards() -> None:
    pair = PairTopology(read="topology_not_supported", write="topology_not_supported", nvlink="not_supported")
    assert "PCIe switch" in why_not(pair, "")
    assert "fabric manager" in why_not(pair, "", by_nvlink=True)
    assert "fabric manager" in why_not(PairTopology(read="ok", write="ok", nvlink="not_supported"), "", by_nvlink=True)
    assert why_not(PairTopology(nvlink="ok"), "CUDA says no", by_nvlink=True) == "CUDA says no"
    assert "MIG" in why_not(PairTopology(mig=True, nvlink="not_supported"), "", by_nvlink=True)


# --- sysfs ---


def _config(*capabilities: tuple[int, int], size: int = 4096) -> bytes:
    """A configuration space with extended capabilities (id, control register)."""
    space = bytearray(size)
    for number, (identity, control) in enumerate(capabilities):
        offset = 0x100 + 0x40 * number
        following = offset + 0x40 if number + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", space, offset, identity | 1 << 16 | following << 20, 0x5F, control)
    return bytes(space)


@pytest.mark.parametrize(
    ("config", "control", "does"),
    [
        (_config((0x000D, 0x1D)), 0x1D, ("request redirect", "completion redirect")),
        (_config((0x0001, 0xFFFF), (0x0003, 0), (0x000D, 0x04)), 0x04, ("request redirect",)),
        (_config((0x000D, 0x20)), 0x20, ("egress control",)),
        (_config((0x000D, 0x11)), 0x11, ()),
        (_config((0x000D, 0x00)), 0x00, ()),
        (_config((0x0001, 0xFFFF)), None, None),
        (_config(), None, None),
        (b"\xff" * 4096, None, None),
        (_config((0x000D, 0x1D))[:64], None, None),  # not root
        (_config((0x000D, 0x1D), size=4096)[:0x104], None, None),  # cut short
    ],
)
def test_the_acs_control_register(config: bytes, control: int | None, does: tuple[str, ...] | None) -> None:
    assert acs_control(config) == control
    if control is not None:
        assert redirects(control) == does


def test_a_list_of_capabilities_that_goes_in_circles_ends() -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x140 << 20)
    struct.pack_into("<I", space, 0x140, 0x0003 | 0x100 << 20)
    assert acs_control(bytes(space)) is None


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two GPUs under one PCIe switch, and one under another root port. The ports above the first have ACS."""
    devices = tmp_path / "bus/pci/devices"
    devices.mkdir(parents=True)
    switch = "devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    acs, none = _config((0x000D, 0x1D)), _config((0x000D, 0x00))
    for path, config in (
        ("devices/pci0000:00/0000:00:01.0", none),
        (switch, none),
        (f"{switch}/0000:02:00.0", acs),
        (f"{switch}/0000:02:01.0", none),
        (f"{switch}/0000:02:00.0/0000:03:00.0", acs),
        (f"{switch}/0000:02:01.0/0000:04:00.0", acs),
        ("devices/pci0000:80/0000:80:01.0", acs),
        ("devices/pci0000:80/0000:80:01.0/0000:81:00.0", none),
    ):
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config").write_bytes(config)
        (devices / folder.name).symlink_to(folder)
    for gpu, kind in (("0000:03:00.0", "DMA-FQ"), ("0000:04:00.0", "identity")):
        (devices / gpu / "iommu_group").mkdir()
        (devices / gpu / "iommu_group/type").write_text(f"{kind}\n")
    return tmp_path


def test_bridges_between_two_gpus_with_redirection(sysfs: Path) -> None:
    # What is above both carries no copy between them; the GPUs themselves are no bridges.
    assert redirecting_bridges("0000:03:00.0", "0000:04:00.0", sysfs) == ("0000:02:00.0",)
    assert redirecting_bridges("0000:04:00.0", "0000:81:00.0", sysfs) == ("0000:80:01.0",)
    assert redirecting_bridges("0000:04:00.0", "0000:04:00.0", sysfs) == ()
    assert redirecting_bridges("0000:77:00.0", "", sysfs) == ()


def test_kinds_of_iommu(sysfs: Path) -> None:
    assert iommu_types(["0000:03:00.0", "0000:04:00.0"], sysfs) == ("DMA-FQ", "identity")
    assert iommu_types(["0000:81:00.0"], sysfs) == ()


def test_without_nvml_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert read_topology("GPU-a", ["GPU-b"]) == {}


@pytest.mark.parametrize(
    ("level", "sockets", "text"),
    [
        (50, [0, 1], "across sockets"),
        (50, [1, 1], "across NUMA nodes of one socket"),
        (50, [0, None], "across NUMA nodes"),
        (50, [], "across NUMA nodes"),
        (40, [0, 0], "one NUMA node"),
    ],
)
def test_numa_nodes_of_one_socket_are_nearer_than_sockets(level: int, sockets: list[int | None], text: str) -> None:
    assert pair_from(_seen(level=level), sockets=sockets).level == text


@pytest.mark.parametrize(("near", "socket"), [("32-47,96-111\n", 1), ("5\n", 0), ("\n", None), (None, None)])
def test_the_socket_of_a_gpu_is_that_of_the_cpus_next_to_it(tmp_path: Path, near: str | None, socket: int) -> None:
    device = tmp_path / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    if near is not None:
        (device / "local_cpulist").write_text(near)
    for cpu, package in ((32, 1), (5, 0)):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
    assert socket_of("0000:1b:00.0", tmp_path) == socket


def test_the_window_over_pcie_is_read_or_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    ended: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: ended.append("shutdown"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetBAR1MemoryInfo", lambda handle: type("Info", (), {"bar1Total": 256 << 20})()
    )
    assert bar1_bytes("GPU-a") == 256 << 20

    def refuses(handle: str) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetBAR1MemoryInfo", refuses)
    assert bar1_bytes("GPU-a") is None
    assert ended == ["shutdown"] * 2
