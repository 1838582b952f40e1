"""A whole quick burn-in of a real node: every check of a GPU passes, proves its detector and keeps to the time."""

from __future__ import annotations

import json

import pytest

from gpu_burnin.checks import ROWS, SELFTESTED, USUAL_CHECKS
from tests.bench.gpu.burnin import burn_in, missing

_LIMIT_S = 60.0  # of the level quick
_ON_A_GPU = [name for name in USUAL_CHECKS if ROWS[name].scope.per_gpu]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_every_check_of_a_quick_run_passes_in_time() -> None:
    """What is wrong with the machine itself (no kernel log, a setting) may keep the run from a PASS, and only that."""
    ran = burn_in("--level", "quick")
    if ran.report is None:
        pytest.fail(f"exit status {ran.exit_code} and no report: {ran.errors[-2000:]}")
    told = json.dumps(ran.report["reasons"], indent=1)
    assert ran.report["simulated"] is False
    gpus = {gpu["uuid"] for gpu in ran.report["gpus"]}
    verdicts = {(check["name"], check["gpu"]): check["verdict"] for check in ran.report["checks"] if check["gpu"]}
    assert verdicts == {(name, gpu): "PASS" for name in _ON_A_GPU for gpu in gpus}, told
    assert [reason["code"] for reason in ran.report["reasons"] if reason["check"] in _ON_A_GPU] == [], told
    missed = [(test["check"], test["fault"]) for test in ran.report["selftest"] if not test["detected"]]
    assert missed == []
    assert {test["check"] for test in ran.report["selftest"]} >= SELFTESTED
    assert (ran.exit_code == 0) == (ran.report["verdict"] == "PASS") == (ran.report["reasons"] == [])
    assert ran.seconds < _LIMIT_S
