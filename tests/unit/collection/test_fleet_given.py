"""`muster plan` through the real Ansible: what it reads of an inventory is what the roles would build."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.plan import inventory
from gpu_burnin.fleet.plan.given import VARIABLES, Given
from gpu_burnin.fleet.plan.make import make
from tests.bench.inventory import fleet

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's place: the checkout, with the code of this test."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))


def written(folder: Path, hosts: int, **variables: object) -> Path:
    """An inventory of the example with these variables for all hosts."""
    made = fleet(folder / "inv", hosts, by_formula=True)
    shared = made / "group_vars/all.yml"
    shared.write_text(yaml.safe_dump({**yaml.safe_load(shared.read_text()), **variables}, sort_keys=False))
    return made


def test_every_variable_of_the_plan_is_one_of_its_role() -> None:
    for role, (_, names) in VARIABLES.items():
        entries = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
        assert {name for entry in entries.values() for name in entry["options"]} >= set(names), role


@pytest.mark.slow
def test_the_lab_is_read_with_the_defaults_of_the_roles() -> None:
    found = inventory.read(ROOT / "inventory/lab")
    assert (found.name, found.planned_nodes, found.unknown, found.faults) == ("lab", 10, {}, ())
    assert found.usual("kube_apiserver_max_requests_inflight") == 400
    assert found.monitoring is not None and found.monitoring.series > 1000
    # One certificate of each member, server and host, by the list of the role pki.
    assert found.certificates["etcd"] == found.hosts("etcd") + found.hosts("etcd_events") + 2
    assert found.certificates["metrics"] == found.hosts("all")
    [slow] = make(found).problems
    assert slow.where.startswith("inventory/lab/group_vars/all.yml:") and "local_ssd_max_p99_ms is 200 ms" in slow.line


@pytest.mark.slow
def test_contradictions_are_found_and_placed(tmp_path: Path) -> None:
    wrong = written(tmp_path, 30, fleet_planned_nodes=3001, fleet_pod_cidr="10.0.0.0/16", admitter_joins_per_s=10)
    found = inventory.read(wrong)
    said = "\n".join(problem.line for problem in make(found).problems)
    assert "the group kube_apiserver has 2 of the 3 hosts that the plan needs" in said
    assert "fleet_pod_cidr 10.0.0.0/16 has room for 256 pod ranges of /24" in said
    assert "all.yml" in said and found.number("admitter_joins_per_s") == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "says"), [("many", "fleet_planned_nodes is 'many'"), (0, "fleet_planned_nodes is 0")]
)
def test_a_plan_needs_a_number_of_nodes(tmp_path: Path, value: object, says: str) -> None:
    with pytest.raises(GpuBurninError, match=f"{says}; set it in group_vars/all"):
        inventory.read(written(tmp_path, 20, fleet_planned_nodes=value))


@pytest.mark.slow
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    broken = written(tmp_path, 20)
    (broken / "group_vars/gpu_nodes.yml").write_text("a: [\n")
    with pytest.raises(GpuBurninError, match=r"gpu_nodes\.yml"):
        inventory.read(broken)


@pytest.mark.slow
def test_without_the_collection_it_says_where_to_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = written(tmp_path, 20)
    empty = tmp_path / "ansible.cfg"
    empty.write_text("[defaults]\n")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(empty))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GpuBurninError, match="call muster in the checkout, or install the collection"):
        inventory.read(made)


@pytest.mark.soak
@pytest.mark.slow
def test_7500_nodes_are_read_whole(tmp_path: Path) -> None:
    """What test_the_lab_is_read_with_the_defaults_of_the_roles shows of 12 hosts, at the size of the largest plan."""
    found: Given = inventory.read(written(tmp_path, 7500))
    assert found.hosts("gpu_nodes") == 7488 and found.pods is not None and found.pods.room == 65536
    assert [setting.hosts for setting in found.settings["gpu_burnin_level"]] == [7488]
    # What the roles make of the planned nodes is what the plan says: nothing but the tests' own budget is left.
    assert [problem.line[:27] for problem in make(found).problems] == ["the tests of 7,500 GPU nodes"[:27]]
