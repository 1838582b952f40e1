"""Address and pod range of numbered hosts."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.nth_address import nth_address
from ansible_collections.muster.fleet.plugins.filter.nth_range import nth_range


@pytest.mark.parametrize(
    ("host", "network", "offset", "expected"),
    [
        ("gpu-001", "10.20.0.0/16", 0, "10.20.0.1"),
        ("gpu-300", "10.20.0.0/16", 0, "10.20.1.44"),
        ("gpu-7.site.internal", "10.20.0.0/24", 100, "10.20.0.107"),
        ("rack3-gpu-07", "10.20.0.0/24", 0, "10.20.0.7"),
        ("gpu-254", "10.20.0.0/24", 0, "10.20.0.254"),
        ("gpu-000", "10.20.0.0/24", 1, "10.20.0.1"),
        ("gpu-0", "10.20.0.0/31", 0, "10.20.0.0"),
        ("gpu-17", "fd00::/64", 0, "fd00::11"),
    ],
)
def test_nth_address(host: str, network: str, offset: int, expected: str) -> None:
    assert nth_address(host, network, offset) == expected


@pytest.mark.parametrize(
    ("host", "network", "prefix", "offset", "expected"),
    [
        ("gpu-007", "10.64.0.0/12", 24, 0, "10.64.7.0/24"),
        ("gpu-300", "10.64.0.0/12", 24, 0, "10.65.44.0/24"),
        ("gpu-0", "10.64.0.0/12", 24, 0, "10.64.0.0/24"),
        ("gpu-15", "10.64.0.0/16", 20, 0, "10.64.240.0/20"),
        ("system-2", "10.64.0.0/12", 24, 4000, "10.79.162.0/24"),
        ("gpu-1", "fd00::/48", 64, 0, "fd00:0:0:1::/64"),
        ("gpu-0", "10.64.0.0/24", 24, 0, "10.64.0.0/24"),
    ],
)
def test_nth_range(host: str, network: str, prefix: int, offset: int, expected: str) -> None:
    assert nth_range(host, network, prefix, offset) == expected


@pytest.mark.parametrize(
    ("host", "network", "message"),
    [
        ("gpu", "10.20.0.0/24", "does not end with a number"),
        ("gpu-a.1", "10.20.0.0/24", "does not end with a number"),
        ("gpu-0", "10.20.0.0/24", "has the addresses 1 to 254"),
        ("gpu-255", "10.20.0.0/24", "has the addresses 1 to 254"),
        ("gpu-1", "10.20.0.1/24", "is not an IP range"),
        ("gpu-1", "nonsense", "is not an IP range"),
    ],
)
def test_nth_address_refuses(host: str, network: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message) as refused:
        nth_address(host, network)
    # The same mistake of many hosts must read the same.
    assert host not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "prefix", "message"),
    [
        ("gpu-256", 24, "has the /24 ranges 0 to 255"),
        ("gpu-1", 15, "has no ranges of /15"),
        ("gpu-1", 33, "has no ranges of /33"),
    ],
)
def test_nth_range_refuses(host: str, prefix: int, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message) as refused:
        nth_range(host, "10.64.0.0/16", prefix)
    assert host not in str(refused.value)
