"""What `muster fabric plan` reads of an inventory: places, NICs, models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.plugin_utils.fabric_reader import nics_of

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Nic, Node
from gpu_burnin.fleet.fabric import plan

ROOT = Path(__file__).resolve().parents[3]


def test_without_nics_a_node_has_one_with_the_address_that_others_use() -> None:
    assert nics_of("gpu-1", [], "192.0.2.7") == [{"rail": 0, "address": "192.0.2.7"}]
    assert nics_of("gpu-1", [{"rail": 3, "address": "192.0.2.7"}], "") == [{"rail": 3, "address": "192.0.2.7"}]


@pytest.mark.parametrize(
    "given", ["192.0.2.7", {"rail": 0}, [{"rail": "0", "address": "192.0.2.7"}], [{"rail": 0}], [{"rail": -1}], ["a"]]
)
def test_other_nics_are_refused_by_host_and_key(given: object) -> None:
    with pytest.raises(FleetError, match=re.escape("gpu-1: fleet_fabric_nics ")):
        nics_of("gpu-1", given, "")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory of three GPU nodes, and the checkout's collection."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    monkeypatch.chdir(ROOT)
    hosts = {
        "gpu-1": {
            "ansible_host": "192.0.2.1",
            "fleet_place": {"rack": "r1", "switch": "leaf-1", "spine": "s1", "feed": "a"},
            "fleet_fabric_nics": [{"rail": 0, "address": "198.18.0.1"}, {"rail": 1, "address": "198.18.1.1"}],
            "gpu_burnin_expect": {"model": "h200", "gpus": 8},
        },
        "gpu-2": {"ansible_host": "192.0.2.2", "fleet_place": {"leaf": "leaf-1"}},
    }
    listed = {"all": {"children": {"gpu_nodes": {"hosts": hosts}, "system_nodes": {"hosts": {"system-1": None}}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(listed))
    return tmp_path / "hosts.yml"


@pytest.mark.slow
def test_places_are_read_by_the_real_ansible(site: Path) -> None:
    """Only here: the action fabric_given in a real ansible-core, from hosts.yml to the fabric's dataclasses."""
    assert plan.read([str(site)]).nodes == (
        Node("gpu-1", "leaf-1", "r1", "s1", "a", "h200", (Nic(0, "198.18.0.1"), Nic(1, "198.18.1.1"))),
        Node("gpu-2", "leaf-1", nics=(Nic(0, "192.0.2.2"),)),
    )
    site.write_text(site.read_text().replace("switch: leaf-1", "switch: leaf-1\n            leaf: leaf-2"))
    with pytest.raises(GpuBurninError, match="gpu-1: fleet_place has switch leaf-1 and leaf leaf-2"):
        plan.read([str(site)])
