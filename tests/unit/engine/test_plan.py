"""Plans, results on the wire, shared types."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks import CHECK_NAMES, CHECKS, REGISTRY, SELFTESTED, USUAL_CHECKS
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.plan import CLOSING_S, CheckPlan, Plan, PlanError, make_plan, parse_injection, schedule, share
from gpu_burnin.engine.wire import encode, result_from_json
from gpu_burnin.exact.faults import FAULTS
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.types import Action, CheckResult, Measurement, Reason, SelftestResult, Verdict, verdict_of, worst
from tests.support.coverages import coverage
from tests.support.engine_helpers import gpu, plan


def _make(level: str = "quick", **settings: object) -> Plan:
    return make_plan(level, **{"backend": "cpu", "gpus": [gpu()], "seed": 1, **settings})  # type: ignore[arg-type]


def test_checks_come_in_their_order() -> None:
    made = _make(checks=["hbm", "state"])
    assert [c.name for c in made.checks] == ["state", "hbm"]
    assert [c.per_gpu for c in made.checks] == [False, True]
    assert [c.name for c in _make().checks] == list(USUAL_CHECKS)
    assert [c.name for c in _make(checks=CHECK_NAMES).checks] == list(CHECK_NAMES)


@pytest.mark.parametrize(("level", "total_s"), [("quick", 60), ("standard", 300)])
def test_levels_keep_their_time_though_start_and_selftests_cost_some(level: str, total_s: float) -> None:
    made = _make(level, backend="cuda")
    assert made.total_s == total_s
    assert sum(c.least_s for c in made.checks) + CLOSING_S < total_s / 2, "even a slow start leaves room for all"


def test_time_is_shared_by_weight_and_never_below_the_least() -> None:
    first, second, untimed = (CheckPlan("x", Scope.EACH, weight, least_s=4.0) for weight in (3.0, 1.0, 0.0))
    assert share(43.0, first, [second]) == pytest.approx((43 - CLOSING_S) * 3 / 4)
    assert share(43.0, second, []) == pytest.approx(43 - CLOSING_S)
    assert share(13.0, first, [second]) == pytest.approx(13 - CLOSING_S - 4), "the later one keeps its least"
    assert share(-50.0, first, [second]) == 4.0
    assert share(1000.0, untimed, [first]) == 4.0
    assert share(43.0, second, [untimed]) == pytest.approx(43 - CLOSING_S - 4)


def test_the_schedule_shares_the_time_as_a_run_does() -> None:
    """Against share() itself, check by check, with what the ones before have taken."""
    checks = (
        CheckPlan("state", Scope.NODE, 0.0, 5.0),
        CheckPlan("gemm", Scope.EACH, 3.0, 4.0),
        CheckPlan("pcie", Scope.TOGETHER, 1.0, 1.0),
        CheckPlan("nccl", Scope.TOGETHER, 2.0, 4.0),
        CheckPlan("dcgm", Scope.AFTER, 0.0, 600.0),
    )
    made = replace(_make(gpus=[gpu(0), gpu(1)]), checks=checks, total_s=60.0)
    state, gemm, pcie, nccl, dcgm = schedule(made)
    assert (state.begins_s, state.budget_s) == (0, 5)
    assert gemm.begins_s == 5
    assert gemm.budget_s == pytest.approx(share(55.0, checks[1], checks[2:4]))
    left_s = 55.0 - gemm.budget_s
    assert pcie.budget_s == pytest.approx(share(left_s, checks[2], checks[3:4]))
    assert nccl.budget_s == pytest.approx(share(left_s - pcie.budget_s, checks[3], []))
    assert nccl.begins_s + nccl.budget_s == pytest.approx(60 - CLOSING_S), "what is left but for the closing"
    assert (dcgm.begins_s, dcgm.budget_s) == (pytest.approx(60 - CLOSING_S), 600), "on top of the level's time"


@pytest.mark.parametrize("level", ["quick", "standard", "extended"])
def test_the_schedule_of_a_level_fills_its_time_and_no_more(level: str) -> None:
    made = _make(level, backend="cuda", gpus=[gpu(index) for index in range(8)])
    assert sum(step.budget_s for step in schedule(made)) <= made.total_s - CLOSING_S + 1e-6
    assert all(step.budget_s >= step.check.least_s for step in schedule(made))


@pytest.mark.parametrize("waves", ["granted", "always", "never"])
def test_a_check_that_hangs_is_found_as_soon_where_it_may_wait_for_a_grant(waves: str) -> None:
    """The time of waiting is told by the check itself (power_grant); a day of it must not hide a hang."""
    made = _make(options={"power_waves": waves, "wave_wait_s": 86400.0, "wave_dir": "/none"})
    assert made.deadlines == _make().deadlines


def test_the_cpu_backend_has_little_time() -> None:
    made = _make()
    assert made.total_s <= 1
    assert all(c.least_s <= 0.1 for c in made.checks)


def test_the_digest_follows_every_part() -> None:
    base = _make()
    assert base.digest() == _make().digest()
    others = [
        _make(seed=2), _make("standard"), _make(checks=["gemm"]), _make(gpus=[gpu(1)]), _make(inject=["gemm:nan"]),
        _make(shapes={"gemm_m": 32}), _make(options={"expect": {"gpus": 8}}),
    ]  # fmt: skip
    assert len({base.digest(), *(p.digest() for p in others)}) == len(others) + 1


def test_a_plan_survives_json() -> None:
    made = _make(inject=["hbm:bitflip:gpu=0"], options={"expect": {"gpus": 8}})
    assert from_json(Plan, json.loads(json.dumps(to_json(made)))) == made


def test_without_a_seed_one_is_drawn() -> None:
    assert _make(seed=None).seed != _make(seed=None).seed


def test_a_duration_is_the_time_of_an_extended_run() -> None:
    assert _make("extended", backend="cuda", duration_s=5400.0).total_s == 5400
    assert _make("extended", duration_s=5400.0).total_s == 5400
    assert _make("extended", backend="cuda").total_s > _make("standard", backend="cuda").total_s
    with pytest.raises(PlanError, match="extended"):
        _make(duration_s=100.0)
    with pytest.raises(PlanError, match="60 s"):
        _make("extended", duration_s=1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": "slow"}, "choose from quick, standard, extended"),
        ({"backend": "tpu"}, "choose from cpu, cuda"),
        ({"checks": ["gem"]}, "unknown checks gem"),
        ({"checks": []}, "unknown checks"),
        ({"seed": -1}, "out of range"),
        ({"shapes": {"gemm": 4}}, "unknown shape 'gemm'"),
        ({"shapes": {"gemm_m": 0}}, "positive integer"),
        ({"shapes": {"gemm_m": True}}, "positive integer"),
        ({"shapes": {"gemm_m": 20}}, "multiple of 16"),
        ({"shapes": {"gemm_k": 8192}}, "up to 4096"),
        ({"shapes": {"hbm_bytes": 100}}, "multiple of 4096"),
        ({"inject": ["gemm"]}, "CHECK:FAULT"),
        ({"inject": ["gemm:bitflip:1"]}, "CHECK:FAULT"),
        ({"inject": ["gem:bitflip"]}, "unknown check"),
        ({"inject": ["hbm:nan"]}, "unknown fault"),
        ({"inject": ["hbm:stuck"], "checks": ["gemm"]}, "hbm is not part of this run"),
        ({"inject": ["hbm:stuck:gpu=7"]}, "no GPU 7 is part of this run"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        _make(**settings)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_injections_hit_the_gpu_they_name() -> None:
    made = plan("gemm", "hbm", gpus=2, inject=("gemm:nan:gpu=1", "hbm:stuck", "gemm:zero:gpu=GPU-0"))
    assert made.injections("gemm", made.gpus[0]) == ("zero",)
    assert made.injections("gemm", made.gpus[1]) == ("nan",)
    assert made.injections("hbm", made.gpus[1]) == ("stuck",)
    assert not parse_injection("gemm:nan:gpu=1").hits("gemm", None)


def test_every_check_has_its_row() -> None:
    assert set(CHECKS["gemm"].faults) == set(FAULTS)
    for name, check in REGISTRY.items():
        assert check.name == name
        assert (name in SELFTESTED) == CHECKS[name].selftested


def test_every_check_has_its_time_in_every_level() -> None:
    for name, check in CHECKS.items():
        assert tuple(check.slots) == tuple(LEVELS), name


def test_results_survive_the_wire() -> None:
    reason = Reason("HUNG", "gemm", "m", "GPU-0", {"a": [1, {"b": None}]}, Action.REBOOT, Verdict.FAIL)
    measured = (Measurement("x", 1.5, "B/s", 1.0, "s"),)
    result = CheckResult("gemm", "GPU-0", Verdict.FAIL, 1.0, measured, coverage("gemm"), ({"row": 1},), (reason,))
    assert result_from_json(json.loads(encode(to_json(result)))) == result
    test = SelftestResult("f", "gemm", None, True, False, 0.1, "s")
    assert from_json(SelftestResult, json.loads(encode(to_json(test)))) == test


def test_numbers_that_json_lacks_become_text() -> None:
    assert json.loads(encode({"x": math.nan, "y": (math.inf,)})) == {"x": "nan", "y": ["inf"]}


def test_verdicts_rank() -> None:
    assert worst([Verdict.PASS, Verdict.INCONCLUSIVE]) is Verdict.INCONCLUSIVE
    assert worst({"a": Verdict.INCONCLUSIVE, "b": Verdict.FAIL}) is Verdict.FAIL
    assert worst([]) is Verdict.INCONCLUSIVE
    assert verdict_of([]) is Verdict.PASS
    assert [a.rank for a in Action] == list(range(7))
    with pytest.raises(ValueError, match="PASS"):
        Reason("X", "gemm", "m", severity=Verdict.PASS)


def test_the_time_of_a_check_that_has_nothing_to_do_goes_to_all_others() -> None:
    """One GPU has no pair: its links need no time."""
    one, two = (
        {step.check.name: step for step in schedule(_make("standard", backend="cuda", gpus=gpus))}
        for gpus in ([gpu(0)], [gpu(0), gpu(1)])
    )
    assert (one["nvlink"].budget_s, two["nvlink"].budget_s > 0) == (0, True)
    for name in ("sm", "gemm", "hbm", "pcie", "nccl", "power"):
        assert one[name].budget_s > 1.05 * two[name].budget_s, name
    assert one["power"].begins_s + one["power"].budget_s == pytest.approx(300 - CLOSING_S)


def test_a_run_that_could_not_keep_its_time_is_refused() -> None:
    with pytest.raises(PlanError, match=r"duration 60 s is too short: these checks take \d+ s at least"):
        _make("extended", backend="cuda", duration_s=60.0)
    for kept in (_make("extended", backend="cuda", duration_s=120.0), _make("extended", duration_s=60.0)):
        steps = [step for step in schedule(kept) if step.check.scope is not Scope.AFTER]
        assert sum(step.budget_s for step in steps) + CLOSING_S <= kept.total_s + 1e-6
    assert _make("extended", backend="cuda", duration_s=60.0, checks=["state", "gemm"]).total_s == 60
