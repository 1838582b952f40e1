"""Words that a node or a person wrote, as they may stand in taints, conditions and events. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from gpu_burnin.admission.decide.times import when
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.record import Ask
from gpu_burnin.types import Verdict

MOST_CHARS = 300
# How the reason begins of what a pause holds back.
PAUSED = "the fleet is paused"
# Of a finding that stands beside a person's words.
_BRIEF_CHARS = 140
# The value of a taint is a label's: at most 63 of these.
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,61}[A-Z0-9]")


def sentence(text: str, most: int = MOST_CHARS) -> str:
    """One line of at most `most` characters, whatever was in it."""
    line = text[: 2 * most]
    if not line.isprintable():
        line = "".join(char if char.isprintable() else " " for char in line)
    line = " ".join(line.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def brief(text: str) -> str:
    """A finding short enough that the words of a person have room behind it."""
    return sentence(text, _BRIEF_CHARS)


def fault(statement: Statement) -> str:
    """The code of what a run found, its verdict where it names none that can be one: "" for a PASS."""
    if statement.verdict is Verdict.PASS:
        return ""
    return code_of(statement.code, str(statement.verdict))


def code_of(text: str, otherwise: str) -> str:
    """A node's own code where it can be one."""
    return text if _CODE.fullmatch(text) else otherwise


def active(ask: Ask | None, now: datetime) -> Ask | None:
    """An ask of a person, unless its time is over. One whose end cannot be read has none."""
    if ask is None:
        return None
    until = when(ask.until)
    return ask if until is None or now < until else None


def ask_sentence(what: str, ask: Ask) -> str:
    """What a person asks for, in a sentence."""
    until = f" until {ask.until}" if ask.until else ""
    return f"{what} by {ask.who}{until}: {ask.why}"
