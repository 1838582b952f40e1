"""`muster fabric run` on the lab's hosts, of which links are slow, closed or too small, or hosts are of another kind.

Only here: the kernels of hosts shape and drop real packets, and a leaf is what its hosts have in common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpu_burnin.fabric.model import Found

from .fabric_site import FIRST_PORT, HOSTS, LAST_PORT, Report, Site, name_of, on, program
from .fleet import Fleet

pytestmark = pytest.mark.soak
# Links are what limits rates, as where there are real ones: on the lab's bridge it is the turns at two cores.
USUAL, SLOW = "40mbit", "8mbit"
_USUAL_BYTES_PER_S = 5e6
SICK = "mon-1"
OTHER_VERSION = "/usr/local/bin/gpu-burnin-other"
DROPPED = {
    Found.UNREACHABLE: "",
    # As where a switch takes less than the hosts, and says nothing of it.
    Found.MTU: "-m length --length 1201:65535",
}


@contextlib.contextmanager
def rates(fleet: Fleet, names: Sequence[str], slow: Sequence[str]) -> Iterator[None]:
    """The links of hosts at a usual rate, of some at another one."""
    with contextlib.ExitStack() as stack:
        for name in names:
            shape = f"rate {SLOW if name in slow else USUAL} burst 64k latency 200ms"
            begin = f"tc qdisc add dev eth0 root tbf {shape}"
            stack.enter_context(on(fleet, name, begin, "tc qdisc del dev eth0 root"))
        yield


@contextlib.contextmanager
def wall(fleet: Fleet, leaf: Sequence[str], other: Sequence[str], matches: str) -> Iterator[None]:
    """What the hosts of two leaves drop of each other's packets of tests; everything else passes."""
    with contextlib.ExitStack() as stack:
        for here, there in ((leaf, other), (other, leaf)):
            sources = ",".join(fleet.addresses[name] for name in there)
            rule = f"INPUT -p tcp -s {sources} -m multiport --ports {FIRST_PORT}:{LAST_PORT} {matches} -j DROP"
            for name in here:
                stack.enter_context(on(fleet, name, f"iptables -w -I {rule}", f"iptables -w -D {rule}"))
        yield


def shaped(fleet: Fleet, folder: Path, slow: Sequence[str]) -> tuple[Site, Report]:
    """A run of eight hosts in sixteen pairs, of which a quarter has the slow host: the others are what is usual."""
    site = Site(fleet, folder, {"leaf-1": HOSTS})
    with rates(fleet, site.names, slow):
        done = site.finish("--without-cluster", "--through", "nodes", "--pairings", "4", "--seconds", "4")
    assert done.report, done.err
    [usual] = done.report["usual"].values()
    # Otherwise what is named, or not, says nothing of links.
    assert usual > 0.5 * _USUAL_BYTES_PER_S, f"hosts had no processors to fill their links: {usual:.0f} B/s"
    return site, done


def test_links_of_one_rate_name_nobody(fleet: Fleet, tmp_path: Path) -> None:
    _, done = shaped(fleet, tmp_path, ())
    assert (done.rc, done.claims) == (0, []), done.report


def test_a_slow_link_is_named_by_its_rate(fleet: Fleet, tmp_path: Path) -> None:
    """Each byte of it is right."""
    site, done = shaped(fleet, tmp_path, [SICK])
    assert done.rc == 1, done.err
    assert done.claims == [(f"node {SICK}", True, [SICK])], done.report
    [claim] = done.report["claims"]
    assert claim["found"] == Found.SLOW and "cable" in {cause["part"] for cause in claim["causes"]}
    site.nothing_is_left()


@pytest.mark.parametrize("found", list(DROPPED))
def test_a_firewall_or_a_smaller_mtu_between_two_leaves_is_named_and_no_node(
    fleet: Fleet, tmp_path: Path, found: Found
) -> None:
    """Three leaves: both that do not meet are well with the third one."""
    leaves = {f"leaf-{at + 1}": HOSTS[2 * at : 2 * at + 2] for at in range(3)}
    site = Site(fleet, tmp_path, leaves)
    with wall(fleet, leaves["leaf-1"], leaves["leaf-2"], DROPPED[found]):
        done = site.finish("--without-cluster", "--seconds", "4")
    assert done.rc == 1, done.err
    [claim] = done.report["claims"]
    assert (claim["found"], claim["sure"]) == (found, True), claim
    causes = [name_of(cause) for cause in claim["causes"]]
    assert causes == ["firewall or route between leaf-1 and leaf-2", "path leaf-1 and leaf-2"], claim
    site.nothing_is_left()


def test_another_version_on_a_host_is_inconclusive_and_blames_nobody(fleet: Fleet, tmp_path: Path) -> None:
    site = Site(fleet, tmp_path, {"leaf-1": HOSTS[4:]})
    program(fleet, SICK, OTHER_VERSION, 'import gpu_burnin\ngpu_burnin.__version__ = "0.0.1"')
    site.variables[SICK] = {"fabric_program": OTHER_VERSION}
    done = site.finish("--without-cluster", "--through", "nodes", "--seconds", "1")
    assert (done.rc, done.claims) == (3, []), done.err
    assert list(done.report["untested"]) == [SICK] and "0.0.1 on mon-1" in done.report["untested"][SICK], done.report


def test_an_address_that_two_hosts_have_is_refused_before_a_test(fleet: Fleet, tmp_path: Path) -> None:
    site = Site(fleet, tmp_path, {"leaf-1": HOSTS[4:]})
    for name in ("lb-1", SICK):
        site.variables[name] = {"fleet_fabric_nics": [{"rail": 0, "address": fleet.addresses[SICK]}]}
    done = site.finish("--without-cluster")
    assert done.rc == 2 and f"lb-1, {SICK}: the address {fleet.addresses[SICK]} stands 2 times" in done.err, done.err


def test_an_address_that_another_host_has_is_told_by_the_host_that_lacks_it(fleet: Fleet, tmp_path: Path) -> None:
    """A mistake of the inventory is no fault of a node: its tests are inconclusive, with the sentence."""
    site = Site(fleet, tmp_path, {"leaf-1": HOSTS[4:]})
    site.variables[SICK] = {"fleet_fabric_nics": [{"rail": 0, "address": fleet.addresses["etcd-1"]}]}
    done = site.finish("--without-cluster", "--through", "nodes", "--seconds", "1")
    assert (done.rc, done.claims) == (3, []), done.err
    assert list(done.report["untested"]) == [SICK], done.report
    assert "fleet_fabric_nics" in done.report["untested"][SICK], done.report
