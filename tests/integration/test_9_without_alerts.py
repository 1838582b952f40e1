"""The last of the lab: after all that happened to it, and with nothing more happening, it fires no alert.

Only here: the numbers of healthy hosts beside all rules.
"""

from __future__ import annotations

import time

import pytest

from .alert_faults import DUE, LEFT
from .fleet import Fleet, wait_until
from .prometheus import alerts_in, query, told_of

HOUR_S = 3600


def _undue(fleet: Fleet) -> set[tuple[str, str]]:
    """What fires, by Prometheus or for people, beside what is due and what the tests before have left."""
    told = {about for about, one in told_of(fleet).items() if one["status"]["state"] == "active"}
    return {about for about in told | alerts_in(fleet, "firing") if about not in DUE and about[0] not in LEFT}


def test_a_lab_to_which_nothing_happens_fires_no_alert(fleet: Fleet) -> None:
    """By then it has run for longer than each alert waits that clocks, disks or load could raise: ten minutes."""
    wait_until(f"an end of what fires, at first {_undue(fleet)}", lambda: not _undue(fleet), timeout_s=420)


@pytest.mark.soak
def test_a_lab_to_which_nothing_happens_fires_no_alert_for_an_hour(fleet: Fleet) -> None:
    wait_until("only what is due", lambda: not _undue(fleet), timeout_s=420)
    ends = time.monotonic() + HOUR_S
    wait_until("an hour to be over", lambda: time.monotonic() >= ends, timeout_s=HOUR_S + 60)
    fired = query(fleet, f'count by (alertname, instance) (count_over_time(ALERTS{{alertstate="firing"}}[{HOUR_S}s]))')
    about = {(one["alertname"], one.get("instance", "")) for one in fired}
    assert {one for one in about - DUE if one[0] not in LEFT} == set()
    # What tests did is longer ago than any alert looks back; XIDs count until the node boots.
    assert {one for one in alerts_in(fleet, "firing") - DUE if one[0] != "MusterXidFatal"} == set()
