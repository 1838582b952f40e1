"""Names of many hosts in few words."""

from __future__ import annotations

import pytest

from gpu_burnin.system.host_names import fold, name_hosts


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["a", "b", "c", "d"], "a, b, c, d"),
        (["etcd-2", "etcd-1"], "etcd-1, etcd-2"),
        (["n9", "n10", "n11"], "n9, n10, n11"),
        (["n8", "n9", "n10", "n11", "x"], "n8 to n11, x, 5 hosts"),
        (["n08", "n09", "n10", "n9", "n8"], "n08, n8, n09, n9, n10"),
        ([f"gpu-{n:04d}" for n in range(1, 7476)], "gpu-0001 to gpu-7475, 7,475 hosts"),
        ([f"gpu-{n}" for n in (1, 2, 3, 5, 8, 9, 10)], "gpu-1 to gpu-3, gpu-5, gpu-8 to gpu-10, 7 hosts"),
        ([f"n{n}.dc1.example.com" for n in range(1, 9)], "n1.dc1.example.com to n8.dc1.example.com, 8 hosts"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r1n1, r1n2, r2n1, r2n2"),
        (
            ["api-1", "db-1", "lb-1", "lb-3", *(f"gpu-{n}" for n in range(1, 100)), "x"],
            "api-1, db-1, gpu-1 to gpu-99 and 3 more hosts",
        ),
        ([f"gpu-{n}" for n in range(0, 2000, 2)], "gpu-0, gpu-2, gpu-4 and 997 more hosts"),
        ([], ""),
        (["gpu-10", "gpu-9", "gpu-10"], "gpu-9, gpu-10"),
        ([f"r{rack}-n{node}" for rack in (1, 2) for node in range(1, 10)], "r1-n1 to r1-n9, r2-n1 to r2-n9, 18 hosts"),
    ],
)
def test_names_are_folded(hosts: list[str], said: str) -> None:
    assert name_hosts(reversed(hosts)) == said
    assert (fold(hosts)[2] == 0) is ("more hosts" not in said)


def test_a_place_with_more_room_names_more() -> None:
    assert name_hosts([f"gpu-{n}" for n in (1, 3, 5, 7, 9)], most=5) == "gpu-1, gpu-3, gpu-5, gpu-7, gpu-9"
