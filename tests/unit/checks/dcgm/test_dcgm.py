"""The dcgm check's reading of answers: recorded ones, spoiled ones, and those that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS, REGISTRY, USUAL_CHECKS
from gpu_burnin.checks.dcgm import check
from gpu_burnin.checks.dcgm import diagnostic as dcgm
from gpu_burnin.checks.dcgm.result import DcgmCoverage
from gpu_burnin.checks.spec import Scope
from gpu_burnin.types import Coverage, Gpu, Reason, Verdict
from tests.support.dcgm_answers import GPUS, NVVS_ERROR, Document, answer, recorded, results_of, spoil
from tests.support.engine_helpers import gpu

FIELD = Path(__file__).parents[3] / "support/field_cases"


def judged(
    document: Document | str, exit_status: int = 0, level: int = 2, gpus: tuple[Gpu, ...] = GPUS
) -> list[Reason]:
    text = document if isinstance(document, str) else json.dumps(document)
    return list(dcgm.judge(dcgm.parse(text), exit_status, gpus, level))


# --- its place ---


def test_it_has_to_be_asked_for_and_comes_after_the_workers() -> None:
    assert isinstance(REGISTRY["dcgm"], check.Check)
    assert (CHECKS["dcgm"].scope, CHECKS["dcgm"].optional, CHECKS["dcgm"].selftested) == (Scope.AFTER, True, False)
    assert "dcgm" not in USUAL_CHECKS
    assert DcgmCoverage.shortfalls is Coverage.shortfalls
    assert dcgm.DIAG_LEVELS == {"quick": 1, "standard": 2, "extended": 3}


# --- recorded answers ---


def test_a_setting_of_the_node_is_inconclusive_and_named() -> None:
    (reason,) = judged(recorded("level1-4.2.3.json"), NVVS_ERROR, level=1, gpus=GPUS[:1])
    assert (reason.code, reason.severity) == ("DCGM_FAILED", Verdict.INCONCLUSIVE)
    assert "DCGM 4.2.3: the test software failed on DCGM's GPU 0 (a setting of the node" in reason.message
    assert "Persistence mode for GPU 0 is disabled" in reason.message


def test_skipped_tests_are_never_passed() -> None:
    reasons = judged(recorded("level2-gated-4.5.2.json"), NVVS_ERROR, gpus=GPUS[:1])
    assert [reason.code for reason in reasons] == ["DCGM_FAILED", "COVERAGE_LOW"]
    assert "skipped every test of hardware (memory, pcie)" in reasons[1].message
    assert "is_allowed" in reasons[1].message


def test_tests_that_ran_are_rows_with_their_results() -> None:
    opinion = dcgm.parse(recorded("level2-allowed-4.5.2.json"))
    rows = dcgm.rows(opinion, GPUS[:1])
    assert [(row.name, row.result, row.gpus) for row in rows] == [
        ("software", "Fail", (0,)), ("memory", "Pass", (0,)), ("pcie", "Pass", (0,)),
    ]  # fmt: skip
    assert "Persistence mode" in rows[0].message
    assert [r.code for r in dcgm.judge(opinion, NVVS_ERROR, GPUS[:1], 2)] == ["DCGM_FAILED"]


# --- judging ---


def test_all_passed_is_no_reason_and_the_rows_name_the_gpus_by_serial() -> None:
    assert judged(answer()) == []
    rows = dcgm.rows(dcgm.parse(json.dumps(answer())), GPUS)
    assert {row.gpus for row in rows} == {("GPU-2", "GPU-1", "GPU-0")}


def test_a_failed_test_fails_its_gpu_by_serial_number() -> None:
    document = answer()
    spoil(document, "memory", 0, "Fail", ("Uncorrectable ECC error", 2))
    (reason,) = judged(document, NVVS_ERROR)
    assert (reason.code, reason.severity, reason.gpu) == ("DCGM_FAILED", Verdict.FAIL, "GPU-2")
    assert reason.message.endswith(f"the test memory failed on {GPUS[2].label}: Uncorrectable ECC error")
    assert reason.details == {
        "test": "memory", "category": "Hardware", "result": "Fail", "messages": ["Uncorrectable ECC error"],
    }  # fmt: skip


def test_without_serial_numbers_dcgm_s_own_number_is_said() -> None:
    document = answer(serials=False)
    spoil(document, "pcie", 1, "Fail")
    (reason,) = judged(document, NVVS_ERROR)
    assert reason.gpu is None
    assert "failed on DCGM's GPU 1: DCGM gives no message" in reason.message


def test_every_failing_gpu_and_test_is_told() -> None:
    document = answer()
    for name in ("memory", "pcie"):
        for entity in (0, 2):
            spoil(document, name, entity, "Fail", ("broken", 2))
    assert [(r.details["test"], r.gpu) for r in judged(document, 205)] == [
        ("memory", "GPU-2"), ("memory", "GPU-0"), ("pcie", "GPU-2"), ("pcie", "GPU-0"),
    ]  # fmt: skip


def test_one_error_of_hardware_beside_settings_is_a_fail() -> None:
    document = answer()
    spoil(document, "software", 0, "Fail", ("persistence", 5), ("row remap", 6))
    assert [reason.severity for reason in judged(document, NVVS_ERROR)] == [Verdict.FAIL]


def test_a_failure_that_only_the_summary_tells_is_the_node_s() -> None:
    document = answer()
    test = document["DCGM Diagnostic"]["test_categories"][1]["tests"][0]
    test["test_summary"] = {"status": "Fail", "warnings": [{"warning": "the plugin died", "error_severity": 4}]}
    (reason,) = judged(document, NVVS_ERROR)
    assert (reason.severity, reason.gpu) == (Verdict.FAIL, None)
    assert "failed on the node: the plugin died" in reason.message


@pytest.mark.parametrize("status", ["Warn", "Pass"])
def test_a_warning_and_a_pass_with_an_error_are_inconclusive(status: str) -> None:
    document = answer()
    spoil(document, "memory", 1, status, ("could not allocate the minimum", 1))
    (reason,) = judged(document, NVVS_ERROR)
    assert (reason.code, reason.severity) == ("DCGM_FAILED", Verdict.INCONCLUSIVE)
    assert "passed with a warning on" in reason.message


def test_a_gpu_without_a_result_was_not_run() -> None:
    document = answer()
    del results_of(document, "pcie")[1]
    rows = dcgm.rows(dcgm.parse(json.dumps(document)), GPUS)
    assert [(row.result, row.gpus) for row in rows if row.name == "pcie"] == [
        ("Pass", ("GPU-2", "GPU-0")), ("Not run", ("GPU-1",)),
    ]  # fmt: skip


def test_only_skips_are_inconclusive_at_level_1_too() -> None:
    document = answer()
    del document["DCGM Diagnostic"]["test_categories"][1:]
    for entity in range(3):
        spoil(document, "software", entity, "Skip")
    assert [reason.code for reason in judged(document, level=1)] == ["COVERAGE_LOW"]
    document["DCGM Diagnostic"]["test_categories"] = []
    assert [reason.code for reason in judged(document, level=1)] == ["COVERAGE_LOW"]


def test_software_alone_is_enough_at_level_1_and_not_above() -> None:
    document = answer()
    for name in ("memory", "pcie"):
        for entity in range(3):
            spoil(document, name, entity, "Skip")
    assert judged(document, level=1) == []
    assert [reason.code for reason in judged(document, level=2)] == ["COVERAGE_LOW"]


def test_a_serial_number_that_several_gpus_have_names_none() -> None:
    """After NVIDIA/k8s-test-infra PR 727: both GPUs of a board give the board's."""
    gpus = tuple(replace(gpu(index), serial=f"165000000000{index // 2}") for index in range(4))
    (reason,) = judged((FIELD / "dcgm-shared-serial-fail0.json").read_text(), NVVS_ERROR, gpus=gpus)
    assert (reason.code, reason.gpu) == ("DCGM_FAILED", None)
    assert "the test memory failed on DCGM's GPU 0: Uncorrectable ECC" in reason.message


@pytest.mark.parametrize("serial", ["0", "0000000000000"])
def test_a_serial_number_of_zeros_names_no_gpu(serial: str) -> None:
    document = answer(1)
    document["entity_groups"][0]["entities"][0]["serial_num"] = serial
    assert dcgm.gpu_names(dcgm.parse(json.dumps(document)), (replace(GPUS[0], serial=serial),)) == {}


def test_what_was_not_tested_on_a_gpu_is_told_of_that_gpu() -> None:
    """After NVIDIA/DCGM issues 139, 55 and 145: three of four GPUs were skipped in every test of hardware."""
    text = (FIELD / "dcgm-skip3.json").read_text()
    opinion = dcgm.parse(text)
    gpus = tuple(replace(gpu(index), serial=serial or f"none {index}") for index, serial in opinion.serials.items())
    reasons = judged(text, gpus=gpus)
    assert {(reason.code, reason.severity) for reason in reasons} == {("COVERAGE_LOW", Verdict.INCONCLUSIVE)}
    assert len(reasons) == 3
    assert all("did not test memory, diagnostic, pcie, nvbandwidth" in reason.message for reason in reasons)


def test_a_gpu_that_one_test_left_out_is_told() -> None:
    document = answer()
    del results_of(document, "pcie")[1]
    (reason,) = judged(document)
    assert (reason.code, reason.gpu, reason.details) == ("COVERAGE_LOW", "GPU-1", {"skipped": ["pcie"]})


def test_most_tests_skipped_everywhere_is_too_little() -> None:
    document = answer()
    for entity in range(3):
        spoil(document, "pcie", entity, "Skip")
    (reason,) = judged(document)
    assert "skipped most tests of hardware (pcie)" in reason.message


def test_a_gpu_that_dcgm_does_not_know_is_not_covered() -> None:
    (reason,) = judged(answer(2))
    assert (reason.code, reason.message) == ("COVERAGE_LOW", "DCGM knows 2 GPUs and the run has 3")


def test_an_exit_status_that_the_answer_does_not_explain_is_no_pass() -> None:
    (reason,) = judged(answer(), NVVS_ERROR)
    assert (reason.code, reason.severity) == ("DCGM_UNKNOWN", Verdict.INCONCLUSIVE)
    assert "exit status 226" in reason.message


# --- answers that are none ---


def _drop(*path: str | int) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


def _put(value: object, *path: str | int) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


_TEST = ("DCGM Diagnostic", "test_categories", 0, "tests", 0)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_put("4.9.0", "metadata", "version"), "DCGM 4.9.0 is not one of the known releases"),
        (_put("3.3.9", "metadata", "version"), "DCGM 3.3.9 is not one of the known releases"),
        (_put("5", "metadata", "version"), "DCGM 5 is not one of the known releases"),
        (_drop("metadata"), "no 'metadata'"),
        (_drop("metadata", "version"), "metadata has no 'version'"),
        (_drop("DCGM Diagnostic"), "no 'DCGM Diagnostic'"),
        (_put({}, "DCGM Diagnostic"), "no 'test_categories'"),
        (_put({"runtime_error": "Unable to run\ndiagnostic"}, "DCGM Diagnostic"), "did not run: Unable to run diag"),
        (_drop("entity_groups"), "no 'entity_groups'"),
        (_drop("entity_groups", 0, "entities", 0, "entity_id"), "an entity has no 'entity_id'"),
        (_put(True, "entity_groups", 0, "entity_group_id"), "no 'entity_group_id'"),
        (_drop(*_TEST, "name"), "a test of Deployment has no 'name'"),
        (_drop(*_TEST, "results"), "the test software has no 'results'"),
        (_drop(*_TEST, "test_summary"), "the test software has no 'test_summary'"),
        (_drop(*_TEST, "results", 1, "status"), "a result of software has no 'status'"),
        (_put("Passed", *_TEST, "results", 1, "status"), "the status 'Passed', which is not one of Pass, Fail"),
        (_put("pass", *_TEST, "test_summary", "status"), "the status 'pass'"),
        (_put("0", *_TEST, "results", 0, "entity_id"), "no 'entity_id'"),
        (_put("bad", *_TEST, "results", 0, "warnings"), "warnings of the test software are not a list"),
        (_put([{}], *_TEST, "results", 0, "warnings"), "a warning of software has no 'warning'"),
    ],
)
def test_another_release_or_shape_is_no_answer(change: Callable[[Document], None], what: str) -> None:
    document = deepcopy(answer())
    change(document)
    with pytest.raises(dcgm.DcgmUnknown, match=what):
        dcgm.parse(json.dumps(document))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not answer in JSON but: nothing"),
        ("ERROR: Invalid\nsubsystem", "ERROR: Invalid subsystem"),
        ("[]", "no 'DC"),
    ],
)
def test_no_json_is_no_answer(text: str, what: str) -> None:
    with pytest.raises(dcgm.DcgmUnknown, match=what):
        dcgm.parse(text)
