"""What each cloud's metadata service says, as one record. The services are stand-ins with recorded and wrong answers.

Azure's record is Microsoft's own sample, whose weekday is wrong; Google's and Amazon's are those of their pages.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import active
from gpu_burnin.node.maintenance import aws, azure, gcp
from gpu_burnin.node.maintenance.reader import Reader
from gpu_burnin.system.clock import parse_rfc3339
from tests.support.metadata_server import MetadataServer

NOW = datetime(2026, 4, 11, 21, tzinfo=UTC)
HTML = "<!DOCTYPE html><html><body>Sign in to the network</body></html>"
FETCHED = "2026-04-11T21:00:00Z"


def heard(provider: str, cloud: MetadataServer) -> Maintenance:
    reader = Reader(provider, cloud.base, kept=None, now=lambda: NOW)
    reader.poll()
    return reader.latest()


# Azure

AZURE_EVENTS, AZURE_NAME = "/metadata/scheduledevents", "/metadata/instance/compute/name"
FREEZE: dict[str, Any] = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "Scheduled", "EventType": "Freeze",
    "ResourceType": "VirtualMachine", "Resources": ["WestNO_0", "WestNO_1"],
    "NotBefore": "Mon, 11 Apr 2026 22:26:58 GMT",
    "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    "EventSource": "Platform", "DurationInSeconds": 5,
}  # fmt: skip


def on_azure(cloud: MetadataServer, *events: object, name: str = "WestNO_0") -> Maintenance:
    cloud.answers[AZURE_EVENTS] = (200, json.dumps({"DocumentIncarnation": 2, "Events": events}))
    cloud.answers[AZURE_NAME] = (200, name)
    return heard("azure", cloud)


def test_an_azure_event_is_read_whatever_its_weekday(cloud: MetadataServer) -> None:
    assert on_azure(cloud, FREEZE) == Maintenance(
        provider="azure",
        state="scheduled",
        not_before="2026-04-11T22:26:58Z",
        kind="Freeze",
        impact_s=5.0,
        id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        fetched_at=FETCHED,
        message="Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    )
    assert [(method, path) for method, path, _ in cloud.asked] == [
        ("GET", "/metadata/scheduledevents?api-version=2020-07-01"),
        ("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text"),
    ]
    assert all(headers["Metadata"] == "true" for _, _, headers in cloud.asked)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "none"),
        ([{**FREEZE, "Resources": ["WestNO_1"]}], "none"),  # another machine of the scale set
        ([{**FREEZE, "Resources": ["westno_0"]}], "scheduled"),
        ([{**FREEZE, "Resources": []}], "scheduled"),  # it may be ours
        ([{**FREEZE, "EventStatus": "Started", "NotBefore": ""}], "started"),
        ([{**FREEZE, "EventStatus": "Completed"}], "none"),
        ([{**FREEZE, "EventStatus": "Canceled"}, FREEZE], "scheduled"),
        ([{**FREEZE, "EventStatus": "Brewing"}], "unknown"),
        ([{**FREEZE, "NotBefore": "soon"}], "unknown"),
        ([{**FREEZE, "NotBefore": 1775946418}], "unknown"),
        (["an event"], "unknown"),
        ([{**FREEZE, "NotBefore": "soon"}, {**FREEZE, "EventStatus": "Started"}], "started"),
    ],
)
def test_azure_events_that_count_and_that_do_not(cloud: MetadataServer, events: list[Any], state: str) -> None:
    assert on_azure(cloud, *events).state == state


def test_the_worst_of_several_azure_events_counts(cloud: MetadataServer) -> None:
    later = {**FREEZE, "EventType": "Reboot", "NotBefore": "Sun, 12 Apr 2026 03:00:00 GMT"}
    assert on_azure(cloud, later, FREEZE).kind == "Freeze"
    assert on_azure(cloud, FREEZE, {**later, "EventStatus": "Started", "NotBefore": ""}).kind == "Reboot"


@pytest.mark.parametrize(("duration_s", "impact_s"), [(-1, None), (0, 0.0), (9, 9.0), (True, None), ("5", None)])
def test_azure_says_how_long_or_not(cloud: MetadataServer, duration_s: object, impact_s: float | None) -> None:
    found = on_azure(cloud, {**FREEZE, "DurationInSeconds": duration_s})
    assert (found.impact_s, found.not_after) == (impact_s, "")


def test_no_azure_event_needs_no_name(cloud: MetadataServer) -> None:
    cloud.answers[AZURE_EVENTS] = (200, '{"DocumentIncarnation":1,"Events":[]}')
    assert heard("azure", cloud).state == "none"


def test_an_azure_machine_without_a_name_does_not_know_whose_events_they_are(cloud: MetadataServer) -> None:
    assert "answers 404" in on_azure_without_name(cloud).message
    cloud.answers[AZURE_NAME] = (200, "")
    assert heard("azure", cloud).message == (
        "azure: its metadata service does not tell the name of this machine, so whose the events are"
    )


def on_azure_without_name(cloud: MetadataServer) -> Maintenance:
    cloud.answers[AZURE_EVENTS] = (200, json.dumps({"Events": [FREEZE]}))
    return heard("azure", cloud)


# Google

UPCOMING, EVENT = "/computeMetadata/v1/instance/upcoming-maintenance", "/computeMetadata/v1/instance/maintenance-event"
WINDOW: dict[str, Any] = {
    "can_reschedule": "true", "latest_window_start_time": "2026-04-12T19:00:01Z",
    "maintenance_reasons": ["PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"], "maintenance_status": "PENDING",
    "type": "SCHEDULED", "window_end_time": "2026-04-12T21:00:01Z", "window_start_time": "2026-04-12T19:00:01Z",
}  # fmt: skip
CAMEL = {
    "canReschedule": True, "maintenanceStatus": "PENDING", "type": "SCHEDULED", "windowEndTime": "2026-04-12T21:00:01Z",
    "windowStartTime": "2026-04-12T19:00:01Z", "maintenanceReasons": ["PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"],
}  # fmt: skip


def on_gcp(cloud: MetadataServer, upcoming: object, event: str = "NONE", status: int = 200) -> Maintenance:
    cloud.answers[UPCOMING] = (status, upcoming if isinstance(upcoming, str) else json.dumps(upcoming))
    cloud.answers[EVENT] = (200, event)
    return heard("gcp", cloud)


@pytest.mark.parametrize("document", [WINDOW, CAMEL, {"Upcoming maintenance": WINDOW}, {"upcomingMaintenance": CAMEL}])
def test_a_google_window_is_read_however_it_is_written(cloud: MetadataServer, document: object) -> None:
    assert on_gcp(cloud, document) == Maintenance(
        provider="gcp",
        state="scheduled",
        not_before="2026-04-12T19:00:01Z",
        not_after="2026-04-12T21:00:01Z",
        kind="SCHEDULED",
        fetched_at=FETCHED,
        message="PLANNED_UPDATE, PLANNED_NETWORK_UPDATE",
    )
    assert all((method, headers["Metadata-Flavor"]) == ("GET", "Google") for method, _, headers in cloud.asked)


@pytest.mark.parametrize(
    ("upcoming", "event", "status", "state"),
    [
        ("{ }", "NONE", 200, "none"),
        ("NONE", "NONE", 200, "none"),
        ('"NONE"', '"NONE"\n', 200, "none"),
        ({**WINDOW, "maintenance_status": "ONGOING"}, "NONE", 200, "started"),
        ({**WINDOW, "maintenance_status": "COMPLETE"}, "NONE", 200, "none"),
        ({**WINDOW, "maintenance_status": "BREWING"}, "NONE", 200, "unknown"),
        ({**WINDOW, "window_start_time": "soon"}, "NONE", 200, "unknown"),
        ({"window_start_time": "2026-04-12T19:00:01Z"}, "NONE", 200, "scheduled"),
        ({"error": "no notifications"}, "NONE", 200, "unknown"),
        ({"error": "no notifications have been received yet, try again later"}, "NONE", 503, "none"),
        ({"error": "no notifications have been received yet, try again later"}, "NONE", 200, "none"),
        ({"error": "try again later"}, "NONE", 503, "unknown"),
        ("not found", "NONE", 404, "unknown"),
        ("[]", "NONE", 200, "unknown"),
        ("{ }", "TERMINATE_ON_HOST_MAINTENANCE", 200, "started"),
        (WINDOW, "MIGRATE_ON_HOST_MAINTENANCE", 200, "started"),
        ("not found", "TERMINATE_ON_HOST_MAINTENANCE", 404, "started"),
        ("{ }", "SOMETHING_NEW", 200, "unknown"),
        (WINDOW, "SOMETHING_NEW", 200, "scheduled"),
    ],
)
def test_google_says_none_in_many_ways_and_unknown_in_more(
    cloud: MetadataServer, upcoming: object, event: str, status: int, state: str
) -> None:
    assert on_gcp(cloud, upcoming, event, status).state == state


def test_a_google_window_that_is_late_has_no_known_end(cloud: MetadataServer) -> None:
    late = {**WINDOW, "window_start_time": "2026-04-11T18:00:00Z", "window_end_time": "2026-04-11T20:00:00Z"}
    assert on_gcp(cloud, late).not_after == ""


# Amazon

TOKEN, SCHEDULED = "/latest/api/token", "/latest/meta-data/events/maintenance/scheduled"
REBOOT = {
    "NotBefore": "21 Jan 2027 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2027 09:17:23 GMT", "State": "active",
}  # fmt: skip
DEGRADED = {**REBOOT, "Code": "instance-stop", "Description": "The instance is running on degraded hardware"}


def on_aws(cloud: MetadataServer, events: object) -> Maintenance:
    cloud.answers[TOKEN] = (200, "AQAEAGtoken==")
    cloud.answers[SCHEDULED] = (200, events if isinstance(events, str) else json.dumps(events))
    return heard("aws", cloud)


def test_an_amazon_event_is_read_with_a_token(cloud: MetadataServer) -> None:
    assert on_aws(cloud, [REBOOT]) == Maintenance(
        provider="aws",
        state="scheduled",
        not_before="2027-01-21T09:00:43Z",
        not_after="2027-01-21T09:17:23Z",
        kind="system-reboot",
        id="instance-event-0d59937288b749b32",
        fetched_at=FETCHED,
        message="scheduled reboot",
    )
    (put, _, first), (get, _, second) = cloud.asked
    assert (put, get) == ("PUT", "GET")
    assert first["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
    assert second["X-aws-ec2-metadata-token"] == "AQAEAGtoken=="


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "none"),
        ([{**REBOOT, "State": "completed"}], "none"),
        ([{**REBOOT, "State": "canceled"}], "none"),
        ([{**REBOOT, "Description": "[Completed] scheduled reboot"}], "none"),
        ([{**REBOOT, "State": "completed"}, REBOOT], "scheduled"),
        ([{**REBOOT, "NotBefore": "11 Apr 2026 20:00:00 GMT"}], "started"),
        ([{**REBOOT, "NotBefore": "11 Apr 2026 19:00:00 GMT", "NotAfter": "11 Apr 2026 20:00:00 GMT"}], "started"),
        ([{**REBOOT, "NotBefore": "2027-01-21T09:00:43.000Z"}], "scheduled"),
        ([{**REBOOT, "Code": "instance-stop"}], "scheduled"),
        (
            [{**REBOOT, "Code": "instance-stop", "Description": "The instance is running on Degraded hardware"}],
            "started",
        ),
        ([{**REBOOT, "Code": "instance-retirement"}], "started"),
        ([{**REBOOT, "Code": "instance-retirement", "State": "completed"}], "none"),
        ([{**REBOOT, "NotBefore": None}], "scheduled"),
        ([{**REBOOT, "NotBefore": "never"}], "unknown"),
        ([{**REBOOT, "State": "brewing"}], "unknown"),
        ([{"Code": "system-reboot"}], "unknown"),
        ([7], "unknown"),
        ({"events": []}, "unknown"),
    ],
)
def test_amazon_events_that_count_and_that_do_not(cloud: MetadataServer, events: object, state: str) -> None:
    assert on_aws(cloud, events).state == state


def test_degraded_hardware_keeps_work_away_now_and_says_what_to_do(cloud: MetadataServer) -> None:
    """Its date is when Amazon stops the instance, weeks ahead: the hardware has failed already."""
    told = on_aws(
        cloud, [{**REBOOT, "Code": "instance-stop", "Description": "The instance is running on degraded hardware"}]
    )
    assert active(told, parse_rfc3339("2026-11-01T00:00:00Z"), 3600) == (
        "aws: maintenance (instance-stop) is under way: The instance is running on degraded hardware; stop and start"
        " the instance before EC2 does at 2027-01-21T09:00:43Z, which moves it to other hardware"
    )


@pytest.mark.parametrize("answer", [(403, ""), (200, ""), (200, "a\nb"), (200, "té")])
def test_an_amazon_machine_without_a_token_knows_nothing(cloud: MetadataServer, answer: tuple[int, str]) -> None:
    cloud.answers[SCHEDULED] = (403, "")
    cloud.answers[TOKEN] = answer
    assert heard("aws", cloud).state == "unknown"


# All of them


def test_no_notice_ahead_from_google_is_no_promise(cloud: MetadataServer) -> None:
    """After SAP's agent for Google Cloud, whose reading of that answer this is."""
    none = {"error": "no notifications have been received yet, try again later"}
    assert on_gcp(cloud, none, "TERMINATE_ON_HOST_MAINTENANCE", 503).state == "started"


PATHS = {"azure": [AZURE_EVENTS], "gcp": [UPCOMING, EVENT], "aws": [TOKEN, SCHEDULED]}


@pytest.mark.parametrize("provider", PATHS)
@pytest.mark.parametrize(
    "answer",
    [(503, "busy"), (404, HTML), (200, HTML), (200, ""), (200, "{"), (200, "null"), (200, "[" * 90_000), (302, ""),
     (200, "3"), (200, "\x00\x01"), (401, ""), (200, "[" + "1," * 200_000 + "1]")],
    ids=lambda answer: f"{answer[0]}-{answer[1][:6]!r}",
)  # fmt: skip
def test_what_is_no_answer_is_unknown_and_names_the_provider(
    cloud: MetadataServer, provider: str, answer: tuple[int, str]
) -> None:
    for path in PATHS[provider]:
        cloud.answers[path] = answer
    found = heard(provider, cloud)
    assert found.state == "unknown"
    assert found.message.startswith(f"{provider}: its metadata service ")
    assert len(found.message) <= 300 and found.message.isprintable()


@pytest.mark.parametrize("provider", PATHS)
def test_nobody_there_is_unknown(cloud: MetadataServer, provider: str) -> None:
    gone = Reader(provider, "http://127.0.0.1:9", kept=None)
    gone.poll()
    assert gone.latest().state == "unknown"
    assert "does not answer to /" in gone.latest().message


@pytest.mark.parametrize("provider", PATHS)
def test_nothing_is_ever_changed_and_no_proxy_asked(
    cloud: MetadataServer, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    if provider == "azure":
        on_azure(cloud, FREEZE)
    elif provider == "gcp":
        on_gcp(cloud, WINDOW)
    else:
        on_aws(cloud, [REBOOT])
    assert {(method, path) for method, path, _ in cloud.asked if method != "GET"} <= {("PUT", "/latest/api/token")}
    assert cloud.asked


def test_long_and_strange_texts_are_bounded(cloud: MetadataServer) -> None:
    found = on_azure(cloud, {**FREEZE, "Description": "a\n\x1b[31m" + "b" * 5000, "EventId": "i" * 500})
    assert (len(found.message), len(found.id)) == (300, 64)
    assert found.message.startswith("a ?[31mb") and found.message.isprintable()


def test_the_addresses_are_those_of_the_clouds() -> None:
    assert (azure.BASE, gcp.BASE, aws.BASE) == (
        "http://169.254.169.254", "http://metadata.google.internal", "http://169.254.169.254",
    )  # fmt: skip
