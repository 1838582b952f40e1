"""Every code that this project gives or reads in a kernel log: what it means, and what to do. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_burnin.admission.decide import CODES
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_reasons, load_xids
from gpu_burnin.judge.xid_explained import ExplainedXid, Outcome, all_explained, explained
from gpu_burnin.node import evidence_codes
from gpu_burnin.report.order import order_for
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap
from gpu_burnin.types import Action, Verdict

SCHEMA = "muster-explain/v1"
_XID = re.compile(r"(s?xid)?[\s_:=-]*(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class Code:
    """A reason code. `verdict`, unless the check says otherwise, and `action` are None for codes of the admission."""

    code: str
    summary: str
    what_to_do: str
    verdict: Verdict | None = None
    action: Action | None = None


Found = Code | ExplainedXid


def codes() -> dict[str, Code]:
    """All reason codes by name, in alphabetical order."""
    found = {
        name: Code(name, info.summary, info.what_to_do, info.severity, info.action)
        for name, info in load_reasons().items()
    }
    found |= {name: Code(name, *texts) for name, texts in {**evidence_codes.CODES, **CODES}.items()}
    return dict(sorted(found.items()))


def find(text: str) -> tuple[Found, ...]:
    """What a code or the number of an XID means: several where a number is an XID and an SXid.

    Raises GpuBurninError for a code that is not there. A number that nobody has described has an answer: the policy's.
    """
    if match := _XID.fullmatch(text.strip()):
        return tuple(_numbered(match[1], int(match[2])))
    known = codes()
    if (name := text.upper()) in known:
        return (known[name],)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise GpuBurninError(f"no code {text}; {hint}gpu-burnin explain lists all")


def find_all(words: Sequence[str]) -> tuple[Found, ...]:
    """What each of several codes means, in their order; `xid` and `sxid` belong to the number that follows.

    Commas between codes, as a report has them, are left out. Raises GpuBurninError for a code that is not there.
    """
    text = re.sub(r"\b(s?xid)\s+(?=\d)", r"\1", " ".join(words).replace(",", " "), flags=re.IGNORECASE)
    found = [one for word in text.split() for one in find(word)]
    if not found:
        raise GpuBurninError("an empty text is no code; gpu-burnin explain lists all")
    return tuple(dict.fromkeys(found))


def completions(typed: str) -> list[str]:
    """What a shell may make of the beginning of a code: codes, and XIDs once a number has begun."""
    named = [name for name in codes() if name.startswith(typed.upper())]
    match = re.fullmatch(r"(xid|sxid)?(\d+)", typed, re.IGNORECASE)
    if not match:
        return named
    prefix, table = match[1] or "", load_xids()
    numbers = table.sxids if prefix.lower() == "sxid" else table.xids
    return [*named, *(f"{prefix}{code}" for code in sorted(numbers) if str(code).startswith(match[2]))]


def document(found: Sequence[Found] | None) -> dict[str, Any]:
    """What was found, or (None) all there is, as JSON values."""
    shown = (*codes().values(), *all_explained()) if found is None else found
    return {
        "schema": SCHEMA,
        "codes": [_json(one) for one in shown if isinstance(one, Code)],
        "xids": [_json(one) for one in shown if isinstance(one, ExplainedXid)],
    }


def render(found: Sequence[Found] | None, width: int = STANDARD_WIDTH) -> str:
    """The same as text; of all there is, a line for each code."""
    if found is not None:
        return "\n\n".join("\n".join(_lines(one, width)) for one in found) + "\n"
    table = load_xids()
    lines = table_with_text([(one.code, one.summary) for one in codes().values()], width, indent="")
    numbers = f"{len(table.xids)} XIDs and {len(table.sxids)} SXids"
    more = f"One of {numbers}: `gpu-burnin explain 79`. All of them: `gpu-burnin explain --json`."
    return "\n".join([*lines, "", *wrap(more, width)]) + "\n"


def _numbered(kind: str | None, number: int) -> Iterator[ExplainedXid]:
    """The XID of this number, the SXid, or both where only the number is known and both are described."""
    table = load_xids()
    asked = (kind.lower() == "sxid",) if kind else tuple(s for s in (False, True) if table.policy(number, sxid=s))
    for sxid in asked or (False,):
        yield explained(number, sxid=sxid, table=table)


def _json(one: Found) -> Mapping[str, Any]:
    action = one.action
    told: Mapping[str, Any] = to_json(one)
    return {**told, "order": order_for(action).text if action else None}


def _lines(one: Found, width: int) -> list[str]:
    return _of_code(one, width) if isinstance(one, Code) else _of_xid(one, width)


def _of_code(one: Code, width: int) -> list[str]:
    lines = wrap(f"{one.code}: {one.summary}.", width)
    if one.verdict and one.action:
        lines += [f"Verdict, unless the check says otherwise: {one.verdict}."]
        lines += wrap(f"First action: {one.action} ({order_for(one.action).text}).", width)
    return [*lines, *wrap(f"What to do: {one.what_to_do}", width)]


def _of_xid(one: ExplainedXid, width: int) -> list[str]:
    advice = load_reasons()[one.during_run.reason].what_to_do if one.during_run.reason else ""
    lines = [
        *wrap(f"{one.kind} {one.code}: {one.meaning}.", width),
        *wrap(f"First action: {one.action} ({order_for(one.action).text}).", width),
        *wrap(f"What to do: {advice}" if advice else "", width),
        "What a run makes of it in the kernel log:",
        *table_with_text(
            [
                ("during the run", f"preflight: {one.preflight}", _came_to(one.during_run)),
                ("before it", f"preflight: {one.preflight}", _came_to(one.before_run)),
                (
                    "before it, after a PASS of this boot",
                    f"runtime: {one.runtime}",
                    _came_to(one.before_run_after_pass),
                ),
            ],
            width,
        ),
    ]
    for text in _refinements(one):
        lines += wrap(text, width, rest="  ")
    return lines


def _refinements(one: ExplainedXid) -> Iterator[str]:
    if one.own_kill:
        yield "It also follows when a process on the GPU is killed; one that the run itself has killed does not count."
    if one.by_registers:
        yield f"The registers in the line decide first: {len(one.by_registers)} rules by unit and status (--json)."
    for rule in one.by_text:
        decision = f"preflight {rule.preflight}, runtime {rule.runtime}, action {rule.action}"
        yield f"Where the line says /{rule.pattern}/: {decision}."
    if one.source:
        yield f"Source: {one.source}."


def _came_to(outcome: Outcome) -> str:
    if outcome.reason is None:
        return "not judged"
    return f"{outcome.verdict} ({outcome.reason})" if outcome.verdict else f"a warning ({outcome.reason})"
