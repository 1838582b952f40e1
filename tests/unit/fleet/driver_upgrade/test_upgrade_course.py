"""One host on its way to another driver: what is asked, what is waited for, what is given back and what is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.driver_upgrade import book
from gpu_burnin.fleet.driver_upgrade.book import Outcome, Step
from gpu_burnin.fleet.driver_upgrade.course import Found, UpgradeFailed
from tests.support.fake_api import Refused
from tests.support.upgrade_site import LOOK, NEW, OLD, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.run()
    yield made
    made.api.close()


def person(verb: str, **more: str) -> dict[str, dict[str, str]]:
    return {verb: {"who": "bob", "why": "loud fan", "since": "2026-11-22T16:00:00Z", "until": "", "level": "", **more}}


def to_the_test(site: Site) -> None:
    upgrade = site.upgrade()
    assert upgrade.begin(OLD).outcome is Outcome.UNDER_WAY
    assert upgrade.change(LOOK).step is Step.DRIVER
    assert upgrade.test(Found(NEW)).step is Step.TEST


def test_out_of_work_another_driver_and_back(site: Site) -> None:
    to_the_test(site)
    assert {verb: site.spec()[verb]["why"] for verb in ("repair", "quarantine")} == dict.fromkeys(
        ("repair", "quarantine"), f"driver upgrade to {NEW}"
    )
    done = site.upgrade().admit("PASS", "")
    assert (done.outcome, done.why, done.before, done.asks) == (Outcome.DONE, "", OLD, ())
    assert site.spec() == {} and site.entry() == done


def test_the_job_ends_first(site: Site) -> None:
    """The host is out for new work, and nothing else is done to it, as long as the job is on it."""
    site.pod("train", hold="checkpoint")
    site.pod("plugin", daemon=True)
    site.pod("old", phase="Succeeded")

    def save() -> None:
        assert site.entry().step is Step.DRAIN and site.spec()["quarantine"]
        if site.waited_s > 60:
            site.api.objects["pods"].pop("ml/train", None)

    site.on_poll = save
    assert site.upgrade().begin(OLD).outcome is Outcome.UNDER_WAY
    assert site.waited_s > 60


def test_a_job_that_stays_has_its_host_back_as_it_was(site: Site) -> None:
    """Never asked for as one in repair, after which the admitter would want a test, and the host would wait for it."""
    site.pod("train", hold="checkpoint")
    asked: set[str] = set()
    site.on_poll = lambda: asked.update(site.spec())
    given = site.upgrade().begin(OLD)
    assert asked == {"quarantine"}
    assert given.outcome is Outcome.GIVEN_BACK and site.spec() == {}
    assert given.why.startswith("after 600 s work is still on it: ml/train (holds until checkpoint); run this again")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda site: site.spec().update(person("repair")), "bob has it in repair since"),
        (lambda site: site.api.objects["nodeadmissions"].pop("gpu-1"), "the cluster has no NodeAdmission"),
        (
            lambda site: site.api.objects["configmaps"].update(
                {"muster-system/muster-pause": {"metadata": {}, "data": {"who": "bob", "why": "power works"}}}
            ),
            "the fleet is paused (bob: power works)",
        ),
        (lambda site: setattr(site, "admits", False), "it is still ready 60 s after the ask"),
        (
            lambda site: site.api.nodes["gpu-1"]["metadata"]["annotations"].update({"muster.dev/agent": "{"}),
            "run this again when it is over",
        ),
    ],
)
def test_what_forbids_it_is_said_and_nothing_stays_asked(site: Site, change: Callable[[Site], Any], why: str) -> None:
    change(site)
    before = json.dumps(site.api.objects["nodeadmissions"].get("gpu-1", {}).get("spec"))
    given = site.upgrade().begin(OLD)
    assert given.outcome is Outcome.GIVEN_BACK and why in given.why
    assert json.dumps(site.api.objects["nodeadmissions"].get("gpu-1", {}).get("spec")) == before


def test_a_window_of_the_calendar_forbids_it_until_something_was_changed(site: Site) -> None:
    assert "a new feed" in site.upgrade(maintenance="maintenance at 18:00: a new feed").begin(OLD).why
    to_the_test(site)
    assert site.upgrade(maintenance="a new feed").begin(NEW).outcome is Outcome.UNDER_WAY


@pytest.mark.parametrize("look", [None, {"working": [{"name": "python", "pid": 7, "unit": ""}]}])
def test_a_host_that_does_not_answer_or_computes_is_given_back(site: Site, look: dict[str, Any] | None) -> None:
    site.upgrade().begin(OLD)
    given = site.upgrade().change(look)
    assert given.outcome is Outcome.GIVEN_BACK and site.spec() == {}
    assert ("python (process 7)" if look else "does not answer") in given.why


def test_work_that_came_before_anything_was_changed_has_the_host_back(site: Site) -> None:
    """Somebody has taken the quarantine away: new work came before the repair was asked for, or just after it."""
    site.upgrade().begin(OLD)
    site.pod("train")
    given = site.upgrade().change(LOOK)
    assert given.outcome is Outcome.GIVEN_BACK and given.why.startswith("work has come: ml/train")
    assert site.spec() == {}
    site.api.objects["pods"].clear()
    site.upgrade().begin(OLD)
    site.admits = False
    site.on_poll = lambda: (site.pod("train"), setattr(site, "admits", True))[0]
    given = site.upgrade().change(LOOK)
    assert given.outcome is Outcome.GIVEN_BACK and given.why.startswith("work has come: ml/train")
    assert site.spec() == {} and site.entry().asks == ()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Found(OLD), f"driver {OLD} is loaded and {NEW} was asked for"),
        (Found(""), "driver of no version is loaded"),
        (Found(NEW, driver="NVML says 18"), "NVML says 18"),
        (Found(NEW, fabric="GPU 3 is not on the fabric"), "GPU 3 is not on the fabric"),
        (Found(NEW, dcgm="the host engine sees no GPU"), "the host engine sees no GPU"),
        (Found(NEW, containers="no CDI specification"), "no CDI specification"),
    ],
)
def test_a_host_without_the_driver_stays_out_with_the_reason(site: Site, found: Found, why: str) -> None:
    site.upgrade().begin(OLD)
    site.upgrade().change(LOOK)
    with pytest.raises(UpgradeFailed) as failed:
        site.upgrade().test(found)
    assert why in str(failed.value)
    entry = site.upgrade().fail(f"controller: {failed.value}")
    assert entry.outcome is Outcome.FAILED and entry.why.startswith(why.removeprefix("gpu-1: "))
    assert site.spec()["quarantine"]["why"].startswith(f"driver upgrade to {NEW} failed: ") and len(site.spec()) == 1


def test_no_pass_is_no_way_back(site: Site) -> None:
    to_the_test(site)
    with pytest.raises(UpgradeFailed, match="burn-in INCONCLUSIVE: no kernel log"):
        site.upgrade().admit("INCONCLUSIVE", "no kernel log")
    assert site.spec()["repair"]


@pytest.mark.parametrize(
    ("stands", "why"),
    [
        (("quarantined", "XID_FATAL"), "the admitter does not let it in: xid_fatal (XID_FATAL)"),
        (("suspect", "GPUS_MISSING"), "not let in within 300 s: gpus_missing (GPUS_MISSING)"),
    ],
)
def test_what_the_admitter_does_not_let_in_has_failed(site: Site, stands: tuple[str, str], why: str) -> None:
    to_the_test(site)
    site.stands = stands
    with pytest.raises(UpgradeFailed) as failed:
        site.upgrade().admit("PASS", "")
    assert why in str(failed.value)


@pytest.mark.parametrize("verb", ["hold", "quarantine"])
def test_what_a_person_keeps_out_stays_out_and_theirs(site: Site, verb: str) -> None:
    site.spec().update(person(verb))
    to_the_test(site)
    done = site.upgrade().admit("PASS", "")
    assert (done.outcome, done.why) == (Outcome.DONE, f"it stays out of work: {verb} by bob (loud fan)")
    assert site.spec() == person(verb)


def test_a_quarantine_that_a_person_asks_for_meanwhile_stays(site: Site) -> None:
    """Also of the same user: `muster node quarantine` writes another time and reason."""
    to_the_test(site)
    asked = person("quarantine", who="anna")
    site.spec().update(asked)
    assert site.upgrade().admit("PASS", "").why == "it stays out of work: quarantine by anna (loud fan)"
    assert site.spec() == asked
    site.spec().clear()


def test_a_quarantine_whose_time_is_over_keeps_nobody_out(site: Site) -> None:
    site.spec().update(person("quarantine", until="2026-11-22T16:30:00Z"))
    to_the_test(site)
    assert site.spec()["quarantine"]["who"] == "anna"
    assert site.upgrade().admit("PASS", "").why == "" and site.spec() == {}


def test_a_person_keeps_a_quarantine_through_a_failure(site: Site) -> None:
    site.spec().update(person("quarantine"))
    to_the_test(site)
    site.upgrade().fail("the driver does not load")
    assert site.spec() == person("quarantine")


class Killed(BaseException):
    """SIGKILL, as far as Python can have it."""


@pytest.mark.parametrize("write", range(1, 11))
def test_killed_at_each_write_the_next_run_ends_it(site: Site, write: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was asked is known as ours by then, and taken back; the entry is never behind the cluster."""
    left = write

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    plain = book.write_entry

    def counted(directory: Path, entry: book.Entry) -> None:
        count()
        plain(directory, entry)
        count()

    monkeypatch.setattr(book, "write_entry", counted)
    with pytest.raises(Killed):
        to_the_test(site)
        site.upgrade().admit("PASS", "")
    monkeypatch.undo()
    site.run("run-2")
    to_the_test(site)
    done = site.upgrade().admit("PASS", "")
    assert (done.outcome, done.run) == (Outcome.DONE, "run-2")
    assert site.spec() == {}


def test_killed_between_the_entry_and_the_cluster(site: Site) -> None:
    def refuse(path: str) -> None:
        raise Refused(500, "the API server is gone")

    site.api.before_write = lambda path: refuse(path) if "nodeadmissions" in path else None
    with pytest.raises(GpuBurninError):
        site.upgrade().begin(OLD)
    assert site.entry().open and site.spec() == {}
    site.api.before_write = lambda path: None
    to_the_test(site)


def test_a_failure_is_on_the_disk_though_no_api_server_answers(site: Site) -> None:
    to_the_test(site)

    def refuse(path: str) -> None:
        raise Refused(500, "the API server is gone")

    site.api.before_write = lambda path: refuse(path) if "nodeadmissions" in path else None
    entry = site.upgrade().fail("no answer")
    assert (
        entry.outcome is Outcome.FAILED and "no answer; that could not be written into its NodeAdmission" in entry.why
    )
    assert site.entry() == entry


def test_what_has_failed_is_gone_on_with_also_to_the_older_driver(site: Site) -> None:
    to_the_test(site)
    site.upgrade().fail("burn-in FAIL")
    site.run("run-2", OLD)
    upgrade = site.upgrade()
    assert upgrade.begin(NEW).before == OLD
    upgrade.change(LOOK)
    upgrade.test(Found(OLD))
    assert upgrade.admit("PASS", "").outcome is Outcome.DONE and site.spec() == {}


def test_a_host_that_was_changed_is_not_given_back(site: Site) -> None:
    to_the_test(site)
    site.run("run-2")
    site.spec().pop("repair")
    site.spec().update(person("repair"))
    with pytest.raises(UpgradeFailed, match="bob has it in repair"):
        site.upgrade().begin(NEW)
    assert site.entry().run == "run-2" and site.spec()["quarantine"]["who"] == "anna"


def test_a_book_that_cannot_be_read_stops_the_run(site: Site) -> None:
    site.upgrade().begin(OLD)
    path = site.directory / "hosts/gpu-1.json"
    path.write_text("{")
    with pytest.raises(GpuBurninError, match="nobody knows what was begun"):
        book.entries(site.directory)
    entry = book.Entry("gpu-1", "r", OLD, NEW, "t")
    book.write_entry(site.directory, replace(entry, schema="muster-driver-upgrade/v2"))
    with pytest.raises(GpuBurninError, match="schema muster-driver-upgrade/v2; move it away"):
        book.entries(site.directory)
