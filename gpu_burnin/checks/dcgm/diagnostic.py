"""The second opinion of NVIDIA's DCGM: reading what `dcgmi diag --json` says, and judging it. Pure.

The document is that of DCGM 4 (NVIDIA/DCGM, testing/python3/dcgm_diag_schema.json at 686e102, and the documents that
4.2.3 and 4.5.2 wrote on hardware: baldwinSPC/glimmer-burnin, runners/dcgm-diag/testdata). NVIDIA promises no stable
schema and asks to pin the release (DCGM documentation, reference, Diagnostic Errors), so any other release, shape or
status word is refused and reported. What was not run has no entry (dcgmi/tests/DiagTests.cpp, HelperJsonAddResult), so
the GPUs of each test are counted. A pass with an error beside it does not count (NVIDIA/DCGM issue 284).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_burnin.checks.dcgm.result import DiagnosticRow
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Gpu, Reason, Verdict

NAME = "dcgm"
# The level of dcgmi diag for a level of the burn-in.
DIAG_LEVELS: Mapping[str, int] = {"quick": 1, "standard": 2, "extended": 3}
# Releases whose document is known.
RELEASES: tuple[str, ...] = ("4.2", "4.3", "4.4", "4.5", "4.6")

PASS, FAIL, WARN, SKIP, NOT_RUN = "Pass", "Fail", "Warn", "Skip", "Not run"
_STATUSES = (PASS, FAIL, WARN, SKIP)
# dcgmErrorSeverity_t (dcgm_errors.h): DCGM_ERROR_CONFIG, a setting of the node and not its hardware.
_SEVERITY_CONFIG = 5
# dcgm_field_entity_group_t (dcgm_fields.h): DCGM_FE_GPU.
_GROUP_GPU = 1
# The category that looks at software only.
_DEPLOYMENT = "Deployment"
_MESSAGE_CHARS = 300


class DcgmUnknown(GpuBurninError):
    """The answer is not one that this version knows how to read."""


@dataclass(frozen=True)
class Outcome:
    """The result of one test on one entity. `entity` is a GPU number of DCGM, or -1 for the node as a whole."""

    entity: int
    label: str
    status: str
    messages: tuple[str, ...] = ()
    settings_only: bool = False

    @property
    def done(self) -> bool:
        """Whether the test was made at all, however it ended."""
        return self.status not in (SKIP, NOT_RUN)


@dataclass(frozen=True)
class DiagTest:
    """One test of the diagnostic with its outcomes, one for each GPU that the diagnostic knew."""

    category: str
    name: str
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Opinion:
    """A whole answer. `serials` are those of the GPUs by DCGM's number, empty where DCGM has none."""

    release: str
    serials: Mapping[int, str]
    tests: tuple[DiagTest, ...]


def parse(text: str) -> Opinion:
    """Read the answer of dcgmi. Raises DcgmUnknown, which names what is wrong."""
    try:
        document = json.loads(text)
    except ValueError:
        first = " ".join(text.split())[:_MESSAGE_CHARS] or "nothing"
        raise DcgmUnknown(f"dcgmi did not answer in JSON but: {first}") from None
    diagnostic = _get(document, "DCGM Diagnostic", dict, "the answer")
    if "runtime_error" in diagnostic:
        error = " ".join(str(diagnostic["runtime_error"]).split())[:_MESSAGE_CHARS]
        raise DcgmUnknown(f"the diagnostic did not run: {error}")
    release = _get(_get(document, "metadata", dict, "the answer"), "version", str, "metadata")
    if ".".join(release.split(".")[:2]) not in RELEASES:
        raise DcgmUnknown(f"DCGM {release} is not one of the known releases ({', '.join(RELEASES)})")
    serials: dict[int, str] = {}
    for group in _get(document, "entity_groups", list, "the answer"):
        if _get(group, "entity_group_id", int, "an entity group") == _GROUP_GPU:
            for entity in _get(group, "entities", list, "an entity group"):
                serials[_get(entity, "entity_id", int, "an entity")] = str(entity.get("serial_num") or "")
    tests = tuple(
        _test(_get(category, "category", str, "a category"), test, serials)
        for category in _get(diagnostic, "test_categories", list, "the diagnostic")
        for test in _get(category, "tests", list, "a category")
    )
    return Opinion(release, serials, tests)


def _test(category: str, test: Any, serials: Mapping[int, str]) -> DiagTest:
    name = _get(test, "name", str, f"a test of {category}")
    outcomes = []
    for result in _get(test, "results", list, f"the test {name}"):
        group, entity = (_get(result, key, int, f"a result of {name}") for key in ("entity_group_id", "entity_id"))
        label = f"{_get(result, 'entity_group', str, f'a result of {name}')} {entity}"
        outcomes.append(_outcome(entity if group == _GROUP_GPU else -1, label, result, name))
    seen = {outcome.entity for outcome in outcomes}
    outcomes += [Outcome(entity, f"GPU {entity}", NOT_RUN) for entity in serials if entity not in seen]
    summary = _outcome(-1, "the node", _get(test, "test_summary", dict, f"the test {name}"), name)
    if summary.status in (FAIL, WARN) and all(outcome.status not in (FAIL, WARN) for outcome in outcomes):
        outcomes.append(summary)  # the fault names no GPU
    return DiagTest(category, name, tuple(outcomes))


def _outcome(entity: int, label: str, result: Any, test: str) -> Outcome:
    status = _get(result, "status", str, f"a result of {test}")
    if status not in _STATUSES:
        raise DcgmUnknown(f"the test {test} has the status {status!r}, which is not one of {', '.join(_STATUSES)}")
    warnings = result.get("warnings", [])
    if not isinstance(warnings, list):
        raise DcgmUnknown(f"the warnings of the test {test} are not a list")
    messages = tuple(_get(warning, "warning", str, f"a warning of {test}") for warning in warnings)
    severities = {warning.get("error_severity") for warning in warnings}
    if status == PASS and messages:
        status = WARN
    return Outcome(entity, label, status, messages, severities == {_SEVERITY_CONFIG})


def _get(value: Any, key: str, kind: type[Any], where: str) -> Any:
    """A member of the kind that it must have; a bool is no number."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise DcgmUnknown(f"{where} has no {key!r} of the kind that DCGM 4 writes")
    return found


def gpu_names(opinion: Opinion, gpus: Sequence[Gpu]) -> dict[int, Gpu]:
    """The GPUs of the plan by DCGM's number, as far as their serial numbers tell: DCGM's order is its own.

    A serial number that several have says nothing: boards with two GPUs give both the board's (NVIDIA/k8s-test-infra
    PR 727: GB200, GB300), and some have none but zeros.
    """
    mine, theirs = Counter(gpu.serial for gpu in gpus), Counter(opinion.serials.values())
    alone = {gpu.serial: gpu for gpu in gpus if gpu.serial.strip("0") and mine[gpu.serial] == 1}
    return {
        entity: alone[serial] for entity, serial in opinion.serials.items() if serial in alone and theirs[serial] == 1
    }


def rows(opinion: Opinion, gpus: Sequence[Gpu]) -> tuple[DiagnosticRow, ...]:
    """One row for each test and result, for the report."""
    known = gpu_names(opinion, gpus)
    found = []
    for test in opinion.tests:
        grouped: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in test.outcomes:
            grouped[outcome.status].append(outcome)
        for status, outcomes in grouped.items():
            places = tuple(known[o.entity].uuid if o.entity in known else o.entity for o in outcomes)
            messages = [message for outcome in outcomes for message in outcome.messages]
            found.append(DiagnosticRow(test.name, status, places, messages[0][:_MESSAGE_CHARS] if messages else ""))
    return tuple(found)


def judge(opinion: Opinion, exit_status: int, gpus: Sequence[Gpu], level: int) -> Iterator[Reason]:
    """DCGM_FAILED for each GPU and test that failed, DCGM_UNKNOWN and COVERAGE_LOW where the answer says too little.

    A failure of which every error is a setting of the node (severity CONFIG), and a warning, are INCONCLUSIVE.
    """
    known = gpu_names(opinion, gpus)
    explained = False
    for test in opinion.tests:
        for outcome in test.outcomes:
            if outcome.status in (FAIL, WARN):
                explained = True
                yield _failed(opinion.release, test, outcome, known.get(outcome.entity))
    if exit_status and not explained:
        message = f"dcgmi ended with exit status {exit_status} although its answer names no failed test"
        yield make_reason("DCGM_UNKNOWN", NAME, message, details={"exit_status": exit_status})
    if len(opinion.serials) < len(gpus):
        message = f"DCGM knows {len(opinion.serials)} GPUs and the run has {len(gpus)}"
        details: dict[str, JSON] = {"dcgm_gpus": len(opinion.serials), "gpus": len(gpus)}
        yield make_reason("COVERAGE_LOW", NAME, message, details=details)
    yield from _not_done(opinion, known, level)


def _not_done(opinion: Opinion, known: Mapping[int, Gpu], level: int) -> Iterator[Reason]:
    """COVERAGE_LOW where DCGM tested too little: most tests on no GPU, or on some GPU what it did on others.

    Level 1 has tests of software alone; above it those of hardware count.
    """
    wanted = [test for test in opinion.tests if (test.category == _DEPLOYMENT) == (level == 1)]
    done = [test for test in wanted if any(outcome.done for outcome in test.outcomes)]
    skipped: list[JSON] = [test.name for test in wanted if test not in done]
    if 2 * len(done) <= len(wanted):
        many = "most tests" if done else "every test"
        message = (
            f"DCGM {opinion.release} skipped {many} of hardware ({', '.join(map(str, skipped)) or 'none named'}): "
            "see its log and whether its diag-skus.yaml allows the tests on this model (is_allowed)"
        )
        yield make_reason("COVERAGE_LOW", NAME, message, details={"skipped": skipped})
    for entity in opinion.serials:
        missed: list[JSON] = [
            test.name for test in done if not any(one.done for one in test.outcomes if one.entity == entity)
        ]
        if missed:
            gpu = known.get(entity)
            place = gpu.label if gpu is not None else f"DCGM's GPU {entity}"
            message = (
                f"DCGM {opinion.release} did not test {', '.join(map(str, missed))} on {place}, and did on others: see "
                "its log"
            )
            yield make_reason("COVERAGE_LOW", NAME, message, gpu=gpu.uuid if gpu else None, details={"skipped": missed})


def _failed(release: str, test: DiagTest, outcome: Outcome, gpu: Gpu | None) -> Reason:
    what = "failed" if outcome.status == FAIL else "passed with a warning"
    why = outcome.messages[0][:_MESSAGE_CHARS] if outcome.messages else "DCGM gives no message"
    setting = outcome.status == FAIL and outcome.settings_only
    note = " (a setting of the node, not its hardware)" if setting else ""
    place = gpu.label if gpu is not None else f"DCGM's {outcome.label}" if outcome.entity >= 0 else outcome.label
    messages: list[JSON] = [message[:_MESSAGE_CHARS] for message in outcome.messages]
    return make_reason(
        "DCGM_FAILED",
        NAME,
        f"DCGM {release}: the test {test.name} {what} on {place}{note}: {why}",
        gpu=None if gpu is None else gpu.uuid,
        details={"test": test.name, "category": test.category, "result": outcome.status, "messages": messages},
        severity=Verdict.INCONCLUSIVE if setting or outcome.status == WARN else None,
    )
