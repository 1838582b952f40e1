"""What is read of a Workload: its nodes in Kueue's compact form, and whether there is anything to judge."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.jobs.workload import Check, Owner, read
from gpu_burnin.api.jobs import domains_of
from tests.support.job_helpers import SLICES, condition, topology, workload


def test_nodes_are_the_values_of_the_lowest_level_of_every_slice() -> None:
    whole = {"levels": ["kubernetes.io/hostname"], "slices": SLICES}
    assert list(domains_of(whole)) == [("gpu-1", 1), ("gpu-2", 1), ("gpu-9", 1)]
    values = {"individual": {"prefix": "a-", "suffix": ".example.org", "roots": ["1", "2"]}}
    deep = {
        "levels": ["rack", "kubernetes.io/hostname"],
        "slices": [
            {"domainCount": 2, "valuesPerLevel": [{"universal": "r1"}, values], "podCounts": {"individual": [3, 1]}}
        ],
    }
    assert list(domains_of(deep)) == [("a-1.example.org", 3), ("a-2.example.org", 1)]


def test_a_workload_with_a_reservation() -> None:
    item = workload("gpu-2", "gpu-1")
    item["spec"]["maximumExecutionTimeSeconds"] = 600
    item["status"]["admissionChecks"][1] |= {"retryCount": 2, "message": "waits"}
    found = read(item)
    assert found is not None
    assert (found.key, found.queue, found.nodes, found.gpus) == ("vision/job-a", "vision", ("gpu-1", "gpu-2"), True)
    assert found.reserved_at == datetime(2026, 11, 21, 11, 59, tzinfo=UTC)
    assert (found.owner, found.most_s, found.admitted) == (Owner("batch/v1", "Job", "a"), 600.0, False)
    wanted = Check(1, "verified", "Pending", "waits", "2026-11-21T11:59:00Z", 2)
    assert found.check(frozenset({"verified"})) == wanted
    assert found.check(frozenset()) is None


def test_a_node_of_several_parts_of_a_job_is_looked_at_once() -> None:
    item = workload("gpu-1", "gpu-2")
    item["status"]["admission"]["podSetAssignments"].append({"name": "b", "topologyAssignment": topology("gpu-2")})
    found = read(item)
    assert found is not None and found.nodes == ("gpu-1", "gpu-2")


@pytest.mark.parametrize(
    "change",
    [
        {"status": {}},
        {"spec": {"active": False}},
        {"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z"}},
        {"conditions": [condition("Evicted")]},
        {"conditions": [condition("Finished")]},
        {"conditions": [condition("QuotaReserved", "False")]},
    ],
)
def test_nothing_is_judged_without_a_reservation_that_stands(change: dict[str, Any]) -> None:
    item = workload("gpu-1")
    assert read(item) is not None
    conditions = change.pop("conditions", [])
    for part, values in change.items():
        item[part] = {**item[part], **values} if values else {}
    if conditions:
        item["status"]["conditions"] += conditions
    assert read(item) is None


@pytest.mark.parametrize(
    ("assignment", "gpus"),
    [
        ({}, True),
        ({"resourceUsage": {"nvidia.com/gpu": "0"}}, False),
        ({"resourceUsage": {"cpu": "8"}, "flavors": {"cpu": "any"}}, False),
        ({"resourceUsage": {"nvidia.com/mig-1g.10gb": "8"}, "flavors": {}}, True),
        ({"resourceUsage": {}, "flavors": {"nvidia.com/gpu": "h100"}}, True),
    ],
)
def test_whether_it_has_gpus(assignment: dict[str, Any], gpus: bool) -> None:
    found = read(workload("gpu-1", **assignment))
    assert found is not None and found.gpus is gpus


def test_a_topology_whose_last_level_is_no_node_names_none() -> None:
    found = read(workload(topologyAssignment=topology("gpu-1", levels=["leaf", "rack"])))
    assert found is not None and (found.nodes, found.level) == ((), "rack")
    later = read(workload(delayedTopologyRequest="Pending"))
    assert later is not None and later.delayed and not later.nodes


TWO = {"valuesPerLevel": [{"individual": {"roots": ["1", "2"]}}]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"slices": [{}]},
        {"slices": [{"valuesPerLevel": []}]},
        {"slices": [{"valuesPerLevel": [{}]}]},
        # A node without its pods would be left out, and not be looked at.
        {"slices": [{**TWO, "podCounts": {"individual": [1]}}]},
    ],
)
def test_what_is_no_assignment_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((KeyError, IndexError, ValueError)):
        list(domains_of(wrong))
