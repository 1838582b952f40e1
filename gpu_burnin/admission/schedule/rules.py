"""The settings of the standing tests: how many nodes at a time, when, and how often each level."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time, timedelta
from typing import ClassVar

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.types import JSON

# The shallowest first: a proof of a later one is a proof of those before it.
_DAY_S = 86400.0
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")


class TestRulesError(GpuBurninError):
    """Settings of the tests that cannot be used."""

    __test__: ClassVar[bool] = False


@dataclass(frozen=True)
class TestRules:
    """What the schedule may take from the fleet. The smaller of `nodes` and `share` holds; 0 for either: no tests.

    `hours` are times of the day in UTC, "22:00-06:00"; none: always. `random_share` of the tests come unannounced: at a
    random moment of their period, and of each free place with that probability to any node that is due, not to the
    one with the oldest proof. `*_every_s` are the periods of the levels, 0 for never. A node that was busy when it was
    asked is asked again after `ask_again_s`.
    """

    __test__: ClassVar[bool] = False

    nodes: int = 8
    share: float = 0.02
    hours: tuple[str, ...] = ()
    random_share: float = 0.2
    quick_every_s: float = _DAY_S
    # Before the earliest end of evidence (6.3 days), so that an idle fleet has no expired node.
    standard_every_s: float = 6 * _DAY_S
    extended_every_s: float = 30 * _DAY_S
    ask_again_s: float = 600.0

    def __post_init__(self) -> None:
        """Raises ValueError, which names the key."""
        if self.nodes < 0:
            raise ValueError(f"nodes is {self.nodes}; give the most nodes that are tested at a time, 0 for none")
        for name in ("share", "random_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name} is {share:g}; give a number from 0 to 1")
        for field in fields(self):
            if field.name.endswith("_s") and not 0 <= (seconds := getattr(self, field.name)) < math.inf:
                raise ValueError(f"{field.name} is {seconds:g}; give seconds, 0 or more")
        for text in self.hours:
            _window(text)

    @property
    def periods_s(self) -> tuple[float, ...]:
        """Seconds between two tests of each level; infinite for never."""
        return tuple(
            period or math.inf for period in (self.quick_every_s, self.standard_every_s, self.extended_every_s)
        )

    def places(self, fleet: int) -> int:
        """How many nodes of a fleet of this size may be tested at a time: of a small fleet one."""
        return min(self.nodes, max(1, math.floor(fleet * self.share))) if self.share and fleet else 0

    @property
    def open_s_per_day(self) -> float:
        """Seconds of a day in which tests may begin."""
        midnight = datetime(2000, 1, 1, tzinfo=UTC)
        return 60.0 * sum(self.open_at(midnight + timedelta(minutes=minute)) for minute in range(24 * 60))

    def open_at(self, now: datetime) -> bool:
        """Whether tests may begin at this hour of the day. A window may go over midnight."""
        minute = _minutes(now.astimezone(UTC).time())
        return not self.hours or any(
            begin <= minute < end if begin < end else minute >= begin or minute < end
            for begin, end in map(_window, self.hours)
        )


def parse_tests(document: JSON) -> TestRules:
    """The settings as a configuration file has them. Raises TestRulesError, which names the key."""
    try:
        return from_json(TestRules, document)
    except Misfit as error:
        raise TestRulesError(f"tests: {error}; correct it, or leave the key out for its default") from error


def _window(text: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(text)
    begin, end = ((int(match[1]) * 60 + int(match[2])), int(match[3]) * 60 + int(match[4])) if match else (0, 0)
    if begin == end or end > 24 * 60:
        raise ValueError(f"hours has {text!r}; give times of the day in UTC as HH:MM-HH:MM, such as 22:00-06:00")
    return begin, end


def _minutes(moment: time) -> int:
    return moment.hour * 60 + moment.minute
