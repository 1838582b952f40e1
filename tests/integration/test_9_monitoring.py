"""The fleet under its own monitoring: every target is read, faults fire their alerts and clear, nobody else reads.

Only here: the exporters of the roles on their hosts, and alerts by faults of hosts.
"""

from __future__ import annotations

import json
import warnings
from functools import partial
from urllib.parse import quote

import pytest

from tests.lab.fleet import LAB_INVENTORY
from tests.lab.model import read_groups
from tests.support.series_budget import FLEET_SERIES, LARGE, NODE_SERIES, kept, too_many

from .alert_cases import groups
from .alert_courses import seconds
from .alert_faults import FAULTS, SICK, caused, stopped
from .fleet import Fleet, wait_until
from .prometheus import alerts_in, ask, query, told_of

# An alert with a longer `for` is seen pending here; test_alert_replay.py sees it fire.
LONGEST_FOR_S = 60
FOR_S: dict[str, float] = {
    rule["alert"]: seconds(rule.get("for", "0s")) for group in groups() for rule in group["rules"] if "alert" in rule
}


def _is_raised(fleet: Fleet, about: tuple[str, str]) -> bool:
    """Whether the alert fires; is pending, where its `for` is longer than the test."""
    return about in alerts_in(fleet, "firing" if FOR_S[about[0]] <= LONGEST_FOR_S else "pending|firing")


def _ready(fleet: Fleet) -> bool:
    return fleet.ssh("mon-1", "curl -sS -f -m 5 http://127.0.0.1:9090/-/ready").rc == 0


def test_every_target_is_read_and_none_is_missing(fleet: Fleet) -> None:
    groups = read_groups([LAB_INVENTORY])
    wanted = {("node", host) for host in fleet.addresses}
    wanted |= {("etcd", host) for host in groups["etcd"] | groups["etcd_events"]}
    wanted |= {(job, host) for job in ("apiserver", "admitter", "dns") for host in groups["kube_apiserver"]}
    wanted |= {(job, host) for job in ("prometheus", "alertmanager") for host in groups["monitoring"]}
    wanted |= {("balancer", "lb-1")} | {("gpu", host) for host in groups["gpu_nodes"]}

    def read() -> bool:
        return {(one["job"], one["instance"]) for one in query(fleet, "up == 1")} == wanted

    wait_until("each target answers Prometheus", read, timeout_s=90)
    assert {(one["job"], one["instance"]) for one in query(fleet, "up")} == wanted


def test_a_person_reads_it_by_the_host_s_name_in_the_inventory(fleet: Fleet) -> None:
    """With the address, the user and the key of the inventory, as site.yml has left them on the controller."""
    done = fleet.muster("status", "--control-plane", "--json", "--monitoring", "mon-1")
    assert done.rc == 0, done.err
    found = json.loads(done.out)["control_plane"]
    assert found["source"] == "mon-1" and found["problems"] == [], found


def test_each_target_shows_no_more_series_of_a_name_than_are_declared(fleet: Fleet) -> None:
    counts = quote('count by (job, instance, __name__) ({job!="", instance!="", __name__!~"ALERTS.*"})')
    shown: dict[tuple[str, str], dict[str, int]] = {}
    for one in ask(fleet, f"/api/v1/query?query={counts}")["result"]:
        labels = one["metric"]
        shown.setdefault((labels["job"], labels["instance"]), {})[labels["__name__"]] = int(one["value"][1])
    assert {host for job, host in shown if job == "node"} == set(fleet.addresses)

    told = {target: too_many(target[0], names) for target, names in shown.items()}

    assert {target: names for target, names in told.items() if names} == {}
    of_each = {target: kept(target[0], names) for target, names in shown.items()}
    nodes = {host for job, host in of_each if job == "gpu"}
    assert max(of_each["node", host] + of_each["gpu", host] for host in nodes) <= NODE_SERIES
    largest = {job: max(count for (one, _), count in of_each.items() if one == job) for job in LARGE}
    assert sum(count * LARGE[job] for job, count in largest.items()) <= FLEET_SERIES


def test_each_fault_raises_its_alert_which_ends_with_it(fleet: Fleet) -> None:
    wanted = {fault.about for fault in FAULTS}
    assert not wanted & alerts_in(fleet)
    with caused(fleet, FAULTS):
        for about in sorted(wanted):
            wait_until(f"{about[0]} of {about[1] or 'the fleet'}", partial(_is_raised, fleet, about), timeout_s=150)
        pending = sorted({name for name, _ in wanted - alerts_in(fleet, "firing")})
        if pending:
            warnings.warn(f"seen pending, not firing, in the lab: {', '.join(pending)}", stacklevel=1)
    wait_until("the alerts are over", lambda: not wanted & alerts_in(fleet), timeout_s=120)


def test_the_sick_node_is_an_alert_and_one_of_three_is_too_large_a_share(fleet: Fleet) -> None:
    sick = {(name, "gpu-3") for name in SICK}
    wait_until("the sick node is told", lambda: sick <= alerts_in(fleet, "firing"), timeout_s=60)
    wait_until("the share is told", lambda: _is_raised(fleet, ("MusterNodesOut", "")), timeout_s=60)


@pytest.mark.soak
def test_without_quorum_every_member_left_is_an_alert(fleet: Fleet) -> None:
    """The replay of alerts fires it by its numbers; here etcd shows them."""
    alert = ("MusterEtcdNoLeader", "etcd-3")
    with caused(fleet, [stopped(alert[0], host, "etcd.service") for host in ("etcd-1", "etcd-2")]):
        wait_until("no leader", partial(_is_raised, fleet, alert), timeout_s=90)
    wait_until("a leader again", lambda: alert not in alerts_in(fleet), timeout_s=120)


def test_a_dark_rack_is_one_page_that_a_silence_ends_and_a_killed_prometheus_keeps(fleet: Fleet) -> None:
    rack, hosts = ("MusterPlaceDown", ""), {("MusterHostDown", "gpu-2"), ("MusterHostDown", "gpu-3")}
    with caused(fleet, [stopped(alert, host, "muster-metrics.service") for alert, host in hosts]):
        wait_until("the rack and its hosts are told", lambda: {rack, *hosts} <= set(told_of(fleet)), timeout_s=240)
        first = told_of(fleet)
        assert first[rack]["status"]["state"] == "active"
        assert all(first[host]["status"]["inhibitedBy"] for host in hosts)

        amtool = "amtool --alertmanager.url=http://127.0.0.1:9093 silence"
        silence = fleet.must(
            "mon-1", f"{amtool} add --author=test --comment=test --duration=1h alertname=MusterPlaceDown"
        )
        wait_until("it is silent", lambda: told_of(fleet)[rack]["status"]["silencedBy"], timeout_s=60)
        fleet.must("mon-1", f"{amtool} expire {silence.strip()}")
        wait_until("it is told again", lambda: told_of(fleet)[rack]["status"]["state"] == "active", timeout_s=60)

        fleet.must("mon-1", "systemctl kill --signal=KILL prometheus.service")
        wait_until("Prometheus is back", lambda: _ready(fleet), timeout_s=90)
        wait_until("it fires again", lambda: rack in alerts_in(fleet, "firing"), timeout_s=120)
        assert told_of(fleet)[rack]["startsAt"] == first[rack]["startsAt"]
    wait_until("all is over", lambda: not {rack, *hosts} & alerts_in(fleet), timeout_s=120)


@pytest.mark.parametrize(("host", "other"), [("gpu-1", "gpu-2"), ("etcd-1", "api-1")])
def test_a_host_does_not_read_another_ones_numbers(fleet: Fleet, host: str, other: str) -> None:
    tls = "--cacert {0}/ca.crt --cert {0}/server.crt --key {0}/server.crt.key".format("/etc/muster-metrics")
    ask = f"curl -sS -m 10 -o /dev/null -w '%{{http_code}}' {tls} https://{fleet.addresses[other]}:9443/node"
    assert fleet.must(host, ask) == "403"
