"""The collection's filters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.addresses import addresses
from ansible_collections.muster.fleet.plugins.filter.calendar import calendar
from ansible_collections.muster.fleet.plugins.filter.kubeconfig import kubeconfig
from ansible_collections.muster.fleet.plugins.filter.maintenance_near import maintenance_near
from ansible_collections.muster.fleet.plugins.filter.reports_to_fetch import reports_to_fetch
from ansible_collections.muster.fleet.plugins.filter.scaler_rules import scaler_rules
from ansible_collections.muster.fleet.plugins.filter.sha256sums import sha256sums
from ansible_collections.muster.fleet.plugins.filter.wave_wait import wave_wait

SUM = "a1" * 32
HOSTVARS = {
    "b": {"ansible_host": "198.18.7.12"},
    "a": {"ansible_host": "jump", "fleet_address": "198.18.7.11"},
    "bare": {},
}


def test_addresses_keep_the_order_of_the_group() -> None:
    assert list(addresses(["b", "a"], HOSTVARS).items()) == [("b", "198.18.7.12"), ("a", "198.18.7.11")]


@pytest.mark.parametrize(("host", "message"), [("bare", "set ansible_host"), ("c", "not in the inventory")])
def test_addresses_refuses(host: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        addresses([host], HOSTVARS)


def test_sha256sums() -> None:
    text = f"# binaries\n{SUM}  etcd\n\n{SUM.upper()} *bin/with space \n"
    assert sha256sums(text) == {"etcd": SUM, "with space": SUM}


@pytest.mark.parametrize(
    ("text", "message"), [("abc  etcd", "line 1"), (f"{SUM}  a\n{'b2' * 32}  x/a", "line 2.*second sum")]
)
def test_sha256sums_refuses(text: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        sha256sums(text)


def test_kubeconfig() -> None:
    text = kubeconfig("https://198.18.7.41:6443", "lab: one", "admin", "/pki")
    read = yaml.safe_load(text)
    assert text.startswith("---\n")
    assert read["clusters"] == [
        {"name": "lab: one", "cluster": {"server": "https://198.18.7.41:6443", "certificate-authority": "/pki/ca.crt"}}
    ]
    assert read["users"] == [
        {"name": "admin", "user": {"client-certificate": "/pki/admin.crt", "client-key": "/pki/admin.key"}}
    ]
    assert read["contexts"] == [{"name": "lab: one", "context": {"cluster": "lab: one", "user": "admin"}}]
    assert read["current-context"] == "lab: one"


def test_a_kubeconfig_may_name_its_certificate_otherwise_than_its_user() -> None:
    user = yaml.safe_load(kubeconfig("https://api", "lab", "scheduler", "/pki", name="client"))["users"][0]
    assert user == {
        "name": "scheduler",
        "user": {"client-certificate": "/pki/client.crt", "client-key": "/pki/client.key"},
    }


def test_kubeconfig_refuses_a_server_without_tls() -> None:
    with pytest.raises(AnsibleFilterError, match="must begin with https://"):
        kubeconfig("http://198.18.7.41:6443", "lab", "admin", "/pki")


@pytest.mark.parametrize(
    ("hosts", "forks", "wave_nodes", "extended_s", "expected_s"),
    [
        (1, 20, 1, 0, 1800),
        (100, 20, 1, 0, 600 + 5 * 30 + 100 * 150),
        (101, 20, 10, 0, 600 + 6 * 30 + 11 * 150),
        # As docs/operations/power-waves.md says: up to two days.
        (1000, 20, 1, 0, 152_100),
        (4, 20, 2, 7200, 7800 + 30 + 2 * 1950),
        # More may swing than Ansible works on.
        (1000, 20, 200, 7200, 7800 + 50 * 30 + 50 * 1950),
    ],
)
def test_a_node_waits_for_its_waves_until_all_others_had_theirs(
    hosts: int, forks: int, wave_nodes: int, extended_s: int, expected_s: int
) -> None:
    found = wave_wait(1800, hosts=hosts, forks=forks, wave_nodes=wave_nodes, extended_s=extended_s)
    assert found == expected_s
    assert wave_wait(10**6, hosts=hosts, forks=forks, wave_nodes=wave_nodes, extended_s=extended_s) == 10**6
    # At a feed of its own limit, which takes numbers as Ansible gives them.
    at: dict[str, Any] = {"feed_limits": {"7": str(wave_nodes)}, "feed": 7}
    assert wave_wait(1800, hosts=hosts, forks=forks, wave_nodes=1000, extended_s=extended_s, **at) == expected_s
    # Those that wait at a feed with fewer turns keep the forks.
    beside: dict[str, Any] = {"feed_limits": {"a": wave_nodes, "b": 1000}, "feed": "b"}
    assert wave_wait(1800, hosts=hosts, forks=forks, wave_nodes=1000, extended_s=extended_s, **beside) == expected_s


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"wave_nodes": 0}, "gpu_burnin_wave_max_nodes is 0; give how many nodes"),
        ({"feed_limits": {"a": 0}}, "fleet_feed_limits has 0 for the feed a; give how many nodes"),
        ({"feed_limits": {"a": True}, "feed": "b"}, "fleet_feed_limits has True for the feed a; give how many nodes"),
    ],
)
def test_turns_that_nobody_would_ever_have_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=re.escape(says)):
        wave_wait(1800, **{"hosts": 1, "forks": 1, "wave_nodes": 1, **wrong})


# --- the calendar of maintenance ---

GROUPS = {
    "all": ["gpu-1", "gpu-2", "gpu-3", "etcd-1"],
    "rack7": ["gpu-1", "gpu-2"],
    "gpu_nodes": ["gpu-1", "gpu-2", "gpu-3"],
}


def planned(nodes: Any, hours: float = 0.5, **more: Any) -> dict[str, Any]:
    """A window that begins in so many hours and lasts two."""
    begin = datetime.now(UTC) + timedelta(hours=hours)
    return {
        "nodes": nodes,
        "not_before": begin.isoformat(),
        "not_after": (begin + timedelta(hours=2)).isoformat(),
        **more,
    }


def test_the_calendar_names_hosts_in_the_place_of_groups() -> None:
    times = {"not_before": "2026-12-01T23:00:00+01:00", "not_after": "2026-12-02T02:00:00Z"}
    given = [{"nodes": ["rack7", "gpu-3"], **times, "kind": "power"}, {"nodes": "all", **times, "message": "m"}]
    utc = {"not_before": "2026-12-01T22:00:00.000Z", "not_after": "2026-12-02T02:00:00.000Z"}
    assert calendar(given, GROUPS) == [
        {"nodes": ["gpu-1", "gpu-2", "gpu-3"], **utc, "kind": "power", "message": ""},
        {"nodes": "all", **utc, "kind": "maintenance", "message": "m"},
    ]
    assert calendar(calendar(given, GROUPS), GROUPS) == calendar(given, GROUPS)


def groups_of(host: str) -> list[str]:
    return [name for name, hosts in GROUPS.items() if host in hosts and name != "all"]


class Unread(list[str]):
    """A group whose hosts nobody may look at."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("each host asks: a look at a group's hosts makes a run cost the square of the fleet")

    def __contains__(self, item: object) -> bool:
        raise AssertionError("each host asks: a look at a group's hosts makes a run cost the square of the fleet")


def test_what_each_host_asks_of_the_calendar_looks_at_no_groups_hosts() -> None:
    groups = {name: Unread(hosts) for name, hosts in GROUPS.items()}
    hosts = dict.fromkeys(GROUPS["all"])
    for nodes in (["gpu_nodes", "rack7"], ["gpu-3"], "all"):
        windows = [planned(["rack7", "etcd-1"]), planned(nodes)]
        assert maintenance_near(windows, "gpu-3", groups_of("gpu-3"), groups, hosts)


@pytest.mark.parametrize(
    ("nodes", "hours", "before_s", "near"),
    [
        (["rack7"], 0.5, 3600, True),
        (["gpu-1"], -1, 3600, True),  # it is open
        ("all", 0.5, 3600, True),
        (["gpu_nodes"], 0.5, "3600", True),
        (["rack7"], 0.5, 60, False),
        (["rack7"], 1.5, 3600, False),
        (["rack7"], -3, 3600, False),  # it is over
        (["gpu-3", "etcd-1"], 0.5, 3600, False),
    ],
)
def test_nothing_begins_near_or_in_a_window(nodes: Any, hours: float, before_s: Any, near: bool) -> None:
    windows = [planned(["etcd-1"]), planned(nodes, hours, kind="power")]
    found = maintenance_near(windows, "gpu-1", groups_of("gpu-1"), GROUPS, GROUPS["all"], before_s)
    assert found.startswith("calendar: maintenance (power) is ") if near else found == ""


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (planned(["rack8"]), r"fleet_maintenance\[0\]: rack8 is neither a host nor a group of the inventory; correct"),
        (planned(["gpu-1"], not_after="later"), r"fleet_maintenance\[0\]: not_after is 'later'; it must be a time"),
    ],
)
def test_a_wrong_calendar_is_refused_by_name(window: dict[str, Any], message: str) -> None:
    for ask in (
        lambda: calendar([window], GROUPS),
        lambda: maintenance_near([window], "gpu-3", groups_of("gpu-3"), GROUPS, GROUPS["all"]),
    ):
        with pytest.raises(AnsibleFilterError, match=message):
            ask()


def test_only_reports_that_the_controller_lacks_are_fetched(tmp_path: Path) -> None:
    result = {"report": "/var/run-7/report.json", "page": "/var/run-7/report.html"}
    result |= {f"{key}_sha256": hashlib.sha256(key.encode()).hexdigest() for key in ("report", "page")}
    assert reports_to_fetch({}, str(tmp_path)) == []
    assert reports_to_fetch(result, str(tmp_path / "none")) == [result["report"], result["page"]]
    (tmp_path / "report.json").write_text("report")
    (tmp_path / "report.html").write_text("of the run before")
    assert reports_to_fetch(result, str(tmp_path)) == [result["page"]]
    (tmp_path / "report.html").write_text("page")
    assert reports_to_fetch(result, str(tmp_path)) == []
    # A module that could not read it says no digest.
    assert reports_to_fetch({"report": result["report"]}, str(tmp_path)) == [result["report"]]


@pytest.mark.parametrize(
    ("hosts", "rules", "within_s"),
    [
        ([{"name": "gpu-1"}, {"name": "gpu-2", "level": "standard"}], {}, None),
        ([{"name": "gpu-1"}], {"ready_within_s": 1800}, 1800),
        ([{"name": "gpu-1"}, {"name": "gpu-2", "new": "2h"}], {}, 3600 + 8100),
        ([{"name": "gpu-1", "level": "extended"}, {"name": "gpu-2", "new": "30m"}], {}, 3600 + 8100),
        ([{"name": "gpu-1", "new": "1d"}], {"ready_within_s": "1800"}, 1800 + 86400 + 900),
    ],
)
def test_a_new_machine_has_the_time_of_its_extended_burn_in(
    hosts: list[dict[str, str]], rules: dict[str, Any], within_s: float | None
) -> None:
    found = scaler_rules({**rules, "settle_s": 5}, hosts)
    assert (found.get("ready_within_s"), found["settle_s"]) == (within_s, 5)


@pytest.mark.parametrize(
    ("rules", "new", "message"),
    [
        ({}, "2hours", "gpu_burnin_extended_for_new: '2hours' is not a duration"),
        ({"ready_within_s": "long"}, "2h", "scaler_rules.ready_within_s is 'long'; give seconds"),
    ],
)
def test_scaler_rules_refuses(rules: dict[str, Any], new: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        scaler_rules(rules, [{"new": new}])
