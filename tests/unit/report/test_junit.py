"""JUnit: FAIL is a failure, INCONCLUSIVE an error, nothing is skipped, counts are right, any text fits."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.report import model
from gpu_burnin.report.junit import to_junit
from gpu_burnin.types import Reason
from tests.support.sample_nodes import SAMPLES, one_slow_link
from tests.support.sample_reports import faulty_8, healthy_8, sample


def suites_of(report: model.Report) -> dict[str, ET.Element]:
    """The suites by name."""
    return {str(suite.get("name")): suite for suite in ET.fromstring(to_junit(report))}


def outcomes(suite: ET.Element) -> dict[str, str]:
    """What each case came to: pass, failure or error."""
    cases = {}
    for case in suite.iter("testcase"):
        tags = [child.tag for child in case]
        assert len(tags) <= 1
        cases[str(case.get("name"))] = tags[0] if tags else "pass"
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_counts_are_those_of_the_cases_and_nothing_is_skipped(name: str) -> None:
    root = ET.fromstring(to_junit(SAMPLES[name]()[0]))
    assert root.tag == "testsuites"
    for suite in [root, *root]:
        cases = list(suite.iter("testcase"))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(attribute) == str(sum(case.find(tag) is not None for case in cases))
        assert suite.get("tests") == str(len(cases)) != "0"
        assert suite.get("skipped") == "0"
    for suite in root:
        # The schema that Jenkins and others read wants a time without a zone.
        assert suite.get("timestamp") == "2026-01-02T03:04:05"
        names = [case.get("name") for case in suite.iter("testcase")]
        assert len(names) == len(set(names))
        for case in suite.iter("testcase"):
            assert case.get("classname") == f"gpu_burnin.{suite.get('name')}"
            float(str(case.get("time")))


def test_healthy_run_is_all_green() -> None:
    suites = suites_of(healthy_8()[0])
    assert list(suites) == ["run", "state", "sm", "gemm", "hbm", "pcie", "nvlink", "nccl", "power", "selftest"]
    assert {outcome for suite in suites.values() for outcome in outcomes(suite).values()} == {"pass"}
    assert len(outcomes(suites["gemm"])) == 8
    assert outcomes(suites["state"]) == {"node": "pass"}


def test_faulty_run_says_what_is_wrong_where() -> None:
    suites = suites_of(faulty_8()[0])
    assert outcomes(suites["run"])["verdict"] == "failure"
    said = {item.get("name"): item.get("value") for item in suites["run"].iter("property")}
    assert (said["verdict"], said["simulated"], said["action"]) == ("FAIL", "false", "hold")
    gemm = outcomes(suites["gemm"])
    assert [name[:5] for name, outcome in gemm.items() if outcome == "failure"] == ["GPU 2", "GPU 3"]
    # The detector of GPU 0 was blind: its passing result proves nothing.
    assert [name[:5] for name, outcome in gemm.items() if outcome == "error"] == ["GPU 0"]
    hbm = outcomes(suites["hbm"])
    # GPU 6 is lost: it has no result of hbm, and a reason for that.
    assert {name[:5]: outcome for name, outcome in hbm.items() if outcome != "pass"} == {
        "GPU 5": "failure",
        "GPU 6": "failure",
    }
    assert sum(outcome == "error" for outcome in outcomes(suites["selftest"]).values()) == 1
    case = next(case for case in suites["gemm"].iter("testcase") if "GPU 3" in str(case.get("name")))
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "GEMM_MISMATCH"
    assert "c[1284, 77]" in str(failure.get("message"))


def test_reason_outside_the_checks_is_a_case_of_the_run() -> None:
    def change(seen: Observations) -> Observations:
        return replace(seen, extra=(make_reason("DIED_DURING_CHECK", "boot", "the host went down"),))

    run = outcomes(suites_of(sample(count=1, change=change)[0])["run"])
    assert run == {"verdict": "failure", "boot node": "failure"}


def test_check_that_was_left_out_is_an_error() -> None:
    def change(seen: Observations) -> Observations:
        plan = replace(seen.plan, checks=tuple(check for check in seen.plan.checks if check.name != "hbm"))
        results = tuple(result for result in seen.results if result.name != "hbm")
        return replace(seen, plan=plan, results=results, left_out=("hbm",))

    suites = suites_of(sample(count=1, change=change)[0])
    assert outcomes(suites["hbm"]) == {"node": "error"}
    assert outcomes(suites["run"])["verdict"] == "error"


def test_any_text_is_valid_xml() -> None:
    bad = "a\x00b\x1b[31m<&>\"'\ufffe"
    root = ET.fromstring(to_junit(replace(healthy_8()[0], node=bad, reasons=(Reason("X", bad, bad),))))
    message = next(root.iter("failure")).get("message")
    assert message == "a\ufffdb\ufffd[31m<&>\"'\ufffd"


def test_failed_link_is_a_case_of_its_own() -> None:
    """A link is neither of its GPUs, and no check of single GPUs has a case for it."""
    suites = suites_of(one_slow_link()[0])
    run = outcomes(suites["run"])
    assert run == {"verdict": "failure", "nvlink GPU 2 and GPU 5": "failure"}
    assert set(outcomes(suites["nvlink"]).values()) == {"pass"}
    case = next(case for case in suites["run"].iter("testcase") if "GPU 5" in str(case.get("name")))
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "P2P_LINK_SLOW"


def test_a_real_fault_in_the_selftest_is_a_failure_and_no_blind_detector() -> None:
    report = healthy_8()[0]
    first, *rest = report.selftest
    hindered = replace(first, injected=False, detected=False, real="GEMM_MISMATCH")
    suite = suites_of(replace(report, selftest=(hindered, *rest)))["selftest"]
    failed = [case for case in suite.iter("testcase") if len(case)]
    assert [(case[0].tag, case[0].get("type")) for case in failed] == [("failure", "GEMM_MISMATCH")]
    assert "before" in str(failed[0][0].get("message"))
