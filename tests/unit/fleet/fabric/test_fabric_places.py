"""Places that a plan cannot use: each mistake is one sentence with the host and the key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.fabric.model import Fabric, Nic, Node
from gpu_burnin.fleet.fabric.places import notes, problems
from tests.bench.fabric.simulate import site


def changed(fabric: Fabric, name: str, **fields: object) -> Fabric:
    return Fabric(tuple(replace(node, **fields) if node.name == name else node for node in fabric.nodes))  # type: ignore[arg-type]


FABRIC = site(8, leaf=4, rails=2)


def test_what_is_whole_has_no_problem_and_no_note() -> None:
    assert problems(FABRIC) == () and notes(FABRIC) == ()


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        (
            "gpu-0002",
            {"leaf": ""},
            "gpu-0002: no fleet_place.leaf, so their switch cannot be named",
        ),
        (
            "gpu-0002",
            {"nics": (Nic(0, "10.0.0.1"), Nic(1, "10.1.0.2"))},
            "gpu-0001, gpu-0002: the address 10.0.0.1 stands 2 times in fleet_fabric_nics; give each NIC its own",
        ),
        (
            "gpu-0002",
            {"nics": (Nic(0, ""), Nic(1, "10.1.0.2"))},
            "gpu-0002: a NIC of fleet_fabric_nics has no address; give one, or set ansible_host",
        ),
        (
            "gpu-0002",
            {"spine": "b"},
            "leaf-1: has more than one fleet_place.spine (b by gpu-0002, spine-1",
        ),
        (
            "gpu-0002",
            {"nics": (Nic(0, "10.0.0.2"),)},
            "gpu-0002: has 1 rail in fleet_fabric_nics, and most nodes of its leaf leaf-1 have 2; complete it",
        ),
        ("gpu-0002", {"nics": (Nic(1, "10.0.0.2"), Nic(1, "10.1.0.2"))}, "gpu-0002: has two NICs on one rail in"),
    ],
)
def test_a_problem_names_host_and_key(name: str, fields: dict[str, object], sentence: str) -> None:
    assert any(sentence in problem for problem in problems(changed(FABRIC, name, **fields)))


def test_one_address_in_two_forms_is_one_address() -> None:
    nodes = (Node("a", "l", nics=(Nic(0, "fd00::1"),)), Node("b", "l", nics=(Nic(0, "FD00:0::0001"),)))
    assert "a, b: the address fd00::1" in problems(Fabric(nodes))[0]


def test_no_leaf_at_all_is_one_sentence() -> None:
    nodes = tuple(replace(node, leaf="") for node in FABRIC.nodes)
    assert problems(Fabric(nodes)) == (
        "no node has fleet_place.leaf, so their switch cannot be named; give the leaf switch of each",
    )


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        (9, "gpu-0009: no other node has the same fleet_place.leaf"),
        (9, "gpu-0009: no other node has the same fleet_place.rack"),
        (7, "leaf-2: fleet_place.leaf of an odd number of nodes"),
        (6, "leaf-2: fleet_place.leaf of two nodes"),
        (4, "leaf-1: is the only fleet_place.leaf"),
        (1, "gpu-0001: is the only node"),
    ],
)
def test_what_changes_the_tests_is_a_note(nodes: int, note: str) -> None:
    fabric = site(nodes, leaf=4, rails=2)
    assert problems(fabric) == () and any(one.startswith(note) for one in notes(fabric))
