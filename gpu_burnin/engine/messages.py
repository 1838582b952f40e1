"""What a worker may say, and when. A worker is not trusted: anything else is a broken protocol.

A worker with bad memory or a library that writes where it should not must not bring the supervisor down, nor report
for another GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpu_burnin.engine.wire import encode, result_from_json
from gpu_burnin.hardware.reasons import load_reasons
from gpu_burnin.system.codec import from_json
from gpu_burnin.system.host_limits import Scarce
from gpu_burnin.types import CheckResult, Reason, SelftestResult

# What a worker may offer the others at a time, as JSON: the answer with the offers of 16 GPUs fits into a pipe of
# 64 KiB, so that the supervisor never waits for a worker that does not read.
MAX_OFFER_BYTES = 3072


class ProtocolError(Exception):
    """The worker sent something that is no message, or not one for this moment."""


@dataclass(frozen=True)
class Ready:
    """The GPU is open; `facts` are what the backend says of its libraries."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far the check is, for the display."""

    data: Mapping[str, Any]


@dataclass(frozen=True)
class Share:
    """Data for the workers of the other GPUs in the same check."""

    data: Any


@dataclass(frozen=True)
class Selftests:
    """The self-test is over."""

    results: tuple[SelftestResult, ...]


@dataclass(frozen=True)
class Result:
    """The check is over."""

    result: CheckResult


@dataclass(frozen=True)
class Failed:
    """The step could not be done, and why. `scarce` is what the host lacked for it; `code` is the reason
    where the device itself reported a fault."""

    message: str
    scarce: Scarce | None = None
    code: str | None = None


Message: TypeAlias = Ready | Progress | Share | Selftests | Result | Failed


def parse(data: Mapping[str, Any], op: str, check: str, gpu: str | None) -> Message:
    """The message of a worker that is at the step `op` of `check` on `gpu` (UUID, None for the node).

    Raises ProtocolError for one that is malformed, comes at the wrong moment or names another check or GPU.
    """
    kind = data["type"]
    makers = _EXPECTED.get(op, {})
    if not isinstance(kind, str) or kind not in makers:
        raise ProtocolError(f"a message of type {kind!r:.40} at the step {op}")
    try:
        message = makers[kind](data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"a malformed {kind} message ({error!r:.120})") from None
    spoken = [message.result] if isinstance(message, Result) else []
    tests = message.results if isinstance(message, Selftests) else ()
    names = {(found.name, found.gpu) for found in spoken} | {(test.check, test.gpu) for test in tests}
    if names - {(check, gpu)}:
        raise ProtocolError(f"a {kind} message that names another check or GPU")
    return message


def _ready(data: Mapping[str, Any]) -> Ready:
    return Ready(_mapping(data["facts"]))


def _progress(data: Mapping[str, Any]) -> Progress:
    progress = Progress(_mapping(data["data"]))
    _seconds(progress.data.get("waited_s", 0.0))  # deadlines move by it
    return progress


def _share(data: Mapping[str, Any]) -> Share:
    if len(encode({"data": data["data"]})) > MAX_OFFER_BYTES:
        raise ValueError("an offer that is too large")
    return Share(data["data"])


def _failed(data: Mapping[str, Any]) -> Failed:
    code = data.get("code")
    if code is not None and _text(code) not in load_reasons():
        raise ValueError(f"an unknown reason {code!r:.40}")
    scarce = data.get("scarce")
    return Failed(_text(data["message"]), None if scarce is None else Scarce(scarce), code)


def _selftests(data: Mapping[str, Any]) -> Selftests:
    found = tuple(from_json(SelftestResult, result) for result in _list(data["results"]))
    for test in found:
        _seconds(test.latency_s)
        if test.changed_bits is not None and test.changed_bits < 0:
            raise ValueError(f"not a count: {test.changed_bits}")
        if test.real is not None:
            _reason(test.real, test.gpu)
            if test.real.check != test.check or (test.injected and test.detected):
                raise ValueError("a self-test that met a real fault of another check, or also saw its own fault")
    return Selftests(found)


def _result(data: Mapping[str, Any]) -> Result:
    found = result_from_json(_mapping(data["result"]))
    covered = found.coverage
    for seconds in (found.seconds, covered.verified_s, covered.waited_s or 0.0, *covered.verified_parts_s.values()):
        _seconds(seconds)
    for measurement in found.measurements:
        if (measurement.floor, measurement.floor_source, measurement.floor_confidence) != (None, None, None):
            raise ValueError("a measurement with a floor: floors are the supervisor's")
    for reason in found.reasons:
        _reason(reason, found.gpu)
    for series in found.series:
        if len(series.t_s) != len(series.values):
            raise ValueError("a series with times and values of different number")
    return Result(found)


def _reason(reason: Reason, gpu: str | None) -> None:
    # The check of the node covers all its GPUs.
    if gpu is not None and reason.gpu != gpu:
        raise ValueError("a reason about another GPU")


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"not a mapping: {value!r:.40}")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r:.40}")
    return value


def _seconds(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"no time in seconds: {value!r:.40}")


# What may come while the worker is at a step.
_EXPECTED: Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], Message]]] = {
    "open": {"ready": _ready, "failed": _failed},
    "selftest": {"selftest": _selftests, "failed": _failed, "progress": _progress},
    "check": {"result": _result, "failed": _failed, "progress": _progress, "share": _share},
}
