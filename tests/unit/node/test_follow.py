"""Waiting for the burn-in under way: for its end, for its request of power waves, until those are over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.power.grant_request import State
from gpu_burnin.node import follow, unit
from gpu_burnin.node.follow import Event, Still, grant_and_wait, wait_for
from gpu_burnin.node.store import POWER_GRANT_DIR
from gpu_burnin.settings.config import Config

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(node_name="gpu-1", state_dir=tmp_path)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Not empty while the unit runs."""
    found = [True]
    monkeypatch.setattr(unit, "state", lambda: unit.UnitState(bool(found)))
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens on the host at each look, instead of time that passes."""
    planned: list[Callable[[], Any]] = []

    def sleep(_: float) -> None:
        assert planned, "it waits for something that does not come"
        planned.pop(0)()

    monkeypatch.setattr(follow.time, "sleep", sleep)
    return planned


def request(config: Config, **changes: Any) -> None:
    """The request of a burn-in that lives (this process)."""
    directory = config.state_dir / POWER_GRANT_DIR
    directory.mkdir(exist_ok=True)
    fields = {
        "asked_at": "2026-08-01T12:00:00.000001Z", "boot_id": BOOT_ID, "pid": os.getpid(), "wait_s": 60.0,
        "waves_s": 12.5, "state": "waiting", "granted_at": None, "over_at": None, **changes,
    }  # fmt: skip
    (directory / "request.json").write_text(json.dumps(fields))


def granted(config: Config) -> str:
    path = config.state_dir / POWER_GRANT_DIR / "grant"
    return path.read_text().strip() if path.exists() else ""


Steps = list[Callable[[], Any]]


def test_waves_are_granted_once_asked_for_and_waited_for(config: Config, busy: list[bool], steps: Steps) -> None:
    request(config)
    steps += [
        lambda: request(config, state="running", granted_at="2026-08-01T12:00:01Z"),
        lambda: request(config, state="over", granted_at="2026-08-01T12:00:01Z", over_at="x"),
    ]
    assert grant_and_wait(config, 1800).state is State.OVER
    assert granted(config) == "2026-08-01T12:00:00.000001Z"
    assert not steps


def test_a_worker_that_asks_anew_is_granted_anew(config: Config, busy: list[bool], steps: Steps) -> None:
    request(config)
    steps += [
        lambda: request(config, asked_at="2026-08-01T12:00:09.000001Z"),
        lambda: None,
        lambda: request(config, asked_at=granted(config), state="over"),
    ]
    assert grant_and_wait(config, 1800).state is State.OVER
    assert granted(config) == "2026-08-01T12:00:09.000001Z"


@pytest.mark.parametrize("state", ["over", "given_up"])
def test_nothing_is_granted_where_nothing_is_asked(state: str, config: Config, busy: list[bool]) -> None:
    assert grant_and_wait(config, 1800).state is State.NONE
    request(config, state=state)
    assert grant_and_wait(config, 1800).state == state
    request(config)
    busy.clear()  # no run is at work
    assert grant_and_wait(config, 1800).state is State.WAITING
    assert not granted(config)


def test_waves_of_a_burn_in_that_dies_are_waited_for_no_longer(config: Config, busy: list[bool], steps: Steps) -> None:
    request(config)
    steps += [lambda: request(config, state="running", pid=2**22 + 1)]
    assert grant_and_wait(config, 1800).state is State.NONE


def test_a_check_that_breaks_off_does_not_keep_the_turn(
    config: Config, busy: list[bool], steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request stays as it was until the run ends, which may go on for hours without waves."""
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(follow.time, "monotonic", lambda: float(next(now)))
    request(config, waves_s=30.0)
    steps += [lambda: request(config, waves_s=30.0, state="running"), *[lambda: None] * 50]
    assert grant_and_wait(config, 1800).state is State.RUNNING
    assert next(now) <= 30 + follow.WAVES_SLACK_S + 60
    assert steps


def test_waves_that_do_not_end_are_an_error_that_says_so(config: Config, busy: list[bool]) -> None:
    request(config, waves_s=0.0)
    with pytest.raises(Still, match=r"has not ended after 0 s and goes on; see /run/gpu-burnin") as caught:
        grant_and_wait(config, 0.0)
    assert caught.value.exit_code == 3


def test_the_wait_for_a_request_ends_when_waves_are_asked_for(config: Config, busy: list[bool], steps: Steps) -> None:
    steps += [lambda: request(config, state="running"), lambda: request(config)]
    wait_for(config, Event.POWER_REQUEST, 1800)
    assert not granted(config), "that is for who has the turn"
    assert not steps, "waves that are under way are no request"


def test_the_wait_for_the_end_does_not_mind_a_request(config: Config, busy: list[bool], steps: Steps) -> None:
    request(config)
    steps += [lambda: None, busy.clear]
    wait_for(config, Event.END, 1800)
    assert not steps
    wait_for(config, Event.END, 0)  # nothing is under way
    busy.append(True)
    with pytest.raises(Still):
        wait_for(config, Event.END, 0)
