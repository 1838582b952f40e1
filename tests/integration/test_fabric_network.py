"""Members of a test between nodes in network namespaces: a slow link, a smaller MTU, firewalls, a cut in mid-test.

Only here: the kernel's own network between members, with real packets lost, held up and refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence

import pytest

from gpu_burnin.checks.fabric import Finding
from gpu_burnin.checks.fabric.result import MTU, OK, STALLED, UNREACHABLE
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.fabric_members import all_find, joined_before, meeting, members, misses
from tests.support.fabric_wires import wires

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="it needs root: it makes network namespaces"),
    pytest.mark.skipif(
        not shutil.which("tc") or not shutil.which("iptables"), reason="tc or iptables is not installed"
    ),
]
# Of the slow link, in bits and bytes a second.
SLOW, SLOW_BYTES_PER_S = "2mbit", 2.5e5


def _named(found: Finding) -> dict[str, str]:
    return {peer.name: peer.outcome for peer in found.peers if peer.outcome != OK}


def _outcomes(all_found: Sequence[Finding]) -> list[str]:
    return [found.outcome for found in all_found]


def _sent_again(detail: str) -> int:
    counted = re.search(r"([\d,]+) segments? to it sent again", detail)
    return int(counted[1].replace(",", "")) if counted else 0


def test_a_slow_link_shows_in_what_all_others_get_from_that_member() -> None:
    with wires(3) as net:
        net.lay_out()
        given = meeting(net.addresses, size_bytes=1 << 19)
        net.inside(
            "h1", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", SLOW, "burst", "4k", "latency", "9s"
        )
        found = all_find(given, namespaces=net.namespaces)
    assert _outcomes(found) == [OK] * 3, [one.detail for one in found]
    # A ring is as slow as its slowest link for the member behind it; the plan takes the lowest rate of a test.
    assert found[2].bytes_per_s and found[2].bytes_per_s < 2 * SLOW_BYTES_PER_S, [one.bytes_per_s for one in found]
    rates = {(rank, peer.name): peer.bytes_per_s or 0 for rank in (0, 2) for peer in found[rank].peers}
    for rank, other in ((0, "gpu-3"), (2, "gpu-1")):
        assert rates[rank, "gpu-2"] < 2 * SLOW_BYTES_PER_S < rates[rank, other], rates


def test_a_link_that_loses_packets_is_told_by_what_was_sent_again() -> None:
    """TCP hides the loss from the data; what is exact is right."""
    with wires(3) as net:
        net.lay_out()
        lossy = ["-m", "statistic", "--mode", "nth", "--every", "4", "--packet", "3", "-j", "DROP"]
        net.inside("h1", "iptables", "-A", "INPUT", "-p", "tcp", "-s", net.addresses[2][0], *lossy)
        found = all_find(meeting(net.addresses, seconds=1.0, size_bytes=1 << 18), namespaces=net.namespaces)
    assert _outcomes(found) == [OK] * 3, [one.detail for one in found]
    # A busy machine sends a segment again here and there.
    again = {(rank, peer.name): _sent_again(peer.detail) for rank in range(3) for peer in found[rank].peers}
    lossy_way = again.pop((2, "gpu-2"))
    assert lossy_way >= 5 and lossy_way > max(again.values()), (lossy_way, again)


def test_large_messages_that_are_lost_are_told_from_a_member_that_is_not_there() -> None:
    with wires(2) as net:
        addresses = net.lay_out_around_router(1280)
        given = meeting(addresses, stall_s=3.0)
        found = all_find(given, namespaces=net.namespaces)
    assert _outcomes(found) == [MTU, MTU], [one.detail for one in found]
    assert [_named(one) for one in found] == [{"gpu-2": MTU}, {"gpu-1": MTU}]
    # Only the router's way to gpu-2 takes less: each end says what it knows.
    assert "small messages come through on rail 0, and large ones do not" in found[1].detail


def test_a_firewall_between_two_members_is_named_by_both_and_no_third_one_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined_before(monkeypatch, lambda mesh: misses(mesh, {1: 1, 2: 1}))
    with wires(3) as net:
        net.lay_out()
        source = net.addresses[2][0]
        net.inside("h1", "iptables", "-A", "INPUT", "-p", "tcp", "-s", source, "-j", "DROP")
        found = all_find(meeting(net.addresses, join_s=1.5), namespaces=net.namespaces)
    assert _outcomes(found) == [UNREACHABLE] * 3, [one.detail for one in found]
    assert [_named(one) for one in found] == [{}, {"gpu-3": UNREACHABLE}, {"gpu-2": UNREACHABLE}]
    assert "gpu-2 is unreachable: no answer" in found[2].detail
    assert "gpu-2" in found[0].detail or "gpu-3" in found[0].detail


def test_a_rail_that_is_closed_is_told_and_the_other_one_tested_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    joined_before(monkeypatch, lambda mesh: misses(mesh, {0: 1, 1: 1}))
    with wires(2, rails=2) as net:
        net.lay_out()
        net.inside("h1", "iptables", "-A", "INPUT", "-i", "eth1", "-p", "tcp", "-j", "DROP")
        found = all_find(meeting(net.addresses, rails=(0, 1), join_s=1.0), namespaces=net.namespaces)
    for one in found:
        assert one.outcome == UNREACHABLE and one.bytes_per_s is None, one.detail
        assert [(rail.rail, rail.outcome) for rail in one.rails] == [(0, OK), (1, UNREACHABLE)]
        assert one.rails[0].bytes_per_s and "on rail 1" in one.detail


def test_a_link_that_is_cut_in_mid_test_has_stalled() -> None:
    """Nothing closes: only what does not come shows it. The other two go on to say so, and not of each other."""
    with wires(3) as net:
        net.lay_out()
        # The end comes with the fault: with the time it would be later than anybody waits for it.
        given = meeting(net.addresses, seconds=2 * PATIENCE_S, stall_s=3.0)
        with members(given, net.namespaces) as group:
            group.start(range(3))
            # More than they say to meet.
            wait_until(lambda: net.received_bytes("wire", "p2-0") > 1 << 20)
            net.inside("wire", "ip", "link", "set", "p2-0", "down")
            found = group.findings()
    assert _outcomes(found) == [STALLED] * 3
    assert [_named(one) for one in found[:2]] == [{"gpu-3": STALLED}] * 2, [one.detail for one in found]
    assert set(_named(found[2]).values()) == {STALLED}
