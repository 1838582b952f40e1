"""NVLink 5 errors (XID 144 to 150) decoded from the registers in the log line: pure, the table is data (xid.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.hardware import NVLINK5_CODES, NvlinkRule, Preflight, Severity

# "145, RLW_REMAP Nonfatal XC1 i0 Link 12 (0x00000004 0x00000001 0x00000000 ...)": unit, severity, intrinfo,
# errorstatus. A process may be named between code and unit.
_LINE = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9_]+(?:/[A-Z0-9_]+)*)\s+(?P<severity>Non-?fatal|(?:Link )?Fatal)\b"
    r"[^(]*\((?P<intrinfo>0x[0-9a-f]+)\s+(?P<status>0x[0-9a-f]+)",
    re.IGNORECASE,
)
_REASON_SHIFT, _REASON_MASK = 20, 0x3F
_GRAVEST_FIRST = (Preflight.FAIL, Preflight.HOLD, Preflight.RETRY, Preflight.WARN, Preflight.LOG)


@dataclass(frozen=True)
class NvlinkError:
    """The decoded line. `reason` is bits 20 to 25 of intrinfo, `says_fatal` what the line itself calls it."""

    code: int
    units: frozenset[str]
    reason: int
    status: int
    says_fatal: bool


def decode(code: int, text: str) -> NvlinkError | None:
    """The registers of an NVLink 5 line; None for other codes and for lines without registers."""
    match = _LINE.search(text) if code in NVLINK5_CODES else None
    if match is None:
        return None
    return NvlinkError(
        code=code,
        units=frozenset(match["unit"].upper().split("/")),
        reason=int(match["intrinfo"], 16) >> _REASON_SHIFT & _REASON_MASK,
        status=int(match["status"], 16),
        says_fatal=not match["severity"].lower().startswith("non"),
    )


def rules_for(error: NvlinkError, rules: Iterable[NvlinkRule]) -> tuple[NvlinkRule, ...]:
    """The rules that together explain the whole status; empty when any part of it is unknown."""
    candidates = [
        rule for rule in rules if rule.code == error.code and rule.units & error.units and error.reason in rule.reasons
    ]
    whole = [rule for rule in candidates if error.status in rule.statuses]
    if whole:
        return tuple(whole)
    bits = [1 << n for n in range(error.status.bit_length()) if error.status >> n & 1]
    parts = [next((rule for rule in candidates if rule.flags and bit in rule.statuses), None) for bit in bits]
    return tuple(rule for rule in parts if rule) if parts and all(parts) else ()


def worst_rule(error: NvlinkError, rules: Iterable[NvlinkRule]) -> NvlinkRule | None:
    """The gravest of the rules for this error; None when it is unknown."""
    found = rules_for(error, rules)
    return min(found, key=lambda rule: (_GRAVEST_FIRST.index(rule.preflight), -rule.action.rank), default=None)


def is_understated(error: NvlinkError, rule: NvlinkRule) -> bool:
    """Whether the line calls fatal what the table does not."""
    return error.says_fatal and rule.severity is Severity.NONFATAL
