"""A node's own name server: real CoreDNS with the role's Corefile, its rules in the kernel, pods in namespaces.

Only here: how many questions leave the node, one pod's flood beside another pod, and names while the server is dead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .dns_hosts import ADDRESS, CLUSTER, DOMAIN, PODS, SITE, Hosts, dns_hosts, missing
from .kube import until
from .kube_files import REPOSITORY

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
NAMES = [f"svc-{number}.default.svc.{DOMAIN}" for number in range(10)]
LOOKUPS = 1000
CIRCLE_S = 20.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with dns_hosts(tmp_path) as found:
        yield found


def questions(hosts: Hosts, name: str, at_least: int) -> int:
    """How many questions for the cluster's Services a stand-in has had, once it has written that many."""

    def count() -> int:
        return sum(times for one, times in hosts.counts(name).items() if one.startswith("svc-"))

    until(f"{name} to have written {at_least} questions", lambda: count() >= at_least, 20)
    return count()


def test_questions_that_leave_the_node_before_and_after(hosts: Hosts) -> None:
    """1,000 lookups of 10 names, whose answers hold for 5 s."""
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    assert hosts.talk("pod-0", "lookups", CLUSTER, str(LOOKUPS), "20000", *NAMES) == LOOKUPS
    before = questions(hosts, "cluster", LOOKUPS)
    hosts.rules()
    hosts.start()
    assert hosts.talk("pod-0", "lookups", ADDRESS, str(LOOKUPS), "30000", *NAMES) == LOOKUPS
    after = questions(hosts, "cluster", before + len(NAMES)) - before
    print(f"{LOOKUPS} lookups of {len(NAMES)} names: {before} questions to the cluster's server before, {after} after")
    assert before == LOOKUPS
    # Each name once, and again for each 5 s that the lookups took.
    assert after <= LOOKUPS / 10
    assert not [name for name in hosts.counts("site") if name.startswith("svc-")]


def test_names_of_the_cluster_and_all_others_go_to_those_who_know_them(hosts: Hosts) -> None:
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    pod, service = "2.61.19.198.in-addr.arpa", "1.128.19.198.in-addr.arpa"
    hosts.talk("pod-0", "ask", ADDRESS, NAMES[0], pod, service, "pypi.org", "1.2.0.192.in-addr.arpa")
    until("the cluster's to have written", lambda: {NAMES[0], pod, service} <= hosts.counts("cluster").keys(), 20)
    until("the site's", lambda: {"pypi.org", "1.2.0.192.in-addr.arpa"} <= hosts.counts("site").keys(), 20)
    assert not hosts.counts("cluster").keys() & {"pypi.org", "1.2.0.192.in-addr.arpa"}
    assert not hosts.counts("site").keys() & {NAMES[0], pod, service}


def test_a_name_that_comes_is_there_as_soon_as_the_cluster_says(hosts: Hosts, tmp_path: Path) -> None:
    """A denial that the cluster's server keeps for 1 s is not kept for CoreDNS' own least time of 5 s."""
    there = tmp_path / "there"
    hosts.serve("cluster", CLUSTER, "--ttl=1", f"--until={there}")
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    late = f"late.default.svc.{DOMAIN}"
    assert hosts.talk("pod-0", "ask", ADDRESS, late, late) == ["NXDOMAIN", "NXDOMAIN"]
    there.touch()

    def comes() -> bool:
        return str(hosts.talk("pod-0", "ask", ADDRESS, late)[0]).startswith("NOERROR")

    until("the name to be there", comes, 4)


@pytest.mark.soak
def test_a_pod_that_floods_does_not_starve_another(hosts: Hosts) -> None:
    """10,000 different names a second; the site's resolver takes 1,000 a second of a host, as a cloud's does."""
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE, "--max-qps=1000")
    hosts.rules()
    hosts.start()
    seen = {}
    for max_qps in (100_000, 200):
        hosts.rules(max_qps=max_qps)
        flood = subprocess.Popen(
            hosts.inside(
                "pod-0",
                sys.executable,
                "-m",
                "tests.integration.dns_client",
                "flood",
                ADDRESS,
                "10000",
                "12",
                f"f{max_qps}-",
            ),
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        prefix = f"f{max_qps}-"
        until("the flood", lambda: any(name.startswith(prefix) for name in hosts.counts("site")), 20)  # noqa: B023
        other = hosts.talk("pod-1", "steady", ADDRESS, "20", f"s{max_qps}-")
        seen[max_qps] = {"other": other, "flood": json.loads(flood.communicate(timeout=60)[0])}
    print(json.dumps(seen))
    unlimited, limited = seen[100_000], seen[200]
    assert limited["other"]["answered"] == 20
    # The same flood without a limit takes names from the other pod: so there was something to keep it from.
    assert unlimited["other"]["answered"] < 20
    # Of 12 s of it so many a second and a burst were let through.
    assert 200 < limited["flood"]["answered"] <= 200 * 13 + 400
    assert limited["flood"]["sent"] > 5 * limited["flood"]["answered"]


def test_the_limit_is_for_both_ways_together(hosts: Hosts) -> None:
    """A resolver that gets no answer asks the next server: that one has a place under the same limit."""
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    hosts.rules(max_qps=100)
    hosts.start()
    flood = hosts.talk("pod-0", "flood", CLUSTER, "5000", "2", "f")
    assert 0 < flood["answered"] <= 100 * 3 + 200
    assert hosts.talk("pod-1", "ask", CLUSTER, "b.org")[0].startswith("NOERROR")
    # Where the page says that one looks.
    listing = hosts.run("node", "iptables", "--table", "mangle", "--list", "NODE-DNS-LIMIT", "--numeric", "--verbose")
    dropped = [line.split() for line in listing.splitlines() if f" {CLUSTER} " in line and " udp " in line]
    assert dropped and dropped[0][0] != "0" and dropped[0][2] == "DROP"
    assert f" {PODS[0]}:0->" in hosts.run("node", "cat", "/proc/net/ipt_hashlimit/node-dns-100")


def test_names_while_it_is_dead(hosts: Hosts) -> None:
    """By the rule at once, whoever asks and however often; no rule, and glibc's next server answers, after a wait."""
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    assert hosts.talk("pod-0", "lookups", ADDRESS, "50", "20000", *NAMES) == 50
    hosts.kill()
    began = questions(hosts, "cluster", 1)
    assert hosts.talk("pod-0", "lookups", ADDRESS, "50", "21000", *NAMES) == 50
    assert questions(hosts, "cluster", began + 50) == began + 50
    # The kernel keeps for half a minute which way a port's questions went: one that asks again from it is refused.
    assert hosts.talk("pod-0", "lookups", ADDRESS, "5", "20000", *NAMES) == 0
    # The address is still there: a process of the host is refused at once, and need not wait to ask the next.
    assert hosts.talk("node", "ask", ADDRESS, NAMES[0]) == ["refused"]
    hosts.start()
    assert hosts.talk("node", "ask", ADDRESS, NAMES[0])[0].startswith("NOERROR")


def resolved(hosts: Hosts, tmp_path: Path, name: str) -> dict[str, Any]:
    """What glibc finds in a pod whose resolv.conf is kubelet's: the node's server first, the cluster's after it."""
    folder = tmp_path / "etc"
    folder.mkdir(exist_ok=True)
    for file, text in (
        ("resolv.conf", f"nameserver {ADDRESS}\nnameserver {CLUSTER}\noptions ndots:1\n"),
        ("nsswitch.conf", "hosts: dns\n"),
    ):
        (folder / file).write_text(text)
    mounts = " && ".join(f"mount --bind {folder}/{file} /etc/{file}" for file in ("resolv.conf", "nsswitch.conf"))
    command = f"{mounts} && exec {sys.executable} -m tests.integration.dns_client glibc {name}"
    found: dict[str, Any] = json.loads(hosts.run("pod-0", "unshare", "--mount", "sh", "-c", command))
    return found


@pytest.mark.soak
def test_what_glibc_waits_for_while_it_is_dead(hosts: Hosts, tmp_path: Path) -> None:
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    alive = resolved(hosts, tmp_path, "a.org")
    hosts.kill()
    by_rule = resolved(hosts, tmp_path, "b.org")
    # Somebody has removed the rules: the next server in resolv.conf is all that is left.
    hosts.run("node", "iptables", "--table", "nat", "--flush", "NODE-DNS-FALLBACK")
    by_file = [resolved(hosts, tmp_path, f"c{number}.org") for number in range(8)]
    # Nor is the address there any more: nobody refuses, and each name waits for glibc's timeout.
    hosts.rules("remove")
    gone = resolved(hosts, tmp_path, "d.org")
    print(f"alive {alive}, by rule {by_rule}, by resolv.conf {by_file}, without the address {gone}")
    assert alive["address"] == SITE and by_rule["address"] == CLUSTER
    assert {one["address"] for one in (*by_file, gone)} == {CLUSTER}
    # glibc waits 5 s for a server that does not refuse.
    assert by_rule["seconds"] < 1 and gone["seconds"] >= 4.5


def test_what_ended_is_given_while_no_server_answers(hosts: Hosts) -> None:
    hosts.serve("cluster", CLUSTER, "--ttl=1")
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    assert hosts.talk("pod-0", "ask", ADDRESS, NAMES[0]) == [f"NOERROR {CLUSTER}"]
    hosts.parts["cluster"].kill()

    def asked_again() -> bool:
        """The answer has ended, so that another name of that server gets none."""
        return bool(hosts.talk("pod-0", "ask", ADDRESS, NAMES[1])[0] != f"NOERROR {CLUSTER}")

    until("the server to be missed", asked_again, 10)
    answers = {hosts.talk("pod-0", "ask", ADDRESS, NAMES[0])[0] for _ in range(3)}
    assert f"NOERROR {CLUSTER}" in answers

    def counted() -> bool:
        """What MusterNodeDnsUpstreams reads, as long as pods ask on."""
        hosts.talk("pod-0", "ask", ADDRESS, NAMES[2])
        return hosts.metric("coredns_forward_healthcheck_broken_total") > 0

    until("the alert's counter", counted, 20)


def test_a_circle_ends_it_with_the_word_for_it(hosts: Hosts) -> None:
    """A resolver of the host whose own servers nobody can read sends all back: CoreDNS sees it, and does not stay."""
    hosts.serve("cluster", CLUSTER)
    hosts.rules()
    hosts.start(servers=(ADDRESS,), wait=False)
    part = hosts.parts["node"]
    until("CoreDNS to end", lambda: part.running is not None and part.running.poll() is not None, CIRCLE_S)
    assert "Loop (" in part.log.read_text()


def test_a_neighbour_gets_no_answer(hosts: Hosts) -> None:
    hosts.serve("cluster", CLUSTER)
    hosts.serve("site", SITE)
    hosts.rules()
    hosts.start()
    hosts.run("beyond", "ip", "route", "add", f"{ADDRESS}/32", "via", "198.18.90.61")
    assert hosts.talk("beyond", "ask", ADDRESS, "a.org") == ["none"]
    assert hosts.talk("pod-0", "ask", ADDRESS, "a.org") == [f"NOERROR {SITE}"]


def test_rules_come_back_and_go(hosts: Hosts) -> None:
    assert len(hosts.rules()) == 5
    assert hosts.rules() == []
    hosts.run("node", "iptables", "--table", "mangle", "--flush", "NODE-DNS-LIMIT")
    hosts.run("node", "ip", "address", "delete", f"{ADDRESS}/32", "dev", "lo")
    assert hosts.rules() == [f"address {ADDRESS} on lo", "chain NODE-DNS-LIMIT of table mangle"]
    assert hosts.rules(max_qps=3000) == ["chain NODE-DNS-LIMIT of table mangle"]
    assert hosts.rules(max_qps=3000) == []
    # One that has died leaves its address; one that was stopped does not.
    assert hosts.rules("stop") == []
    os.environ["SERVICE_RESULT"] = "success"
    try:
        assert hosts.rules("stop") == [f"address {ADDRESS} off lo"]
    finally:
        del os.environ["SERVICE_RESULT"]
    hosts.rules()
    assert hosts.rules("remove") == [f"address {ADDRESS} off lo", "chain NODE-DNS-LIMIT of table mangle removed"]
    assert hosts.rules("remove") == []
    # Pods that run still name the address: the way round stays with them until the next boot.
    hosts.serve("cluster", CLUSTER)
    assert hosts.talk("pod-0", "ask", ADDRESS, "a.org") == [f"NOERROR {CLUSTER}"]
