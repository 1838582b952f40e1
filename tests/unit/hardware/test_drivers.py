"""Which driver a GPU needs: complete for every model, by architecture for the others, mistakes named by their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.hardware import HardwareDataError, Modules, load_drivers, load_skus
from gpu_burnin.hardware.drivers import DEFAULT_PATH, Architecture


def of(device_id: int) -> list[Architecture]:
    """The architectures whose blocks hold a PCI device id of NVIDIA's."""
    return [one for one in load_drivers().architectures.values() if any(device_id in ids for ids in one.device_ids)]


def test_every_model_is_in_the_block_of_its_architecture() -> None:
    for sku in load_skus().skus.values():
        assert [one.name for one in of(sku.device_id)] == [sku.architecture], sku.key


@pytest.mark.parametrize(
    ("device_id", "architecture", "modules"),
    [
        (0x1DB6, "volta", Modules.PROPRIETARY),  # V100-PCIE-32GB
        (0x15F8, "pascal", Modules.PROPRIETARY),  # P100, in the midst of Maxwell's ids
        (0x17FD, "maxwell", Modules.PROPRIETARY),  # M40
        (0x1EB8, "turing", Modules.EITHER),  # T4
        (0x2236, "ampere", Modules.EITHER),  # A10
        (0x20B7, "ampere", Modules.EITHER),  # A30
        (0x2330, "hopper", Modules.EITHER),
        (0x26B1, "ada", Modules.EITHER),  # RTX 6000 Ada
        (0x2B85, "blackwell", Modules.OPEN),  # RTX 5090
        (0x31C2, "blackwell", Modules.OPEN),  # GB300
    ],
)
def test_architecture_by_pci_id(device_id: int, architecture: str, modules: Modules) -> None:
    assert [(one.name, one.driver.modules) for one in of(device_id)] == [(architecture, modules)]


def test_an_id_of_no_block_has_no_architecture() -> None:
    assert of(0x3FFF) == []


def test_no_id_is_in_two_blocks_and_every_branch_is_known() -> None:
    drivers = load_drivers()
    blocks = [ids for one in drivers.architectures.values() for ids in one.device_ids]
    assert sum(map(len, blocks)) == len({number for ids in blocks for number in ids})
    assert list(drivers.branches) == sorted(set(drivers.branches))
    needs = [sku.driver for sku in load_skus().skus.values() if sku.driver]
    assert needs and all(int(need.since_driver.split(".")[0]) in drivers.branches for need in needs)
    for one in drivers.architectures.values():
        assert one.driver.source
        assert one.driver.until_branch is None or one.driver.until_branch in drivers.branches


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("modules: either", "modules: closed", "closed"),
        ('"525.60.13"', '"525-60"', "must be a branch or version"),
        ("[[0x2300, 0x23FF]]", "[[0x23FF, 0x2300]]", "first and the last PCI device id"),
        ("    until_branch: 580\n", "    until: 580\n", "unknown key 'until'"),
    ],
)
def test_mistakes_are_named_by_file_and_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "drivers.yaml"
    text = DEFAULT_PATH.read_text()
    path.write_text(text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    with pytest.raises(HardwareDataError, match=rf"drivers\.yaml:{line}: .*{message}"):
        load_drivers(path)
