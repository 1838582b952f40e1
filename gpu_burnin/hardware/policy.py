"""What telemetry over a run means for a node: rules on throttling, temperatures, counters and events, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.located import Located, load
from gpu_burnin.hardware.reasons import load_reasons
from gpu_burnin.hardware.skus import Confidence

DEFAULT_PATH = Path(__file__).with_name("policy.yaml")


class Weight(StrEnum):
    """What it means for the node when a rule applies."""

    FAIL = "fail"
    WARN = "warn"
    NORMAL = "normal"


class Quantity(StrEnum):
    """Temperatures that are judged, in degrees Celsius; policy.yaml says what each is."""

    SLOWDOWN_HEADROOM = "slowdown_headroom_c"
    MEMORY_HEADROOM = "memory_headroom_c"
    ABOVE_NODE_MEDIAN = "above_node_median_c"


@dataclass(frozen=True)
class Meaning:
    """The part all rules share. `code` and `confidence` are None where the weight is normal."""

    weight: Weight
    code: str
    confidence: Confidence | None
    source: str


@dataclass(frozen=True)
class ThrottleRule:
    """A clocks event reason: applies when the bit was set in `least_samples` samples or more.

    With `outside_waves` those in which the power check's waves ran do not count.
    """

    bit: int
    text: str
    least_samples: int
    meaning: Meaning
    outside_waves: bool = False


@dataclass(frozen=True)
class ThermalRule:
    """Applies when the quantity is at most, or more than, the limit in degrees Celsius; one of them is None."""

    quantity: Quantity
    at_most: float | None
    more_than: float | None
    meaning: Meaning

    def applies(self, value_c: float) -> bool:
        """Whether this value is one the rule is about."""
        return (self.at_most is not None and value_c <= self.at_most) or (
            self.more_than is not None and value_c > self.more_than
        )


class Traffic(StrEnum):
    """Fields of a check's coverage (types.Coverage) that count bytes moved."""

    MEMORY = "bytes_moved"
    PCIE = "pcie_bytes_moved"
    NVLINK = "nvlink_bytes_moved"


@dataclass(frozen=True)
class CounterRule:
    """Applies when a counter rose by more than `limit`, over the run or per terabyte of `traffic` ("": the run).

    A rate is judged only from `least` on: a single error on little traffic is no rate.
    """

    counters: tuple[str, ...]
    limit: float
    traffic: str
    least: int
    meaning: Meaning


@dataclass(frozen=True)
class EventRule:
    """Applies when NVML reported such an event."""

    event: str
    meaning: Meaning


@dataclass(frozen=True)
class LinkRule:
    """Applies when the PCIe link stayed below its highest generation through `least_seconds` of checks."""

    least_seconds: float
    meaning: Meaning


class PowerQuantity(StrEnum):
    """What is judged of a GPU over the phases of the power check; policy.yaml says what each is."""

    POWER_SHARE = "power_share"
    CLOCK_SHARE_OF_MEDIAN = "clock_share_of_median"
    CLOCK_SHARE_OF_MAXIMUM = "clock_share_of_maximum"
    ABOVE_NODE_MEDIAN = "above_node_median_c"
    BRAKE = "brake_seconds"
    SLOWDOWN = "slowdown_seconds"
    THERMAL = "thermal_seconds"


@dataclass(frozen=True)
class PowerRule:
    """Applies when the quantity is less than, or more than, the limit; one of them is None."""

    quantity: PowerQuantity
    less_than: float | None
    more_than: float | None
    meaning: Meaning

    def applies(self, value: float) -> bool:
        """Whether this value is one the rule is about."""
        return (self.less_than is not None and value < self.less_than) or (
            self.more_than is not None and value > self.more_than
        )


@dataclass(frozen=True)
class SensorRule:
    """What a sampled value, or a limit, can be on any GPU: outside of it the sensor or its driver is wrong."""

    at_least: float
    at_most: float
    source: str


@dataclass(frozen=True)
class TelemetryPolicy:
    """All rules. `needed_columns` must have been sampled in `needed_share` of the run for it to say enough. `sensors`
    are by the name of the column or limit."""

    version: str
    needed_columns: tuple[str, ...]
    needed_share: float
    throttle: Mapping[int, ThrottleRule]
    thermal: tuple[ThermalRule, ...]
    pcie_generation: LinkRule
    counters: tuple[CounterRule, ...]
    events: Mapping[str, EventRule]
    power: tuple[PowerRule, ...]
    sensors: Mapping[str, SensorRule]


_MEANING = ("verdict", "source")
_MEANING_OPTIONAL = ("code", "confidence")


def _meaning(value: Located, entry: dict[str, Located]) -> Meaning:
    weight = entry["verdict"].choice(Weight)
    source = entry["source"].text()
    given = [key for key in _MEANING_OPTIONAL if key in entry]
    if weight is Weight.NORMAL:
        if given:
            raise entry[given[0]].error(f"{given[0]} makes no sense where the verdict is normal: leave it out")
        return Meaning(weight, "", None, source)
    if len(given) < len(_MEANING_OPTIONAL):
        raise value.error(f"{', '.join(key for key in _MEANING_OPTIONAL if key not in entry)} missing")
    code, confidence = entry["code"].text(), entry["confidence"].choice(Confidence)
    if code not in load_reasons():
        raise entry["code"].error(f"code {code!r} is not in reasons.yaml")
    if weight is Weight.FAIL and confidence is Confidence.DERIVED:
        raise entry["confidence"].error("a derived figure may only warn")
    return Meaning(weight, code, confidence, source)


def _number(entry: dict[str, Located], key: str) -> float | None:
    if key not in entry:
        return None
    number = entry[key].number()
    if not math.isfinite(number):
        raise entry[key].error(f"must be a finite number, not {entry[key].text()!r}")
    return number


def _one_of(value: Located, entry: dict[str, Located], keys: tuple[str, ...]) -> None:
    if sum(key in entry for key in keys) != 1:
        raise value.error(f"needs one of {', '.join(keys)}")


def _throttle(value: Located) -> ThrottleRule:
    entry = value.mapping(("bit", "meaning", *_MEANING), ("least_samples", "outside_waves", *_MEANING_OPTIONAL))
    bit = entry["bit"].integer()
    if bit <= 0 or bit & (bit - 1):
        raise entry["bit"].error(f"must be a single bit, not {bit:#x}")
    least = entry["least_samples"].integer() if "least_samples" in entry else 1
    if least < 1:
        raise entry["least_samples"].error("must be 1 or more")
    outside = entry["outside_waves"].flag() if "outside_waves" in entry else False
    return ThrottleRule(bit, entry["meaning"].text(), least, _meaning(value, entry), outside)


def _thermal(value: Located) -> ThermalRule:
    entry = value.mapping(("quantity", *_MEANING), ("at_most", "more_than", *_MEANING_OPTIONAL))
    _one_of(value, entry, ("at_most", "more_than"))
    return ThermalRule(
        entry["quantity"].choice(Quantity),
        _number(entry, "at_most"),
        _number(entry, "more_than"),
        _meaning(value, entry),
    )


def _counter(value: Located) -> CounterRule:
    limits = ("more_than", "more_than_per_tb")
    entry = value.mapping(("counters", *_MEANING), (*limits, "traffic", "least", *_MEANING_OPTIONAL))
    _one_of(value, entry, limits)
    per_tb = "more_than_per_tb" in entry
    if per_tb != ("traffic" in entry) or per_tb != ("least" in entry):
        raise value.error("traffic and least belong to more_than_per_tb: give all three or none")
    limit = _number(entry, "more_than_per_tb" if per_tb else "more_than")
    assert limit is not None
    return CounterRule(
        counters=entry["counters"].texts(),
        limit=limit,
        traffic=str(entry["traffic"].choice(Traffic)) if per_tb else "",
        least=entry["least"].integer() if per_tb else 0,
        meaning=_meaning(value, entry),
    )


def _link(value: Located) -> LinkRule:
    entry = value.mapping(("least_seconds", *_MEANING), _MEANING_OPTIONAL)
    return LinkRule(entry["least_seconds"].number(), _meaning(value, entry))


def _power(value: Located) -> PowerRule:
    entry = value.mapping(("quantity", *_MEANING), ("less_than", "more_than", *_MEANING_OPTIONAL))
    _one_of(value, entry, ("less_than", "more_than"))
    return PowerRule(
        entry["quantity"].choice(PowerQuantity),
        _number(entry, "less_than"),
        _number(entry, "more_than"),
        _meaning(value, entry),
    )


def _event(value: Located) -> EventRule:
    entry = value.mapping(("event", *_MEANING), _MEANING_OPTIONAL)
    return EventRule(entry["event"].text(), _meaning(value, entry))


def _sensors(value: Located) -> dict[str, SensorRule]:
    sensors: dict[str, SensorRule] = {}
    for item in value.items():
        entry = item.mapping(("names", "at_least", "at_most", "source"))
        least, most = _number(entry, "at_least"), _number(entry, "at_most")
        assert least is not None and most is not None
        if least >= most:
            raise entry["at_most"].error(f"must be more than at_least, {least:g}")
        for name in entry["names"].texts():
            if name in sensors:
                raise item.error(f"{name!r} is described twice")
            sensors[name] = SensorRule(least, most, entry["source"].text())
    return sensors


@cache
def load_policy(path: Path = DEFAULT_PATH) -> TelemetryPolicy:
    """Read the rules; raises HardwareDataError naming file and line."""
    sections = ("throttle", "thermal", "pcie_generation", "counters", "events", "power", "sensors")
    entry = load(path).mapping(("version", "needed_columns", "needed_share", *sections))
    share = entry["needed_share"].number()
    if not 0 <= share <= 1:
        raise entry["needed_share"].error(f"must be a number from 0 to 1, not {share:g}")
    throttle: dict[int, ThrottleRule] = {}
    for item in entry["throttle"].items():
        rule = _throttle(item)
        if rule.bit in throttle:
            raise item.error(f"bit {rule.bit:#x} is described twice")
        throttle[rule.bit] = rule
    events: dict[str, EventRule] = {}
    for item in entry["events"].items():
        event = _event(item)
        if event.event in events:
            raise item.error(f"event {event.event!r} is described twice")
        events[event.event] = event
    return TelemetryPolicy(
        version=entry["version"].text(),
        needed_columns=entry["needed_columns"].texts(),
        needed_share=share,
        throttle=throttle,
        thermal=tuple(map(_thermal, entry["thermal"].items())),
        pcie_generation=_link(entry["pcie_generation"]),
        counters=tuple(map(_counter, entry["counters"].items())),
        events=events,
        power=tuple(map(_power, entry["power"].items())),
        sensors=_sensors(entry["sensors"]),
    )
