"""`gpu-burnin explain`: every code has its words, and an XID is told as the judge judges it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpu_burnin.admission.decide import CODES
from gpu_burnin.api import evidence_codes
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.explain import Code, codes, completions, document, find, find_all, render
from gpu_burnin.hardware import NVLINK5_CODES, load_reasons, load_xids
from gpu_burnin.judge.observations import KernelLogFindings
from gpu_burnin.judge.xid import judge_xids
from gpu_burnin.judge.xid_explained import ExplainedXid, Outcome, all_explained, explained
from gpu_burnin.telemetry.kmsg import parse_record, xid_event
from gpu_burnin.types import Verdict
from tests.support.run_helpers import GPUS, healthy


def test_several_codes_are_told_in_their_order() -> None:
    [lost, product, switch] = find_all(["xid", "79,", "GEMM_MISMATCH", "sxid 20034", "XID79"])
    assert (lost, product, switch) == (*find("79"), *find("gemm_mismatch"), *find("sxid 20034"))
    assert render([product, lost]) == f"{render([product])}\n{render([lost])}"
    with pytest.raises(GpuBurninError, match="no code NOTHING"):
        find_all(["79", "NOTHING"])


def judged(one: ExplainedXid, *, before: bool, passed: bool) -> Outcome:
    """What a run makes of a bare line of this code on one of its GPUs."""
    driver = "nvidia-nvswitch0: SXid" if one.kind == "SXid" else "NVRM: Xid"
    record = parse_record(f"3,1,61234567,-;{driver} (PCI:{GPUS[0].pci_bus_id}): {one.code}, words")
    event = xid_event(record) if record else None
    assert event
    log = KernelLogFindings("journal", True, 0, (event,), before=(event,) if before else ())
    found = judge_xids(replace(healthy(), kernel_log=log, passed_this_boot=passed))
    if found.reasons:
        return Outcome(found.reasons[0].severity, found.reasons[0].code)
    return Outcome(None, found.notices[0].code if found.notices else None)


# Text rules may decide about any line, also one without words of theirs.
PLAIN = [one for one in all_explained() if not any(rule.pattern == ".*" for rule in one.by_text)]


@pytest.mark.slow
def test_what_is_told_of_each_code_is_what_the_judge_does() -> None:
    assert len(PLAIN) == len(load_xids().xids) + len(load_xids().sxids)
    unknown = [explained(4321, sxid=False), explained(4321, sxid=True)]
    for one in (*PLAIN, *unknown):
        assert judged(one, before=False, passed=False) == one.during_run, one.code
        assert judged(one, before=True, passed=False) == one.before_run, one.code
        assert judged(one, before=True, passed=True) == one.before_run_after_pass, one.code


@pytest.mark.parametrize("asked", ["79", "XID79", "xid 79", "Xid:79", "xid_79"])
def test_an_xid_is_found_by_its_number(asked: str) -> None:
    (found,) = find(asked)
    assert isinstance(found, ExplainedXid)
    assert (found.kind, found.code, found.known, found.meaning) == ("XID", 79, True, "GPU has fallen off the bus")
    text = render([found])
    assert "First action: power_cycle (Power the machine off and on, then `gpu-burnin run`)." in text
    assert "preflight: fail  FAIL (XID_FATAL)" in text and "runtime: revoke  FAIL (XID_FATAL)" in text
    assert "Source: NV-CAT" in text
    assert all(len(line) <= 60 for line in render([found], 60).splitlines())


def test_a_number_nobody_has_described_has_the_policy_for_such_numbers() -> None:
    (found,) = find("4321")
    assert isinstance(found, ExplainedXid)
    assert (found.known, found.during_run) == (False, Outcome(Verdict.INCONCLUSIVE, "XID_UNKNOWN"))
    assert found.before_run_after_pass == Outcome(None, "XID_UNKNOWN")
    text = " ".join(render([found]).split())
    assert "XID 4321: the code is not in the table." in text
    assert load_reasons()["XID_UNKNOWN"].what_to_do in text


def test_codes_of_switches_are_found_and_may_be_asked_for() -> None:
    assert [(one.kind, one.known) for one in find("20034")] == [("SXid", True)]  # type: ignore[union-attr]
    assert [(one.kind, one.known) for one in find("xid 20034")] == [("XID", False)]  # type: ignore[union-attr]
    assert [(one.kind, one.known) for one in find("sxid20034")] == [("SXid", True)]  # type: ignore[union-attr]


def test_refinements_of_the_policy_are_told() -> None:
    text = " ".join(render(find("154")).split())
    for rule in load_xids().xids[154].text_rules:
        assert f"/{rule.pattern.pattern}/: preflight {rule.preflight}" in text
    shown = document(find(str(NVLINK5_CODES[0])))["xids"][0]
    rules = [rule for rule in load_xids().nvlink5 if rule.code == NVLINK5_CODES[0]]
    assert len(shown["by_registers"]) == len(rules) > 0
    killed = next(code for code, policy in load_xids().xids.items() if policy.own_kill)
    assert "killed" in render(find(str(killed)))


def test_all_codes_are_there_as_json_and_as_lines() -> None:
    shown = json.loads(CliRunner().invoke(cli, ["explain", "--json"]).output)
    assert shown["schema"] == "muster-explain/v1"
    assert {one["code"] for one in shown["codes"]} == {*load_reasons(), *evidence_codes.CODES, *CODES}
    assert len(shown["xids"]) == len(load_xids().xids) + len(load_xids().sxids)
    assert all(one["what_to_do"] for one in shown["codes"])
    (one,) = json.loads(CliRunner().invoke(cli, ["explain", "gemm_mismatch", "--json"]).output)["codes"]
    info = load_reasons()["GEMM_MISMATCH"]
    assert (one["verdict"], one["action"], one["summary"]) == ("FAIL", str(info.action), info.summary)
    assert "gpu-burnin run" in one["order"]
    (evidence_code,) = document(find("EVIDENCE_BOOT"))["codes"]
    assert (evidence_code["action"], evidence_code["order"]) == (None, None)
    listed = render(None)
    assert all(f"\n{name} " in f"\n{listed}" for name in codes())
    assert f"{len(load_xids().xids)} XIDs" in listed


def test_a_code_that_is_not_there_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(GpuBurninError, match=r"no code XID_UNKNOW; did you mean XID_UNKNOWN\?") as caught:
        find("XID_UNKNOW")
    assert caught.value.exit_code == 2
    assert isinstance(find("xid_unknown")[0], Code)


def test_completion_offers_numbers_once_one_has_begun() -> None:
    assert completions("gemm_m") == ["GEMM_MISMATCH"]
    assert completions("XID_S") == ["XID_SOURCE_MISSING", "XID_SUSPECT"]
    begun = [str(code) for code in sorted(load_xids().xids) if str(code).startswith("7")]
    assert "79" in begun and completions("7") == begun
    assert completions("xid79") == ["xid79"]
    assert completions("sxid2003") == [f"sxid{code}" for code in sorted(load_xids().sxids) if code // 10 == 2003]
    assert completions("") == [*codes()], "not two hundred numbers at once"
