"""Routes to other nodes' pods by BGP: real BIRD in network namespaces, with the files that role pod_network renders.

Only here: what BIRD makes of them. Two nodes reflect, two more have sessions with these. Texts and the program's own
decisions: tests/unit/collection/test_pod_network_bgp.py; systemd and both changes of a fleet: the role's scenario bgp.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .bgp_hosts import NODES, SYSTEM, Hosts, comes, prefix

VARIABLES: dict[str, Any] = {
    "pod_network_bgp_reflectors": list(SYSTEM),
    "pod_network_bgp_nodes": ["198.18.59.0/24"],
    "pod_network_bgp_password": "sesame",
}
GPU_1, GPU_2 = NODES["gpu-1"], NODES["gpu-2"]


@pytest.fixture
def laid_out(tmp_path: Path) -> Iterator[Hosts]:
    """The hosts, without a daemon."""
    if os.geteuid() != 0:
        pytest.skip("it needs root: it makes network namespaces")
    if shutil.which("bird") is None:
        pytest.skip("bird2 is not installed; `make setup-lab` does it")
    hosts = Hosts(prefix(), tmp_path, VARIABLES)
    try:
        hosts.lay_out()
        yield hosts
    finally:
        hosts.tear_down()


@pytest.fixture
def hosts(laid_out: Hosts) -> Hosts:
    """The same, when all have learnt all."""
    laid_out.start(*NODES)
    for host in NODES:
        comes(lambda host=host: laid_out.learnt(host), laid_out.wanted(host))  # type: ignore[misc]
    return laid_out


def static(hosts: Hosts, host: str) -> list[str]:
    """The ranges that have a static route, as role pod_network sets them."""
    return sorted(line.split()[0] for line in hosts.run(host, "ip", "route", "show", "proto", "177").splitlines())


def set_static(hosts: Hosts, host: str) -> None:
    for range_, gateway in hosts.wanted(host).items():
        hosts.run(host, "ip", "route", "add", range_, "via", gateway, "proto", "177")


def lying(more: str, next_hop: str = "") -> Callable[[str], str]:
    """A change of a node's bird.conf: it announces more, as the best there is, or sends what comes elsewhere."""
    lie = f"bgp_local_pref = 900; {next_hop}"

    def change(text: str) -> str:
        wrong = text.replace("if source = RTS_STATIC then accept;", f"if source = RTS_STATIC then {{ {lie} accept; }}")
        return wrong.replace(" blackhole;\n", f" blackhole;\n{more}\n", 1)

    return change


FOREIGN = ("10.9.0.0/24", "0.0.0.0/0", "198.19.0.0/17", "198.19.80.0/25", "198.19.80.0/23", "198.19.200.0/24")


@pytest.mark.parametrize("host", ["gpu-2", "system-2"])
def test_what_is_no_range_of_a_node_goes_nowhere(laid_out: Hosts, host: str) -> None:
    """Neither from a node nor from a reflector; the range behind it, which is one, shows that all was looked at."""
    last = "198.19.99.0/24"
    laid_out.configure(host, lying("\n".join(f"route {one} blackhole;" for one in (*FOREIGN, last))))
    laid_out.start(*NODES)
    comes(lambda: last in laid_out.learnt("gpu-1"), True)
    allowed = {last, *(range_ for _, range_ in NODES.values())}
    for other in NODES:
        assert set(laid_out.learnt(other)) <= allowed, other


def test_a_node_gives_no_other_ones_address_for_its_range(laid_out: Hosts) -> None:
    """The second range of the same node, with its own address, shows that both were looked at."""
    lie = f"if net = {GPU_2[1]} then bgp_next_hop = {GPU_1[0]};"
    laid_out.configure("gpu-2", lying("route 198.19.99.0/24 blackhole;", lie))
    laid_out.start(*NODES)
    honest = laid_out.wanted("gpu-1", SYSTEM) | {"198.19.99.0/24": GPU_2[0]}
    comes(lambda: laid_out.learnt("gpu-1"), honest)
    assert all(GPU_2[1] not in laid_out.learnt(host) for host in SYSTEM)


def test_the_range_of_a_node_that_has_it_is_taken_by_nobody(hosts: Hosts) -> None:
    others = ("system-1", "system-2", "gpu-1")
    before = {host: hosts.learnt(host) for host in others}
    hosts.configure("gpu-2", lying(f"route {GPU_1[1]} blackhole;"))
    hosts.run("gpu-2", "birdc", "configure")
    # Both reflectors have heard it, as the best there is, and send packets where they went before.
    for host in SYSTEM:
        comes(lambda host=host: hosts.run(host, "birdc", "show", "route", GPU_1[1]).count(f"via {GPU_2[0]}"), 1)  # type: ignore[misc]
    assert {host: hosts.learnt(host) for host in others} == before


def test_a_node_announces_no_more_than_two_ranges(laid_out: Hosts) -> None:
    """Its own, and for the time of a change the one before it."""
    laid_out.configure("gpu-2", lying("\n".join(f"route 198.19.{n}.0/24 blackhole;" for n in range(90, 100))))
    laid_out.start(*NODES)
    comes(lambda: "[HIT]" in laid_out.run("system-1", "birdc", "show", "protocols", "all", may_fail=True), True)
    for host in SYSTEM:
        comes(lambda host=host: list(laid_out.learnt(host).values()).count(GPU_2[0]), 2)  # type: ignore[misc]


def test_a_stranger_without_the_password_has_no_session(laid_out: Hosts) -> None:
    laid_out.configure("gpu-2", pod_network_bgp_password="other")
    laid_out.start("system-1", "system-2", "gpu-1")
    comes(lambda: laid_out.learnt("gpu-1"), laid_out.wanted("gpu-1", SYSTEM))
    laid_out.start("gpu-2")
    told = laid_out.program("gpu-2", "wait", may_fail=True)
    assert told.startswith("pod-network-bgp: gpu-2: no BGP session within 3 s with 198.18.59.61 (")
    assert "pod_network_bgp_password" in told and laid_out.learnt("gpu-2") == {}
    assert GPU_2[1] not in laid_out.learnt("system-1")


def test_a_daemon_that_is_killed_or_starts_again_loses_no_packet(hosts: Hosts) -> None:
    packets = hosts.packets("gpu-1", "gpu-2")
    for host in ("gpu-1", "gpu-2", "system-1"):
        hosts.kill(host)
        hosts.start(host)
        comes(lambda host=host: "Established" in hosts.run(host, "birdc", "show", "protocols", may_fail=True), True)  # type: ignore[misc]
    for host in ("gpu-2", "system-2"):
        hosts.restart(host)
        comes(lambda host=host: "Established" in hosts.run(host, "birdc", "show", "protocols", may_fail=True), True)  # type: ignore[misc]
    sent, lost = packets.counted()
    assert (sent > 200, lost) == (True, 0)


def test_daemons_that_are_all_killed_at_once_lose_no_packet(laid_out: Hosts) -> None:
    """What starts again takes nothing from a peer that starts again too, and takes away what it had from it (RFC 4724).

    Here the reflector tells again after 5 s, and not 30.
    """
    one = ("system-1", "gpu-1", "gpu-2")
    for host in one:
        sooner = dict(laid_out.variables) | {"pod_network_bgp_reflectors": ["system-1"]}
        laid_out.configure(host, lambda text: text.replace("restart wait 30;", "restart wait 5;"), **sooner)
    laid_out.start(*one)
    comes(lambda: laid_out.learnt("gpu-1"), laid_out.wanted("gpu-1", one))
    packets = laid_out.packets("gpu-1", "gpu-2")
    for host in one:
        laid_out.kill(host)
    laid_out.start("gpu-1", "gpu-2")
    comes(lambda: "graceful" in laid_out.run("gpu-1", "birdc", "show", "status", may_fail=True).lower(), True)
    time.sleep(2)
    laid_out.start("system-1")
    for host in one:
        log = laid_out.folder / host / "bird.log"
        comes(lambda log=log: "Graceful restart done" in log.read_text(), True)  # type: ignore[misc]
    # While the learnt ones were away, the static ones stood in for them; now they are learnt, and those go.
    comes(lambda: laid_out.learnt("gpu-1"), laid_out.wanted("gpu-1", one))
    assert static(laid_out, "gpu-1") == sorted(laid_out.wanted("gpu-1", one))
    laid_out.program("gpu-1", "numbers")
    assert static(laid_out, "gpu-1") == []
    sent, lost = packets.counted()
    assert (sent > 500, lost) == (True, 0)


def test_without_any_reflector_nodes_go_on_with_what_they_have_learnt(laid_out: Hosts) -> None:
    """For a day, where the time of a graceful restart alone would end after two minutes; here after two seconds."""
    for host in NODES:
        laid_out.configure(host, lambda text: text.replace("restart time 120", "restart time 2"))
    laid_out.start(*NODES)
    comes(lambda: laid_out.learnt("gpu-1"), laid_out.wanted("gpu-1"))
    packets = laid_out.packets("gpu-1", "gpu-2")
    for host in SYSTEM:
        laid_out.kill(host)
    # The routes become those of peers that are long gone, and stay.
    comes(lambda: "(100s)" in laid_out.run("gpu-1", "birdc", "show", "route"), True)
    assert laid_out.learnt("gpu-1") == laid_out.wanted("gpu-1")
    assert packets.counted()[1] == 0


def test_static_routes_go_when_they_are_learnt_and_no_packet_is_lost(laid_out: Hosts) -> None:
    """Both ways; the range of a node that does not speak BGP yet keeps its static route until it does."""
    for host in NODES:
        set_static(laid_out, host)
    packets = laid_out.packets("gpu-1", "gpu-2"), laid_out.packets("gpu-1", "system-2")
    laid_out.start("system-1", "gpu-1", "gpu-2")
    taken = laid_out.program("gpu-1", "wait", "--whole", may_fail=True)
    assert f"route del {GPU_2[1]} proto 177" in taken and static(laid_out, "gpu-1") == [NODES["system-2"][1]]
    assert f"static routes stay until their nodes announce them: {NODES['system-2'][1]}\n" in taken
    laid_out.start("system-2")
    assert f"route del {NODES['system-2'][1]}" in laid_out.program("gpu-1", "wait", "--whole")
    assert (static(laid_out, "gpu-1"), laid_out.program("gpu-1", "wait", "--whole")) == ([], "")
    for host in ("system-1", "system-2", "gpu-2"):
        laid_out.program(host, "wait", "--whole")
    # And back: static routes beside the learnt ones on all, then the daemons end.
    for host in NODES:
        set_static(laid_out, host)
    for host in NODES:
        laid_out.run(host, "birdc", "graceful", "restart")
        laid_out.daemons.pop(host).wait(30)
        assert laid_out.program(host, "end") == "3 learnt routes\n"
        assert (laid_out.learnt(host), len(static(laid_out, host)), laid_out.program(host, "end")) == ({}, 3, "")
    assert [one.counted()[1] for one in packets] == [0, 0]


def test_the_numbers_say_whether_there_is_a_session(hosts: Hosts, tmp_path: Path) -> None:
    hosts.configure("gpu-1", pod_network_textfile_dir=str(tmp_path))
    hosts.program("gpu-1", "numbers")
    written = dict(
        line.split() for line in (tmp_path / "muster_pod_network_bgp.prom").read_text().splitlines() if "#" not in line
    )
    named = {name.removeprefix("muster_pod_network_bgp_"): int(value) for name, value in written.items()}
    assert named.pop("session_timestamp_seconds") > 1.7e9
    assert named == {"peers": 2, "peers_established": 2, "sessions_established": 2, "routes": 3, "static_routes": 0}
    hosts.kill("gpu-1")
    hosts.program("gpu-1", "numbers")
    assert "sessions_established 0\n" in (tmp_path / "muster_pod_network_bgp.prom").read_text()
