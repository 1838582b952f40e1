"""The chains of role node_traffic on the real iptables: what they count of known transfers, through every change.

Network namespaces are a node with its bridge, two pods on it, and a world behind it that has an address of each class.
Only here: the kernel counts. Texts, rules and what differs: tests/unit/collection/test_node_traffic.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .kube_files import REPOSITORY

PROGRAM = REPOSITORY / "roles/node_traffic/files/node_traffic.py"
PEER = Path(__file__).with_name("traffic_peer.py")
CLASSES: dict[str, Any] = {
    "cluster": ["198.18.0.0/16", "fd00:18::/32"],
    "storage": ["198.19.2.0/24", "fd00:19::/32"],
    "internet": "rest",
}
# The world's addresses, by class and family.
WORLD = {
    "cluster": {"ipv4": "198.18.1.1", "ipv6": "fd00:18:1::1"},
    "storage": {"ipv4": "198.19.2.1", "ipv6": "fd00:19:2::1"},
    "internet": {"ipv4": "192.0.2.1", "ipv6": "2001:db8::1"},
}
# What is sent to and taken from each class, in bytes: each another sum, so that none stands for another. Large, so that
# headers, acknowledgements and a segment that a busy machine sends twice are little beside them.
UP_DOWN = {
    "cluster": {"ipv4": (50_000_000, 90_000_000), "ipv6": (60_000_000, 40_000_000)},
    "storage": {"ipv4": (70_000_000, 30_000_000), "ipv6": (35_000_000, 80_000_000)},
    "internet": {"ipv4": (45_000_000, 65_000_000), "ipv6": (85_000_000, 55_000_000)},
}
AGREEMENT = 0.01
# What neighbours ask each other meanwhile, in bytes: it is of the rest.
NOISE = 20_000
DATAGRAMS, DATAGRAM_BYTES, UDP_HEADERS = 40_000, 1_000, {"ipv4": 28, "ipv6": 48}
# Of another program, in the same table.
FOREIGN = """*mangle
:FOREIGN - [0:0]
-A PREROUTING -s 198.18.9.0/24 -j FOREIGN
-A FORWARD -s 198.18.9.0/24 -j FOREIGN
-A OUTPUT -p udp -m udp --dport 7780 -j FOREIGN
-A FOREIGN -j MARK --set-xmark 0x10/0xff
COMMIT
"""
Key = tuple[str, str, str, str]


def _cannot() -> str:
    if os.geteuid() != 0:
        return "it needs root: it makes network namespaces"
    missing = [name for name in ("ip", "iptables-restore", "ip6tables-restore") if shutil.which(name) is None]
    return f"{', '.join(missing)} is not installed; `make setup-lab` does it" if missing else ""


@dataclass(frozen=True)
class Bed:
    """The namespaces, by a prefix of their names, and the configuration of the node in a folder."""

    prefix: str
    folder: Path

    def command(self, where: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.prefix}-{where}", *words]

    def run(self, where: str, *words: str, stdin: str = "") -> str:
        done = subprocess.run(self.command(where, *words), input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def program(self, *options: str) -> list[str]:
        """What differed, by the program in the node."""
        return self.run("node", sys.executable, str(PROGRAM), str(self.folder / "config.json"), *options).splitlines()

    def apply(self, classes: Mapping[str, Any], *options: str) -> list[str]:
        """With these classes."""
        given = {"classes": classes, "limits_bits_per_s": {"internet": 10e9}, "pod_interface": "cni0",
                 "textfile": str(self.folder / "traffic.prom")}  # fmt: skip
        (self.folder / "config.json").write_text(json.dumps(given))
        return self.program(*options)

    def counted(self, what: str = "bytes") -> dict[Key, int]:
        """The counters as node_exporter reads them, by class, direction, path and family."""
        self.program()
        found: dict[Key, int] = {}
        for line in (self.folder / "traffic.prom").read_text().splitlines():
            if line.startswith(f"muster_node_traffic_{what}_total"):
                labels, value = line.rsplit(" ", 1)
                name, direction, path, family = labels.split('"')[1::2]
                found[name, direction, path, family] = int(value)
        return found

    def tables(self, *options: str) -> list[str]:
        """Both tables, without the times of the reading."""
        texts = [self.run("node", f"{tool}-save", "-t", "mangle", *options) for tool in ("iptables", "ip6tables")]
        return [line for text in texts for line in text.splitlines() if not line.startswith("#")]

    def transfer(self, where: str, transfers: list[tuple[str, int, int]]) -> None:
        """To each address so many bytes, and from it so many."""
        self.run(where, sys.executable, str(PEER), "transfer", json.dumps(transfers))


def _lay_out(bed: Bed) -> None:
    """Namespaces, links, addresses and routes."""
    node, world = f"{bed.prefix}-node", f"{bed.prefix}-world"
    for name in (node, world, f"{bed.prefix}-pod1", f"{bed.prefix}-pod2"):
        subprocess.run(["ip", "netns", "add", name], check=True)
    # With the usual 1,500 bytes a segment holds what happens to be ready, and its headers are up to 5 % of the bytes.
    wide = "mtu 65000"
    batch = [f"link add eth0 {wide} netns {node} type veth peer name eth0 {wide} netns {world}"]
    batch += [
        f"link add pod{n} {wide} netns {node} type veth peer name eth0 {wide} netns {bed.prefix}-pod{n}" for n in (1, 2)
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(batch), text=True, check=True)
    for where in ("node", "world", "pod1", "pod2"):
        bed.run(where, "ip", "link", "set", "lo", "up")
    for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        bed.run("node", "sh", "-c", f"echo 1 >/proc/sys/net/{switch}")
    bed.run("node", "ip", "-batch", "-", stdin="\n".join([
        f"link add cni0 {wide} type bridge", "link set cni0 up", "link set eth0 up",
        *(f"link set pod{n} master cni0 up" for n in (1, 2)),
        "address add 198.18.0.1/24 dev eth0", "address add fd00:18::1/64 dev eth0 nodad",
        "address add 198.18.128.1/24 dev cni0", "address add fd00:18:128::1/64 dev cni0 nodad",
        "route add default via 198.18.0.2", "route add ::/0 via fd00:18::2",
    ]))  # fmt: skip
    bed.run("world", "ip", "-batch", "-", stdin="\n".join([
        "link set eth0 up", "address add 198.18.0.2/24 dev eth0", "address add fd00:18::2/64 dev eth0 nodad",
        *(f"address add {one} dev lo{' nodad' * (':' in one)}" for both in WORLD.values() for one in both.values()),
        "route add default via 198.18.0.1", "route add ::/0 via fd00:18::1",
    ]))  # fmt: skip
    for n in (1, 2):
        bed.run(f"pod{n}", "ip", "-batch", "-", stdin="\n".join([
            "link set eth0 up", f"address add 198.18.128.{n + 1}/24 dev eth0",
            f"address add fd00:18:128::{n + 1}/64 dev eth0 nodad",
            "route add default via 198.18.128.1", "route add ::/0 via fd00:18:128::1",
        ]))  # fmt: skip


def _serve(bed: Bed, where: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        bed.command(where, sys.executable, str(PEER), "serve"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    if why := _cannot():
        pytest.skip(why)
    made = Bed(f"traffic-{os.getpid()}", tmp_path_factory.mktemp("traffic"))
    servers: list[subprocess.Popen[str]] = []
    try:
        _lay_out(made)
        servers += [_serve(made, where) for where in ("world", "pod2", "node")]
        yield made
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for where in ("node", "world", "pod1", "pod2"):
            subprocess.run(["ip", "netns", "delete", f"{made.prefix}-{where}"], check=False)


@pytest.fixture
def node(bed: Bed) -> Iterator[Bed]:
    """The node with its classes from zero; behind it nothing of ours is left."""
    bed.apply(CLASSES)
    yield bed
    bed.program("--remove")


def _grown(before: Mapping[Key, int], after: Mapping[Key, int]) -> dict[Key, int]:
    return {key: after[key] - before.get(key, 0) for key in after}


@pytest.mark.parametrize(("where", "path"), [("node", "own"), ("pod1", "pods")])
def test_each_transfer_is_counted_once_in_its_class_and_both_directions(node: Bed, where: str, path: str) -> None:
    before = node.counted()
    node.transfer(where, [(WORLD[name][family], *sizes)
                          for name, both in UP_DOWN.items() for family, sizes in both.items()])  # fmt: skip
    grown = _grown(before, node.counted())
    for (name, direction, counted_path, family), size in grown.items():
        wanted = UP_DOWN[name][family][direction == "in"] if counted_path == path else 0
        assert size == pytest.approx(wanted, rel=AGREEMENT, abs=0 if wanted else NOISE), (name, direction, family)


def test_what_does_not_leave_the_node_is_not_counted(node: Bed) -> None:
    before = node.counted()
    size = 2_000_000
    node.transfer("pod1", [("198.18.128.3", size, size), ("fd00:18:128::3", size, size), ("198.18.128.1", size, size)])
    node.transfer("node", [("127.0.0.1", size, size), ("::1", size, size), ("198.18.128.3", size, size)])
    assert max(_grown(before, node.counted()).values()) < NOISE


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_no_packet_is_lost_by_a_reload_in_the_middle_of_a_transfer(node: Bed, family: str) -> None:
    """To the datagram: other classes come and go, and ranges of this one, while they are sent."""
    before = node.counted(), node.counted("packets")
    wider = {
        **CLASSES,
        "storage": [*CLASSES["storage"], "198.17.0.0/16"],
        "backup": ["203.0.113.0/24", "2001:db8:9::/48"],
    }
    words = (sys.executable, str(PEER), "send", WORLD["storage"][family], str(DATAGRAMS), str(DATAGRAM_BYTES))
    sender = subprocess.Popen(node.command("node", *words))
    reloads = 0
    while sender.poll() is None:
        assert node.apply(CLASSES if reloads % 2 else wider)
        reloads += 1
    assert sender.returncode == 0
    assert reloads >= 5, "the datagrams were sent before the rules could change"
    node.apply(CLASSES)
    key = ("storage", "out", "own", family)
    assert _grown(before[1], node.counted("packets"))[key] == DATAGRAMS
    assert _grown(before[0], node.counted())[key] == DATAGRAMS * (DATAGRAM_BYTES + UDP_HEADERS[family])


def test_a_class_that_stays_keeps_its_count_and_a_second_run_changes_nothing(node: Bed) -> None:
    node.transfer("node", [(WORLD["storage"]["ipv4"], 1_000_000, 1_000_000)])
    before = node.counted()
    assert node.apply(CLASSES) == []
    # The rest has another name, a range goes from one class to another, and a class comes.
    others = {
        "cluster": ["198.18.0.0/16", "198.19.2.0/25"],
        "storage": ["fd00:19::/32"],
        "new": ["10.0.0.0/8"],
        "all": "rest",
    }
    assert "ipv4: chain MUSTER-OUT-internet goes" in node.apply(others)
    after = node.counted()
    kept = {key for key in before if key[0] in ("cluster", "storage")}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert before["storage", "out", "own", "ipv4"] > 1_000_000
    assert {value for key, value in after.items() if key[0] == "new"} == {0}
    assert node.apply(others) == []


def test_what_others_break_is_named_and_mended(node: Bed) -> None:
    node.run("node", "iptables", "-t", "mangle", "-F", "MUSTER-IN")
    node.run("node", "ip6tables", "-t", "mangle", "-I", "INPUT", "-j", "MUSTER-IN")
    node.run("node", "iptables", "-t", "mangle", "-D", "FORWARD", "-j", "MUSTER-POD")
    broken = node.tables()
    named = ["ipv4: chain MUSTER-IN", "ipv4: jump from FORWARD to MUSTER-POD", "ipv6: jump from INPUT to MUSTER-IN"]
    assert node.apply(CLASSES, "--check") == named
    assert node.tables() == broken
    assert node.apply(CLASSES) == named
    assert node.apply(CLASSES) == []
    assert sum("-j MUSTER-IN" in line for line in node.tables()) == 2


def test_removal_leaves_the_tables_byte_for_byte(bed: Bed) -> None:
    for tool in ("iptables-restore", "ip6tables-restore"):
        v6 = tool.startswith("ip6")
        bed.run("node", tool, stdin=FOREIGN.replace("198.18.9.0/24", "fd00:9::/64") if v6 else FOREIGN)
    bed.run("node", sys.executable, str(PEER), "send", "198.18.1.1", "3", "100")
    before = bed.tables("--counters")
    assert any(line.startswith("[3:384] -A OUTPUT -p udp") for line in before)
    assert bed.apply(CLASSES)
    with_ours = [line for line in bed.tables("--counters") if "MUSTER-" not in line]
    assert with_ours == before
    assert bed.program("--remove")
    assert bed.tables("--counters") == before
    assert bed.program("--remove") == []
