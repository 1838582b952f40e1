"""What connects the GPUs of a host, which packages that needs, and which GPU is not on the fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import fabric, nvml
from ansible_collections.muster.fleet.plugins.modules import nvidia_fabric

from tests.support.nvidia_host import GPU, NvidiaHost

MLX = {"vendor": "15b3", "device": "1021", "class_code": "020700"}


def bridge(host: NvidiaHost, address: str, words: bytes) -> None:
    host.add_device(address, **MLX)
    (host.root / "sys/bus/pci/devices" / address / "vpd").write_bytes(words)


@pytest.mark.parametrize(
    ("gpu", "extra", "kind", "words"),
    [
        ("2330", [], "none", "no NVSwitch"),
        ("2330", [{"address": "0000:c5:00.0", "device": "22a3", "class_code": "068000"}], "nvswitch", "0000:c5:00.0"),
        # An ordinary ConnectX-7, and one in front of the switches.
        ("2901", [b"PN MCX75310AAS"], "none", "no NVSwitch"),
        ("2901", [b"\x82SW_MNG"], "nvlink5", "0000:05:00.0"),
        # A GPU of GB200: whatever else there is, its switches are in the rack's trays.
        ("2941", [b"\x82SW_MNG"], "rack", "10de:2941"),
    ],
)
def test_what_connects_gpus_is_read_from_the_bus(
    tmp_path: Path, gpu: str, extra: list[Any], kind: str, words: str
) -> None:
    host = NvidiaHost(tmp_path)
    host.add_device(device=gpu)
    for one in extra:
        if isinstance(one, bytes):
            bridge(host, "0000:05:00.0", one)
        else:
            host.add_device(**one)
    found = fabric.platform(tmp_path)
    assert found.kind == kind
    assert words in found.evidence
    assert found.needs_manager == (kind in ("nvswitch", "nvlink5"))


def test_a_switch_manager_without_gpus_and_a_host_without_a_bus(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    bridge(host, "0000:05:00.0", b"SW_MNG")
    assert fabric.platform(tmp_path).kind == "none"
    assert fabric.platform(tmp_path / "nowhere") == fabric.Platform("none", "no PCI bus")


@pytest.mark.parametrize(
    ("kind", "source", "version", "imex", "wanted"),
    [
        ("nvswitch", "nvidia", "580.105.08", False, {"nvidia-fabricmanager": "580.105.08"}),
        ("nvswitch", "nvidia", "575.57.08", False, {"nvidia-fabricmanager-575": "575.57.08"}),
        ("nvswitch", "ubuntu", "580.105.08", False, {"nvidia-fabricmanager-580": "580.105.08"}),
        (
            "nvlink5", "nvidia", "580.105.08", False,
            {"nvidia-fabricmanager": "580.105.08", "nvlsm": "2025.06.11-1", "infiniband-diags": ""},
        ),
        ("rack", "nvidia", "580.105.08", True, {"nvidia-imex": "580.105.08"}),
        ("rack", "nvidia", "580.105.08", False, {}),
    ],
)  # fmt: skip
def test_packages_follow_the_driver(kind: str, source: str, version: str, imex: bool, wanted: dict[str, str]) -> None:
    assert fabric.packages(kind, source, version, "2025.06.11-1", imex) == wanted


def gpu(**changes: Any) -> nvml.Gpu:
    return nvml.Gpu(**{**GPU, **changes})


@pytest.mark.parametrize(
    ("kind", "gpus", "missing"),
    [
        ("nvswitch", [gpu()], []),
        ("nvswitch", [gpu(), gpu(uuid="GPU-2", fabric_state="in_progress")],
         ["GPU GPU-2 at 0000:18:00.0: in_progress"]),
        ("nvswitch", [gpu(fabric_status=15)], ["GPU GPU-1 at 0000:18:00.0: completed with status 15"]),
        # One GPU that knows no fabric, beside others that do, is not on it.
        ("nvswitch", [gpu(), gpu(uuid="GPU-2", fabric_state="not_supported")],
         ["GPU GPU-2 at 0000:18:00.0: not_supported"]),
        ("nvswitch", [gpu(fabric_state="not_supported")], []),
        ("none", [gpu(fabric_state="not_supported")], []),
        # A virtual machine whose switches the host system manages.
        ("none", [gpu(fabric_state="in_progress")], ["GPU GPU-1 at 0000:18:00.0: in_progress"]),
        (
            "nvswitch",
            [gpu(fabric_state=None, errors={"fabric_state": "GPU is lost"})],
            ["GPU GPU-1 at 0000:18:00.0: its fabric state cannot be read (GPU is lost)"],
        ),
    ],
)  # fmt: skip
def test_the_gpu_that_is_not_on_the_fabric_is_named(kind: str, gpus: list[nvml.Gpu], missing: list[str]) -> None:
    assert fabric.unregistered(kind, gpus) == missing


def test_gpus_before_hopper_tell_nothing() -> None:
    assert fabric.untold([gpu(fabric_state="not_supported")])
    assert not fabric.untold([gpu()])


def test_registration_is_waited_for_and_the_deadline_names_the_gpu(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 3:
            host.answer_nvml()

    host.answer_nvml(gpus=[GPU | {"fabric_state": "in_progress"}])
    found = nvidia_fabric.registered("nvswitch", host.run, 10.0, clock=lambda: now[0], sleep=sleep)
    assert (now[0], found[0].fabric_state) == (3.0, "completed")

    host.answer_nvml(gpus=[GPU | {"fabric_state": "in_progress"}])
    with pytest.raises(nvidia_fabric.Held, match=r"not complete after 2 s: GPU GPU-1 at 0000:18:00.0: in_progress"):
        nvidia_fabric.registered(
            "nvswitch", host.run, 2.0, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
        )

    host.answer_nvml(code=9, error="driver not loaded", gpus=None)
    with pytest.raises(nvidia_fabric.Held, match="NVML does not tell of the fabric: driver not loaded"):
        nvidia_fabric.registered("nvswitch", host.run, 2.0)
    assert nvidia_fabric.registered("none", host.run, 2.0) == ()
