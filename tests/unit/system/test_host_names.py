"""Names of many hosts in few words."""

from __future__ import annotations

import pytest

from gpu_burnin.system.host_names import name_hosts


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["gpu-2", "gpu-1"], "gpu-1, gpu-2"),
        (["gpu-10", "gpu-9", "gpu-10"], "gpu-9, gpu-10"),
        ([f"gpu-{number:04}" for number in range(1, 7476)], "gpu-0001 to gpu-7475, 7,475 hosts"),
        ([f"r{rack}-n{node}" for rack in (1, 2) for node in range(1, 10)], "r1-n1 to r1-n9, r2-n1 to r2-n9, 18 hosts"),
        (["a", "b", "c", "d", "e1", "e2", "e3"], "a, b, c and 4 more hosts"),
        (["n1", "n2", "x", "y", "z"], "n1, n2, x, y, z, 5 hosts"),
    ],
)
def test_hosts_whose_numbers_count_up_are_one_word(hosts: list[str], said: str) -> None:
    assert name_hosts(hosts) == said
