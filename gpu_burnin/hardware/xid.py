"""The XID and SXid policy: what each code of the NVIDIA driver means for a node, as data (xid.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.located import Located, load
from gpu_burnin.types import Action

DEFAULT_PATH = Path(__file__).with_name("xid.yaml")
NVLINK5_CODES = range(144, 151)


class Preflight(StrEnum):
    """What a code means while only our own tests run on the GPU."""

    FAIL = "fail"  # the node fails, with the entry's action
    RETRY = "retry"  # our test's doing or the hardware's: inconclusive, tested once more, then a person looks
    HOLD = "hold"  # inconclusive: a person looks
    WARN = "warn"  # counted and shown, not judged
    LOG = "log"  # shown only


class Runtime(StrEnum):
    """What a code means on a node in production."""

    REVOKE = "revoke"  # the admission is taken back
    WARN = "warn"  # retest after drain
    LOG = "log"


class Severity(StrEnum):
    """How bad NVIDIA's catalog calls an NVLink 5 error."""

    NONFATAL = "nonfatal"
    FATAL = "fatal"
    LINK_FATAL = "link_fatal"


@dataclass(frozen=True)
class TextRule:
    """A refinement by the text of the log line: the first rule whose pattern is found decides."""

    pattern: re.Pattern[str]
    preflight: Preflight
    runtime: Runtime
    action: Action


@dataclass(frozen=True)
class XidPolicy:
    """One code. `own_kill`: the code also follows when a process with work on the GPU is killed."""

    code: int
    meaning: str
    preflight: Preflight
    runtime: Runtime
    action: Action
    source: str
    own_kill: bool = False
    text_rules: tuple[TextRule, ...] = ()

    def for_text(self, text: str) -> tuple[Preflight, Runtime, Action]:
        """The policy for this very line."""
        for rule in self.text_rules:
            if rule.pattern.search(text):
                return rule.preflight, rule.runtime, rule.action
        return self.preflight, self.runtime, self.action


@dataclass(frozen=True)
class NvlinkRule:
    """What the registers of an NVLink 5 error (XID 144 to 150) mean.

    `statuses` are values of errorstatus; with `flags` several may be set at once. `reasons` are bits 20 to 25 of
    intrinfo. `severity` is nonfatal, fatal or link_fatal, as NVIDIA's catalog says; `hint` is where to look.
    """

    code: int
    units: frozenset[str]
    statuses: frozenset[int]
    reasons: frozenset[int]
    flags: bool
    severity: Severity
    preflight: Preflight
    runtime: Runtime
    action: Action
    hint: str = ""


@dataclass(frozen=True)
class XidTable:
    """The policies by code: GPUs (xids) and NVSwitches (sxids). `version` is that of the data."""

    version: str
    xids: dict[int, XidPolicy]
    sxids: dict[int, XidPolicy]
    nvlink5: tuple[NvlinkRule, ...] = ()

    def policy(self, code: int, *, sxid: bool) -> XidPolicy | None:
        """The policy of a code, None for one nobody has described."""
        return (self.sxids if sxid else self.xids).get(code)


_DECISION = ("preflight", "runtime", "action")


def _decision(entry: dict[str, Located]) -> tuple[Preflight, Runtime, Action]:
    return entry["preflight"].choice(Preflight), entry["runtime"].choice(Runtime), entry["action"].choice(Action)


def _text_rule(value: Located) -> TextRule:
    entry = value.mapping(("match", *_DECISION))
    try:
        pattern = re.compile(entry["match"].text(), re.IGNORECASE)
    except re.error as error:
        raise entry["match"].error(f"is not a regular expression: {error}") from error
    return TextRule(pattern, *_decision(entry))


def _codes(value: Located) -> list[int]:
    """A code, or a list of codes and "FIRST-LAST" ranges."""
    texts = value.texts() if value.is_list else (value.text(),)
    codes: list[int] = []
    for text in texts:
        first, _, last = text.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise value.error(f"{text!r} is neither a code nor a range FIRST-LAST")
        codes.extend(range(int(first), int(last or first) + 1))
    return codes


def _table(value: Located) -> dict[int, XidPolicy]:
    table: dict[int, XidPolicy] = {}
    for item in value.items():
        entry = item.mapping(("code", "meaning", *_DECISION, "source"), ("own_kill", "text"))
        preflight, runtime, action = _decision(entry)
        for code in _codes(entry["code"]):
            if code in table:
                raise entry["code"].error(f"code {code} is described twice")
            table[code] = XidPolicy(
                code=code,
                meaning=entry["meaning"].text(),
                preflight=preflight,
                runtime=runtime,
                action=action,
                source=entry["source"].text(),
                own_kill=entry["own_kill"].flag() if "own_kill" in entry else False,
                text_rules=tuple(map(_text_rule, entry["text"].items())) if "text" in entry else (),
            )
    return table


def _integers(value: Located) -> frozenset[int]:
    return frozenset(item.integer() for item in value.items())


def _nvlink_rule(value: Located) -> NvlinkRule:
    entry = value.mapping(("code", "unit", "status", "flags", "severity", *_DECISION), ("reason", "hint"))
    code = entry["code"].integer()
    if code not in NVLINK5_CODES:
        raise entry["code"].error(f"must be from {NVLINK5_CODES[0]} to {NVLINK5_CODES[-1]}, not {code}")
    units = entry["unit"].texts() if entry["unit"].is_list else (entry["unit"].text(),)
    return NvlinkRule(
        code,
        frozenset(units),
        _integers(entry["status"]),
        _integers(entry["reason"]) if "reason" in entry else frozenset({0}),
        entry["flags"].flag(),
        entry["severity"].choice(Severity),
        *_decision(entry),
        entry["hint"].text() if "hint" in entry else "",
    )


def _nvlink_rules(value: Located) -> tuple[NvlinkRule, ...]:
    """All rules; two that say something of the same registers are an error."""
    rules: list[NvlinkRule] = []
    seen: set[tuple[int, str, int, int]] = set()
    for item in value.items():
        rule = _nvlink_rule(item)
        keys = {(rule.code, u, r, s) for u in rule.units for r in rule.reasons for s in rule.statuses}
        if keys & seen:
            raise item.error(f"code {rule.code}: unit, reason and status are described twice")
        seen |= keys
        rules.append(rule)
    return tuple(rules)


@cache
def load_xids(path: Path = DEFAULT_PATH) -> XidTable:
    """Read the table; raises HardwareDataError naming file and line."""
    entry = load(path).mapping(("version", "xids", "sxids", "nvlink5"))
    return XidTable(
        entry["version"].text(),
        _table(entry["xids"]),
        _table(entry["sxids"]),
        _nvlink_rules(entry["nvlink5"]),
    )
