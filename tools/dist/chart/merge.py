"""Trees of YAML that differ by a condition, as one tree with choices. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class _Absent:
    """What is not there."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True)
class Raw:
    """What Helm writes, of an expression in braces: a text, or below a key more of the tree."""

    expression: str


@dataclass(frozen=True)
class Choice:
    """One of two trees, by what a variable of the template says."""

    condition: str
    yes: Any
    no: Any


def merge(condition: str, yes: Any, no: Any) -> Any:
    """What is `yes` where the condition holds, and `no` where it does not, with choices as far below as can be."""
    if yes == no:
        return yes
    if isinstance(yes, dict) and isinstance(no, dict):
        keys = {**yes, **no}
        return {key: merge(condition, yes.get(key, ABSENT), no.get(key, ABSENT)) for key in keys}
    if isinstance(yes, list) and isinstance(no, list) and len(yes) == len(no):
        return [merge(condition, *pair) for pair in zip(yes, no, strict=True)]
    if isinstance(yes, list) and isinstance(no, list) and (common := min(len(yes), len(no))) and yes[:common] == no[:common]:
        more = [Choice(condition, one, ABSENT) for one in yes[common:]]
        return [*yes[:common], *more, *(Choice(condition, ABSENT, one) for one in no[common:])]
    if isinstance(yes, Choice) and isinstance(no, Choice) and yes.condition == no.condition:
        return Choice(yes.condition, merge(condition, yes.yes, no.yes), merge(condition, yes.no, no.no))
    return Choice(condition, yes, no)
