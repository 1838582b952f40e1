"""The reader of the cloud's notices: it never waits, and what it does not hear is unknown."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import STARTED, unknown
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.maintenance import reader as reader_module
from gpu_burnin.node.maintenance.reader import FRESH_S, Reader, believed, keep, kept, reader
from gpu_burnin.node.maintenance.service import NotKnown, Service
from gpu_burnin.settings.config import MAINTENANCE_PROVIDERS, Config, load_config
from tests.support.clocks import HandClock, wait_until
from tests.support.metadata_server import MetadataServer

NOW = datetime(2026, 4, 11, 21, tzinfo=UTC)
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
REBOOT = {"NotBefore": "12 Apr 2026 09:00:00 GMT", "NotAfter": "12 Apr 2026 10:00:00 GMT", "State": "active",
          "Code": "system-reboot", "EventId": "e", "Description": "reboot"}  # fmt: skip


class Clock(HandClock):
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def amazon(cloud: MetadataServer, clock: Clock, tmp_path: Path) -> Reader:
    says(cloud)
    return Reader("aws", cloud.base, tmp_path / "run" / "kept.json", now=clock.now, monotonic_s=clock.monotonic)


def says(cloud: MetadataServer, *events: dict[str, Any]) -> None:
    cloud.answers |= {"/latest/api/token": (200, "token"), SCHEDULED: (200, json.dumps(events))}


def test_before_the_first_answer_nothing_is_known(amazon: Reader) -> None:
    assert unknown(amazon.latest()) == "aws: its metadata service has not answered yet"


def test_a_missed_poll_or_two_change_nothing(cloud: MetadataServer, amazon: Reader, clock: Clock) -> None:
    amazon.poll()
    cloud.answers[SCHEDULED] = (503, "busy")
    clock.sleep(FRESH_S)
    amazon.poll()
    assert amazon.latest().state == "none"


def test_silence_is_unknown_in_the_end(cloud: MetadataServer, amazon: Reader, clock: Clock) -> None:
    amazon.poll()
    clock.sleep(FRESH_S + 1)
    assert unknown(amazon.latest()) == "aws: its metadata service does not answer any more"
    cloud.answers[SCHEDULED] = (503, "busy")
    amazon.poll()
    assert unknown(amazon.latest()) == (
        "aws: its metadata service answers 503 ('busy') to /latest/meta-data/events/maintenance/scheduled"
    )
    says(cloud)
    amazon.poll()
    assert amazon.latest().state == "none"


def test_a_window_that_was_announced_stays_when_its_source_falls_silent(
    cloud: MetadataServer, amazon: Reader, clock: Clock
) -> None:
    says(cloud, REBOOT)
    amazon.poll()
    clock.sleep(FRESH_S + 1)
    found = amazon.latest()
    assert (found.state, found.not_before) == ("scheduled", "2026-04-12T09:00:00Z")
    assert found.message == "reboot (since then: its metadata service does not answer any more)"
    clock.sleep(24 * 3600)
    assert unknown(amazon.latest())


def test_the_same_answer_is_the_same_value(cloud: MetadataServer, amazon: Reader, clock: Clock) -> None:
    """What is published changes with what the provider says, not with every poll."""
    says(cloud, REBOOT)
    amazon.poll()
    first = amazon.latest()
    clock.sleep(20)
    amazon.poll()
    assert amazon.latest() == first
    assert first.fetched_at == "2026-04-11T21:00:00Z"
    says(cloud)
    clock.sleep(20)
    amazon.poll()
    assert amazon.latest() == Maintenance("aws", "none", fetched_at="2026-04-11T21:00:40Z")


def test_a_service_that_hangs_keeps_nobody_waiting(cloud: MetadataServer) -> None:
    cloud.answers["/metadata/scheduledevents"] = cloud.silent
    one = Reader("azure", cloud.base, kept=None)
    one.start()
    wait_until(lambda: bool(cloud.asked))
    assert unknown(one.latest()) == "azure: its metadata service has not answered yet"
    one.stop()


@pytest.mark.parametrize("how", ["silent", "dripping"])
def test_a_call_ends_at_its_deadline(cloud: MetadataServer, how: str) -> None:
    cloud.answers["/slow"] = getattr(cloud, how)
    with pytest.raises(NotKnown, match=r"^its metadata service has not answered within 0\.2 s to /slow$"):
        Service(cloud.base).text("/slow", {}, deadline_s=0.2)


def test_it_polls_in_a_thread_of_its_own(
    cloud: MetadataServer, amazon: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "POLL_S", 0.01)
    amazon.start()
    wait_until(lambda: amazon.latest().state == "none")
    says(cloud, {**REBOOT, "NotBefore": "10 Apr 2026 00:00:00 GMT"})
    wait_until(lambda: amazon.latest().state == STARTED)
    amazon.stop()


def test_an_answer_that_breaks_the_reader_does_not_end_it(amazon: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "POLL_S", 0.01)
    whole, answers = amazon.poll, iter([RuntimeError("odd")])

    def poll() -> None:
        for error in answers:
            raise error
        whole()

    monkeypatch.setattr(amazon, "poll", poll)
    amazon.start()
    wait_until(lambda: amazon.latest().state == "none")
    amazon.stop()


# The file


def config(**more: Any) -> Config:
    return Config(**{"maintenance_provider": "aws", **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "kept.json"


def test_another_process_reads_what_was_heard(cloud: MetadataServer, amazon: Reader, path: Path) -> None:
    says(cloud, REBOOT)
    amazon.poll()
    assert kept(config(), datetime.now(UTC), path) == amazon.latest()
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_provider_has_no_notices(path: Path) -> None:
    assert kept(Config(), NOW, path) is None
    assert reader(Config()) is None


@pytest.mark.parametrize("content", [None, b"", b"no JSON", b"[]", b'{"provider": 1}'])
def test_a_file_that_is_missing_or_broken_is_unknown(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    found = kept(config(), NOW, path)
    assert unknown(found) == "aws: its notices are not read; is gpu-burnin-watch.service running?"


def test_a_file_of_another_provider_or_an_old_one_is_unknown(path: Path) -> None:
    keep(Maintenance("gcp", "none"), path)
    assert unknown(kept(config(), NOW, path)) == "aws: its notices are not read yet"
    keep(Maintenance("aws", "none"), path)
    os.utime(path, (0, NOW.timestamp() - FRESH_S - 1))
    assert unknown(kept(config(), NOW, path)) == (
        "aws: its notices are not read any more; is gpu-burnin-watch.service running?"
    )


def test_the_same_answer_writes_the_file_s_time_alone(path: Path) -> None:
    one = Maintenance("aws", "none")
    keep(one, path)
    os.utime(path, (0, 0))
    before = path.stat()
    keep(one, path)
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns > before.st_mtime_ns
    keep(Maintenance("aws", "started"), path)
    assert path.stat().st_ino != before.st_ino


def test_a_file_that_cannot_be_written_stops_nothing(cloud: MetadataServer, path: Path) -> None:
    path.parent.write_text("a file")
    says(cloud)
    one = Reader("aws", cloud.base, path)
    one.poll()
    assert one.latest().state == "none"


def test_what_started_without_a_known_end_stays_until_its_source_speaks() -> None:
    one = Maintenance("azure", "started")
    assert believed(one, 1e9, NOW, "").state == "started"


# The setting


@pytest.mark.parametrize("name", [name for name in MAINTENANCE_PROVIDERS if name != "none"])
def test_each_provider_of_the_setting_has_a_reader(name: str) -> None:
    made = reader(Config(maintenance_provider=name))
    assert made is not None and made.provider == name
    assert set(reader_module.PROVIDERS) | {"none"} == set(MAINTENANCE_PROVIDERS)


def test_the_setting_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("maintenance_provider: gcp\nmaintenance_url: http://127.0.0.1:8080\n")
    assert (load_config(file).maintenance_provider, load_config(file).maintenance_url) == (
        "gcp", "http://127.0.0.1:8080",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("maintenance_provider: oci", "maintenance_provider must be one of none, azure, gcp, aws"),
        ("maintenance_url: https://127.0.0.1", "maintenance_url must be an address such as http://"),
        ("maintenance_url: http://127.0.0.1:port", "maintenance_url must be an address such as http://"),
        ("maintenance_url: http://127.0.0.1/path", "maintenance_url must be an address such as http://"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(GpuBurninError, match=wrong):
        load_config(tmp_path / "config.yaml")
