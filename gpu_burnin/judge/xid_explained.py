"""What the policy says of one XID or SXid, and what a run makes of it: for who has read the number in a log. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_burnin.hardware import NvlinkRule, Preflight, Runtime, XidPolicy, XidTable, load_reasons, load_xids
from gpu_burnin.judge.xid import UNKNOWN, Decision, When, outcome
from gpu_burnin.types import Action, Verdict


@dataclass(frozen=True)
class Outcome:
    """What a run makes of the code: the verdict that it brings (None: no more than a warning) and the code of reason or
    warning (None: it is not judged)."""

    verdict: Verdict | None
    reason: str | None


@dataclass(frozen=True)
class ByText:
    """A refinement by the line's text: the first pattern that is found decides."""

    pattern: str
    preflight: Preflight
    runtime: Runtime
    action: Action


@dataclass(frozen=True)
class ByRegisters:
    """A refinement by the registers in the line of an NVLink 5 error."""

    units: tuple[str, ...]
    statuses: tuple[int, ...]
    reasons: tuple[int, ...]
    severity: str
    preflight: Preflight
    runtime: Runtime
    action: Action
    hint: str


@dataclass(frozen=True)
class ExplainedXid:
    """The policy for a code, and what becomes of it: when it comes during a run, before it, and before it where users'
    work may have caused it, since a burn-in had passed in this boot. `known` False: nobody has described the code."""

    kind: str
    code: int
    known: bool
    meaning: str
    preflight: Preflight
    runtime: Runtime
    action: Action
    during_run: Outcome
    before_run: Outcome
    before_run_after_pass: Outcome
    own_kill: bool = False
    by_text: tuple[ByText, ...] = ()
    by_registers: tuple[ByRegisters, ...] = ()
    source: str = ""


def explained(code: int, *, sxid: bool, table: XidTable | None = None) -> ExplainedXid:
    """What is known of a code; for one that is not in the table, what becomes of such a code."""
    table = table or load_xids()
    policy = table.policy(code, sxid=sxid)
    if policy is None:
        return _explained(code, sxid, UNKNOWN, "the code is not in the table")
    decision = Decision(policy.preflight, policy.runtime, policy.action, policy.meaning)
    return _explained(code, sxid, decision, policy.meaning, policy, () if sxid else table.nvlink5)


def all_explained(table: XidTable | None = None) -> Iterator[ExplainedXid]:
    """Every code of the table: XIDs, then SXids."""
    table = table or load_xids()
    for codes, sxid in ((table.xids, False), (table.sxids, True)):
        for code in sorted(codes):
            yield explained(code, sxid=sxid, table=table)


def _explained(
    code: int,
    sxid: bool,
    decision: Decision,
    meaning: str,
    policy: XidPolicy | None = None,
    nvlink5: tuple[NvlinkRule, ...] = (),
) -> ExplainedXid:
    return ExplainedXid(
        kind="SXid" if sxid else "XID",
        code=code,
        known=decision.known,
        meaning=meaning,
        preflight=decision.preflight,
        runtime=decision.runtime,
        action=decision.action,
        during_run=_outcome(decision, When.RUN),
        before_run=_outcome(decision, When.BEFORE),
        before_run_after_pass=_outcome(decision, When.USERS),
        own_kill=policy.own_kill if policy else False,
        by_text=tuple(
            ByText(rule.pattern.pattern, rule.preflight, rule.runtime, rule.action)
            for rule in (policy.text_rules if policy else ())
        ),
        by_registers=tuple(
            ByRegisters(
                tuple(sorted(rule.units)),
                tuple(sorted(rule.statuses)),
                tuple(sorted(rule.reasons)),
                str(rule.severity),
                rule.preflight,
                rule.runtime,
                rule.action,
                rule.hint,
            )
            for rule in nvlink5
            if rule.code == code
        ),
        source=policy.source if policy else "",
    )


def _outcome(decision: Decision, when: When) -> Outcome:
    reason, _, holds = outcome(decision, when)
    return Outcome(load_reasons()[reason].severity if reason and holds else None, reason)
