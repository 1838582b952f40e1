"""Waiting for this node's burn-in: until it ends, until it asks for power waves, until those are over."""

from __future__ import annotations

import time
from enum import StrEnum

from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.checks.power.grant_request import Request, State
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.node import unit
from gpu_burnin.node.store import POWER_GRANT_DIR
from gpu_burnin.settings.config import Config

# How much longer than they should power waves may take, from when they were seen to run.
WAVES_SLACK_S = 60.0
_NEVER_S = float("inf")
_OPEN = (State.WAITING, State.RUNNING)


class Event(StrEnum):
    """What can be waited for. A burn-in that ends without asking for power waves is waited for no longer either."""

    END = "end"
    POWER_REQUEST = "power-request"


class Still(GpuBurninError):
    """What was waited for has not come; exit code 3."""

    def __init__(self, node: str, timeout_s: float) -> None:
        super().__init__(
            f"{node}: the burn-in in {unit.UNIT} has not ended after {timeout_s:g} s and goes on; see "
            f"{unit.RUN_DIR / unit.PROGRESS} there",
            EXIT_INCONCLUSIVE,
        )


class _Deadline:
    def __init__(self, config: Config, timeout_s: float) -> None:
        self._node, self._timeout_s = config.node_name, timeout_s
        self._end = time.monotonic() + timeout_s

    def pause(self) -> None:
        """Until the next look. Raises Still once the time is over."""
        if time.monotonic() >= self._end:
            raise Still(self._node, self._timeout_s)
        time.sleep(unit.POLL_S)


def wait_for(config: Config, event: Event, timeout_s: float) -> None:
    """Wait until the event has come; at once where no burn-in is under way. Raises Still and GpuBurninError."""
    deadline = _Deadline(config, timeout_s)
    directory = config.state_dir / POWER_GRANT_DIR
    while unit.state().running:
        if event is Event.POWER_REQUEST and power_grant.state(directory).state is State.WAITING:
            return
        deadline.pause()


def grant_and_wait(config: Config, timeout_s: float) -> Request:
    """Grant the power waves that the burn-in under way asks for, and wait until they are over.

    At once where none are asked for; the time that the waves take comes on top of `timeout_s`. Raises Still and
    GpuBurninError.
    """
    directory = config.state_dir / POWER_GRANT_DIR
    request = power_grant.state(directory)
    if request.state not in _OPEN or not unit.state().running:
        return request
    deadline = _Deadline(config, timeout_s + request.waves_s)
    granted, over_by = "", _NEVER_S
    while request.state in _OPEN and time.monotonic() < over_by:
        # Another worker follows one that dies, and asks again.
        if request.state is State.WAITING and request.asked_at != granted:
            power_grant.give(directory, request)
            granted, over_by = request.asked_at, _NEVER_S
        # A check that broke off does not say so; others wait for the turn.
        if request.state is State.RUNNING and over_by == _NEVER_S:
            over_by = time.monotonic() + request.waves_s + WAVES_SLACK_S
        deadline.pause()
        request = power_grant.state(directory)
    return request
