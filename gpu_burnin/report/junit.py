"""A report as JUnit XML, for CI systems that show test results.

FAIL is a failure, INCONCLUSIVE an error; nothing is ever marked as skipped, since readers count that as passed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from gpu_burnin.report.check_findings import link_of, units_of
from gpu_burnin.report.model import Report
from gpu_burnin.report.order import order_of
from gpu_burnin.types import Reason

# Characters that XML 1.0 cannot hold, not even escaped (XML 1.0, section 2.2).
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {"FAIL": "failure", "INCONCLUSIVE": "error"}


@dataclass(frozen=True)
class _Case:
    """One test case. `outcome` is PASS, FAIL or INCONCLUSIVE; `kind` its code and `message` why."""

    suite: str
    name: str
    outcome: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    text: str = ""


def to_junit(report: Report) -> bytes:
    """The report as JUnit XML: a suite for the run, each check and the self-tests; a case for each check and GPU."""
    cases = [*_checks(report), *_gaps(report), *_selftests(report)]
    cases = [*_run(report, cases), *cases]
    suites = list(dict.fromkeys(case.suite for case in cases))
    # What a run says of its whole self has no name of its own in a reader, so the node is put before it.
    root = ET.Element("testsuites", {"name": _text(f"gpu-burnin {report.node}"), **_counts(cases)})
    for suite in suites:
        root.append(_suite(report, suite, [case for case in cases if case.suite == suite]))
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _suite(report: Report, name: str, cases: list[_Case]) -> ET.Element:
    element = ET.Element(
        "testsuite",
        {
            "name": _text(name),
            **_counts(cases),
            # Readers want the time without a zone; it is UTC.
            "timestamp": re.sub(r"(\.\d+)?Z$", "", report.started_at),
            "hostname": _text(report.node),
        },
    )
    if name == "run":
        properties = ET.SubElement(element, "properties")
        facts = {"simulated": str(report.simulated).lower()}
        facts |= {key: getattr(report, key) for key in ("run_id", "level", "verdict", "action", "finished_at")}
        facts["order"] = order_of(report).text
        for key, value in facts.items():
            ET.SubElement(properties, "property", name=key, value=_text(value))
    seen: Counter[str] = Counter()
    for case in cases:
        seen[case.name] += 1
        again = f" #{seen[case.name]}" if seen[case.name] > 1 else ""
        test = ET.SubElement(
            element,
            "testcase",
            classname=_text(f"gpu_burnin.{name}"),
            name=_text(case.name + again),
            time=f"{case.seconds:.3f}",
        )
        if case.outcome in _TAGS:
            why = ET.SubElement(test, _TAGS[case.outcome], type=_text(case.kind), message=_text(case.message))
            why.text = _text(case.text or case.message)
    return element


def _counts(cases: Iterable[_Case]) -> dict[str, str]:
    all_cases = list(cases)
    outcomes = Counter(case.outcome for case in all_cases)
    return {
        "tests": str(len(all_cases)),
        "failures": str(outcomes["FAIL"]),
        "errors": str(outcomes["INCONCLUSIVE"]),
        "skipped": "0",
        "time": f"{sum(case.seconds for case in all_cases):.3f}",
    }


def _text(value: str) -> str:
    return _NOT_XML.sub("\ufffd", value)


def _why(reasons: Sequence[Reason]) -> tuple[str, str, str]:
    """Kind, message and text of what stands against a case; the worst reason comes first in a report."""
    kinds = ", ".join(dict.fromkeys(reason.code for reason in reasons))
    text = "\n".join(f"{reason.severity} {reason.code}: {reason.message}" for reason in reasons)
    return kinds, reasons[0].message, text


def _checks(report: Report) -> Iterator[_Case]:
    for check in report.checks:
        own = [
            reason
            for reason in report.reasons
            if (reason.check, reason.gpu) == (check.name, check.gpu)
            # A check of the node names the GPU in its reasons; the case is still its own.
            or (check.gpu is None and reason.check == check.name)
        ]
        kind, message, text = _why(own) if own else ("", f"{check.name} gave {check.verdict}", "")
        # What was found outside the check (nothing covered, a blind self-test) counts against its case too.
        outcomes = {check.verdict, *(reason.severity for reason in own)}
        outcome = next(name for name in ("FAIL", "INCONCLUSIVE", "PASS") if name in outcomes)
        yield _Case(check.name, report.label(check.gpu), outcome, check.seconds, kind or outcome, message, text)


def _gaps(report: Report) -> Iterator[_Case]:
    """What was to run and did not; what this version has no check for is no case."""
    done = {(check.name, check.gpu) for check in report.checks}
    planned = {check["name"] for check in report.plan.get("checks", ())}
    for gap in report.coverage.not_run:
        left_out = gap.why.startswith("left out")
        if (gap.check, gap.gpu) in done or not (gap.check in planned or left_out):
            continue
        own = [reason for reason in report.reasons if (reason.check, reason.gpu) == (gap.check, gap.gpu)]
        kind, message, text = _why(own) if own else ("NOT_RUN", f"{gap.check} was not run: {gap.why}", "")
        outcome = "FAIL" if any(reason.severity == "FAIL" for reason in own) else "INCONCLUSIVE"
        yield _Case(gap.check, report.label(gap.gpu), outcome, 0.0, kind, message, text)


def _selftests(report: Report) -> Iterator[_Case]:
    for test in report.selftest:
        real, missed = test.real, "was not detected" if test.injected else "could not be injected"
        yield _Case(
            "selftest",
            f"{test.check} {test.fault} {report.label(test.gpu)}",
            "PASS" if test.caught else "FAIL" if real else "INCONCLUSIVE",
            test.latency_s or 0.0,
            real or "SELFTEST_BLIND",
            f"the injected fault {test.fault} {missed} by {test.check} ({test.scope})"
            if real is None
            else f"{test.check} was wrong before {test.fault} was injected: see {real} among the reasons",
        )


def _run(report: Report, others: list[_Case]) -> Iterator[_Case]:
    """The verdict, so that no reader can miss it, and the reasons that belong to no check that ran."""
    reasons = report.reasons
    kind, message, text = _why(reasons) if reasons else ("", "", "")
    yield _Case("run", "verdict", report.verdict, 0.0, kind, message, text)
    # A check of single GPUs has no case of the node, and a link between two of them is neither's.
    told = {(case.suite, case.name) for case in others}
    of_node = {check.name for check in report.checks if check.gpu is None}
    strays: dict[tuple[str, str], list[Reason]] = {}
    for reason in reasons:
        check, unit = reason.check, report.label(reason.gpu)
        if check not in of_node and (check, unit) not in told:
            ends = units_of(report, reason) if reason.gpu is None and link_of(reason) else [unit]
            strays.setdefault((check, " and ".join(ends)), []).append(reason)
    for (check, unit), found in strays.items():
        kind, message, text = _why(found)
        severity = "FAIL" if any(reason.severity == "FAIL" for reason in found) else "INCONCLUSIVE"
        yield _Case("run", f"{check} {unit}", severity, 0.0, kind, message, text)
