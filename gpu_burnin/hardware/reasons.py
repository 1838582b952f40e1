"""The stable codes a run gives for not being a PASS: summary, what to do, default action (reasons.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.located import load
from gpu_burnin.types import JSON, Action, Reason, Verdict

DEFAULT_PATH = Path(__file__).with_name("reasons.yaml")


@dataclass(frozen=True)
class ReasonInfo:
    """One code. `severity` is FAIL or INCONCLUSIVE; `what_to_do` is plain English for the person on call.

    `note`: as a warning it asks for nothing and is no sign of trouble, so reports tell it apart.
    """

    code: str
    summary: str
    what_to_do: str
    action: Action
    severity: Verdict
    note: bool = False


@cache
def load_reasons(path: Path = DEFAULT_PATH) -> dict[str, ReasonInfo]:
    """All codes by name, in the order of the file; raises HardwareDataError naming file and line."""
    table: dict[str, ReasonInfo] = {}
    for code, value in load(path).entries().items():
        if not code.replace("_", "").isalnum() or code != code.upper():
            raise value.error(f"code {code!r} must be upper case with underscores")
        entry = value.mapping(("summary", "what_to_do", "action", "severity"), ("note",))
        severity = entry["severity"].choice(Verdict)
        if severity is Verdict.PASS:
            raise entry["severity"].error("must be FAIL or INCONCLUSIVE")
        table[code] = ReasonInfo(
            code,
            entry["summary"].text(),
            entry["what_to_do"].text(),
            entry["action"].choice(Action),
            severity,
            entry["note"].flag() if "note" in entry else False,
        )
    return table


def what_to_do(code: str) -> str | None:
    """What the person on call does about a code; None for a code that is not listed (of a newer report)."""
    info = load_reasons().get(code)
    return info.what_to_do if info else None


def is_note(code: str) -> bool:
    """Whether a warning of this code is a note; one that is not listed (of a newer report) is a warning."""
    info = load_reasons().get(code)
    return info is not None and info.note


def make_reason(
    code: str,
    check: str,
    message: str,
    *,
    gpu: str | None = None,
    details: Mapping[str, JSON] | None = None,
    action: Action | None = None,
    severity: Verdict | None = None,
) -> Reason:
    """A Reason with the code's own action and severity unless given; KeyError for a code that is not listed."""
    info = load_reasons()[code]
    return Reason(
        code=code,
        check=check,
        message=message,
        gpu=gpu,
        details=dict(details or {}),
        action=info.action if action is None else action,
        severity=info.severity if severity is None else severity,
    )
