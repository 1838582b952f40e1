"""What a worker may say, and when: everything else is a broken protocol, never an exception of the supervisor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.engine.messages import Failed, Progress, ProtocolError, Ready, Result, Selftests, Share, parse
from gpu_burnin.engine.wire import encode
from gpu_burnin.system.host_limits import Scarce
from gpu_burnin.types import CheckResult, Measurement, Reason, SelftestResult, Series, Verdict
from tests.support.coverages import coverage

REASON = Reason("GEMM_MISMATCH", "gemm", "m", "GPU-0", {"row": 1})
RESULT = CheckResult(
    "gemm", "GPU-0", Verdict.FAIL, 1.5, (Measurement("rate", 2.0, "TFLOP/s"),), coverage("gemm", simulated=True),
    ({"row": 1},), (REASON,), (Series("rate", "TFLOP/s", (0.0, 1.0), (2.0, 3.0)),),
)  # fmt: skip
TEST = SelftestResult("nan bf16", "gemm", "GPU-0", True, True, 0.1, "device buffers", 2)


def plain(value: Any) -> Any:
    """As it comes out of the pipe."""
    return json.loads(encode({"value": value}))["value"]


def result(**change: Any) -> dict[str, Any]:
    return {"type": "result", "result": {**plain(RESULT), **change}}


def selftest(**change: Any) -> dict[str, Any]:
    return {"type": "selftest", "results": [plain(TEST), {**plain(TEST), **change}]}


def measured(**change: Any) -> dict[str, Any]:
    return result(measurements=[{**plain(RESULT)["measurements"][0], **change}])


def covered(**change: Any) -> dict[str, Any]:
    return result(coverage={**plain(RESULT)["coverage"], **change})


def explained(**change: Any) -> dict[str, Any]:
    return result(reasons=[{**plain(REASON), **change}])


def test_what_is_meant_is_understood() -> None:
    assert parse({"type": "ready", "facts": {"a": 1}}, "open", "gemm", "GPU-0") == Ready({"a": 1})
    assert parse({"type": "progress", "data": {"errors": 1}}, "check", "gemm", "GPU-0") == Progress({"errors": 1})
    assert parse({"type": "share", "data": [1]}, "check", "gemm", "GPU-0") == Share([1])
    assert parse(result(), "check", "gemm", "GPU-0") == Result(RESULT)
    assert parse(selftest(), "selftest", "gemm", "GPU-0") == Selftests((TEST, TEST))
    assert parse({"type": "failed", "message": "m"}, "check", "gemm", None) == Failed("m")
    assert parse({"type": "failed", "message": "m", "scarce": "memory"}, "open", "x", None) == Failed(
        "m", Scarce.MEMORY
    )
    damaged = {"type": "failed", "message": "m", "code": "ECC_UNCORRECTED"}
    assert parse(damaged, "check", "x", None) == Failed("m", None, "ECC_UNCORRECTED")
    # The check of the node speaks of all GPUs, and a number that is not finite travels as text.
    of_node = replace(RESULT, gpu=None, measurements=(Measurement("rate", float("nan"), "B/s"),))
    assert isinstance(parse({"type": "result", "result": plain(of_node)}, "check", "gemm", None), Result)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("open", result()),
        ("open", {"type": "progress", "data": {}}),
        ("selftest", result()),
        ("check", selftest()),
        ("check", {"type": "ready", "facts": {}}),
        ("close", {"type": "progress", "data": {}}),
        ("check", {"type": "nonsense"}),
        ("check", {"type": ["result"]}),
    ],
)
def test_a_message_at_the_wrong_moment(op: str, message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="at the step"):
        parse(message, op, "gemm", "GPU-0")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("check", result(name="hbm", coverage={})),
        ("check", result(gpu="GPU-1", reasons=[])),
        ("check", result(gpu=None)),
        ("selftest", selftest(check="hbm")),
        ("selftest", selftest(gpu="GPU-1")),
    ],
)
def test_a_worker_speaks_for_no_other_check_and_no_other_gpu(op: str, message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="another check or GPU"):
        parse(message, op, "gemm", "GPU-0")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("open", {"type": "ready"}),
        ("open", {"type": "ready", "facts": 1}),
        ("open", {"type": "failed", "message": {}}),
        ("open", {"type": "failed", "message": "m", "code": "NO_SUCH_REASON"}),
        ("check", {"type": "failed", "message": "m", "code": ["ECC_UNCORRECTED"]}),
        ("check", {"type": "progress"}),
        ("check", {"type": "progress", "data": [1]}),
        ("check", {"type": "share"}),
        ("check", {"type": "result"}),
        ("check", {"type": "result", "result": {}}),
        ("check", result(verdict="GOOD")),
        ("check", result(seconds="long")),
        ("check", result(seconds=-1.0)),
        ("check", result(seconds="inf")),
        ("check", result(coverage=[])),
        ("check", result(coverage={"simulated": True})),
        ("check", covered(verified_s=-1.0)),
        ("check", covered(verified_s=float("nan"))),
        ("check", covered(verified_parts_s={"bf16": 3.0, "fp64": "lots"})),
        ("check", covered(shape=[64, 64])),
        ("check", covered(products={"bf16": "many"})),
        ("check", covered(data_path={"bf16": {"proven": True}})),
        ("check", covered(novelty=1)),
        ("check", result(errors={})),
        ("check", result(errors=[1])),
        ("check", result(measurements=3)),
        ("check", result(measurements=[3])),
        ("check", result(measurements=[{"name": "x"}])),
        ("check", measured(value="fast")),
        ("check", measured(unit=None)),
        ("check", measured(floor=0.0)),
        ("check", result(reasons=[{"code": "X"}])),
        ("check", explained(severity="PASS")),
        ("check", explained(severity="BAD")),
        ("check", explained(action="pray")),
        ("check", explained(message=1)),
        ("check", explained(evidence=[])),
        ("check", explained(gpu="GPU-1")),
        ("check", result(series=[{"name": "x", "unit": "y", "t_s": [1], "values": []}])),
        ("check", result(series=[{"name": "x", "unit": "y", "t_s": [{}], "values": [1]}])),
        ("selftest", {"type": "selftest", "results": 3}),
        ("selftest", {"type": "selftest", "results": [3]}),
        ("selftest", selftest(colour="red")),
        ("selftest", selftest(detected="yes")),
        ("selftest", selftest(injected=1)),
        ("selftest", selftest(latency_s=None)),
        ("selftest", selftest(changed_bits=-1)),
        ("selftest", selftest(fault=7)),
    ],
)
def test_a_malformed_message(op: str, message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="a malformed"):
        parse(message, op, "gemm", "GPU-0")
