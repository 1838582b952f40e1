"""What the GPUs of a host need, by the data that the filter gives: by model, by architecture, and refused."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import (
    Models,
    Needs,
    is_older,
    mismatched,
    modules_for,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.pci import PciDevice

from gpu_burnin.hardware import load_skus

MODELS = Models(json.loads(gpu_models("all")))


def gpu(device: str, subsystem: str = "ffff") -> PciDevice:
    return PciDevice("0000:18:00.0", "10de", device, "10de", subsystem, "030200", "")


def test_every_model_reaches_the_hosts() -> None:
    assert {model["key"] for model in json.loads(gpu_models("all"))["models"]} == set(load_skus().skus)


def test_chosen_models_and_unknown_ones() -> None:
    assert [model["key"] for model in json.loads(gpu_models(["l4", "b200-sxm"]))["models"]] == ["l4", "b200-sxm"]
    with pytest.raises(AnsibleFilterError, match="no GPU model h1000; choose from a100"):
        gpu_models("h1000")


@pytest.mark.parametrize(
    ("device", "subsystem", "expected"),
    [
        ("2330", "16c1", ("NVIDIA H100 80GB HBM3", "either", "520", None)),
        ("2330", "ffff", ("NVIDIA H100 80GB HBM3", "either", "520", None)),  # a board maker's own subsystem
        ("2901", "ffff", ("NVIDIA B200", "open", "570.133.20", None)),
        ("2342", "1809", ("NVIDIA GH200 480GB", "open", "520", None)),
        ("1db6", "ffff", ("Tesla V100-PCIE-32GB", "proprietary", "384", 580)),
        ("1d81", "ffff", ("volta", "proprietary", "384", 580)),
        ("1eb8", "ffff", ("Tesla T4", "either", "410", None)),
        ("3fff", "ffff", None),
    ],
)
def test_needs(device: str, subsystem: str, expected: tuple[str, str, str, int | None] | None) -> None:
    assert MODELS.needs(gpu(device, subsystem)) == (expected and Needs(*expected))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["2330"], "open"),
        (["1db6"], "proprietary"),
        (["2330", "1db6"], "proprietary"),
        (["2901", "2330"], "open"),
        (["2901", "1db6"], ""),
        ([], "open"),
    ],
)
def test_modules_for_all_gpus_of_a_host(devices: list[str], expected: str) -> None:
    assert modules_for([needs for device in devices if (needs := MODELS.needs(gpu(device)))]) == expected


def test_loaded_modules_that_do_not_drive_a_gpu() -> None:
    volta, hopper = MODELS.needs(gpu("1db6")), MODELS.needs(gpu("2330"))
    assert volta is not None and hopper is not None
    assert mismatched("open", volta) and not mismatched("proprietary", volta) and not mismatched("", volta)
    assert not mismatched("open", hopper)


@pytest.mark.parametrize(
    ("version", "least", "older"),
    [
        ("580.65.06", "580.65.06", False),
        ("580.65.06", "580.105.08", True),
        ("575.57.08", "580", True),
        ("580.9", "580", False),
    ],
)
def test_is_older(version: str, least: str, older: bool) -> None:
    assert is_older(version, least) is older


def test_oldest_driver_for_cuda() -> None:
    assert [MODELS.oldest_driver_for_cuda(major) for major in ("12", "13", "none")] == ["525.60.13", "580.65.06", None]
