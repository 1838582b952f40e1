"""`gpu-burnin plan`: the table and the JSON say what the plan says, and what simulated is says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_burnin.checks import CHECK_NAMES, CHECKS, USUAL_CHECKS
from gpu_burnin.cli.main import cli
from gpu_burnin.engine.plan import LEVELS, Plan, make_plan, schedule
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.judge.coverage import RULE_OF_THREE
from gpu_burnin.report.plan_view import WIDTH, document, render
from gpu_burnin.telemetry.discover import Found
from tests.support.run_helpers import GPUS, plan

EIGHT = tuple(replace(GPUS[0], index=index, uuid=f"GPU-{index}") for index in range(8))


def every_check(level: str = "standard", waves: str = "granted") -> Plan:
    """A plan with all checks, on eight GPUs."""
    options = {"power_waves": waves, "wave_wait_s": 1800.0, "expect": {"gpus": 8}}
    return make_plan(level, backend="cuda", gpus=EIGHT, seed=1, options=options, checks=CHECK_NAMES)


def rows(text: str) -> list[str]:
    """Lines of the table that begin a check."""
    return [line for line in text.splitlines() if re.match(rf"({'|'.join(CHECK_NAMES)}) ", line)]


@pytest.mark.parametrize("level", list(LEVELS))
def test_the_table_has_a_row_for_each_check_in_order_and_is_aligned(level: str) -> None:
    made = every_check(level)
    text = render(made, load_skus())
    lines = text.splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert [row.split()[0] for row in rows(text)] == [check.name for check in made.checks]
    head = next(line for line in lines if line.startswith("check "))
    for column in ("on", "time", "missed faults", "covers"):
        at = head.index(f"  {column}") + 2
        assert all(row[at - 1] == " " and row[at] != " " for row in rows(text)), column
    assert f"Level {level} on 8 GPUs (h200-sxm), backend cuda:" in lines[0]
    assert "imulated" not in text


def test_the_json_follows_the_schedule_and_the_rule_of_three() -> None:
    made = every_check()
    told = document(made, load_skus())
    json.dumps(told)
    assert (told["level"], told["total_s"], told["simulated"]) == ("standard", 300.0, False)
    assert [check["name"] for check in told["checks"]] == [check.name for check in made.checks]
    # What one kernel, precision, direction, or pair and direction gets of the time at best.
    least = {
        "sm": 1 / 7,
        "gemm": 1 / 7,
        "hbm": 1,
        "pcie": 0.65 / 2,
        "nvlink": 0.5 / 8 / 14 + 0.25,
        "nccl": 1,
        "power": 1,
    }
    active_s = 0.0
    for check, step in zip(told["checks"], schedule(made), strict=True):
        assert check["seconds"] == pytest.approx(step.budget_s, abs=1e-3)
        assert check["begins_s"] == pytest.approx(step.begins_s, abs=1e-3)
        if step.check.per_gpu:
            # In turns on eight GPUs each waits for seven eighths of that part.
            active_s += step.budget_s * (1 - CHECKS[step.check.name].in_turns * 7 / 8)
            least_s = step.budget_s * least[step.check.name]
            assert check["missed_fault_rate_upper95_at_best_per_s"] == pytest.approx(RULE_OF_THREE / least_s)
        else:
            assert check["missed_fault_rate_upper95_at_best_per_s"] is None
        assert check["covers_in_words"], check["name"]
    assert told["missed_fault_rate_upper95_at_best_per_s"] == pytest.approx(RULE_OF_THREE / active_s)


def test_gpus_that_wait_for_their_turns_are_not_tested_meanwhile() -> None:
    made = every_check()
    alone = make_plan("standard", backend="cuda", gpus=EIGHT[:1], options=made.options)
    of_one = {check["name"]: check for check in document(alone, load_skus())["checks"]}
    of_eight = {check["name"]: check for check in document(made, load_skus())["checks"]}
    for name in ("pcie", "nvlink"):
        assert (
            of_eight[name]["missed_fault_rate_upper95_at_best_per_s"] > 1.5 * RULE_OF_THREE / of_eight[name]["seconds"]
        )
    each_way_s = of_one["pcie"]["seconds"] / 2
    assert of_one["pcie"]["missed_fault_rate_upper95_at_best_per_s"] == pytest.approx(3 / each_way_s, rel=1e-3)
    assert of_one["nvlink"]["missed_fault_rate_upper95_at_best_per_s"] is None, "one GPU has no pair"
    assert (of_one["nvlink"]["seconds"], of_one["nvlink"]["seconds_on_each_gpu"]) == (0, 0)


def test_a_longer_run_misses_less() -> None:
    found = [document(every_check(level), load_skus())["missed_fault_rate_upper95_at_best_per_s"] for level in LEVELS]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3


def test_what_is_covered_is_counted_for_the_hardware() -> None:
    covers = {check["name"]: check["covers"] for check in document(every_check(), load_skus())["checks"]}
    assert covers["state"] == {"gpus": 8, "expect": {"gpus": 8}, "node_links": None}
    assert covers["hbm"]["memory_bytes"] == [int(0.95 * GPUS[0].memory_bytes)] * 8
    assert (covers["hbm"]["least_share"], covers["hbm"]["least_patterns"]) == (0.95, 4)
    assert "fp8_e4m3" in covers["gemm"]["precisions"]
    without_fp8 = replace(every_check(), gpus=(replace(GPUS[0], sku="a100-sxm4-80gb"),))
    told = {check["name"]: check["covers"] for check in document(without_fp8, load_skus())["checks"]}
    assert "fp8_e4m3" not in told["gemm"]["precisions"]
    assert "bf16" in told["gemm"]["precisions"]


@pytest.mark.parametrize(
    ("name", "key", "value"), [("nvlink", "pairs", 56), ("nccl", "ranks", 8), ("power", "power_waves", "granted")]
)
def test_what_gpus_cover_together_is_counted(name: str, key: str, value: object) -> None:
    found = {check["name"]: check["covers"] for check in document(every_check(), load_skus())["checks"]}
    assert found[name][key] == value
    assert "28 pairs in each direction" in render(every_check(), load_skus())


@pytest.mark.parametrize(
    ("level", "waves", "says", "waits"),
    [
        ("standard", "always", "power waves on all GPUs at once, 0.5 to 50 Hz;", False),
        ("standard", "granted", "0.5 to 50 Hz, once they are granted;", True),
        ("standard", "never", "no power waves (never)", False),
        ("quick", "granted", "no power waves at this level", False),
    ],
)
def test_power_waves_are_told_as_they_are_allowed(level: str, waves: str, says: str, waits: bool) -> None:
    made = every_check(level, waves)
    power = next(check for check in document(made, load_skus())["checks"] if check["name"] == "power")
    assert says in power["covers_in_words"]
    assert bool(power["covers"]["frequencies_hz"]) == (level == "standard" and waves != "never")
    assert ("The power waves wait up to 30 min for a grant" in render(made, load_skus())) is waits


def test_a_plan_without_a_gpu_says_that_it_is_simulated_and_why() -> None:
    made = plan("cpu")
    text = render(made, load_skus(), "no driver here")
    assert "Simulated: no driver here." in text
    assert "host memory, no GPU memory" in text
    assert "The CPU does every check once at the least" in text
    told = document(made, load_skus(), "no driver here")
    assert (told["simulated"], told["why_simulated"]) == (True, "no driver here")


def test_what_keeps_a_run_from_passing_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Found(gpus=GPUS, simulated=False, busy={"GPU-0": (4711,)})
    monkeypatch.setattr("gpu_burnin.cli.plan.discover", lambda: busy)
    (tmp_path / "config.yaml").write_text("level: standard\n")
    asked = ["plan", "--config", str(tmp_path / "config.yaml"), "--backend", "cuda", "--level", "quick"]
    told = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).output)
    assert [check["name"] for check in told["checks"]] == ["state"]
    assert any("a foreign process uses a GPU" in why for why in told["no_pass"])
    text = CliRunner().invoke(cli, asked).output
    assert "Such a run could not pass: the level quick is less than standard" in " ".join(text.split())
    monkeypatch.setattr("gpu_burnin.cli.plan.discover", lambda: Found(gpus=GPUS, simulated=False))
    told = json.loads(CliRunner().invoke(cli, [*asked[:-2], "--skip", "sm,hbm", "--json"]).output)
    assert told["no_pass"] == ["the configuration asks for sm, hbm too"]
    assert json.loads(CliRunner().invoke(cli, [*asked[:-2], "--json"]).output)["no_pass"] == []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Arguments for the command on a machine whose NVML gives nothing, with its own empty configuration."""
    monkeypatch.setattr("gpu_burnin.cli.plan.discover", lambda: Found(error="there is no driver"))
    (tmp_path / "config.yaml").write_text("expect: {gpus: 8}\n")
    return ["plan", "--config", str(tmp_path / "config.yaml"), "--state-dir", str(tmp_path / "state")]


def test_the_command_works_without_a_gpu_and_leaves_nothing(answers: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, answers)
    assert done.exit_code == 0, done.output
    assert "Simulated: there is no driver." in done.output
    assert [row.split()[0] for row in rows(done.output)] == list(USUAL_CHECKS)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("asked", "level", "total_s"),
    [([], "standard", 300), (["--level", "quick"], "quick", 60), (["--for", "90m"], "extended", 5400)],
)
def test_the_command_takes_the_options_of_a_run(
    asked: list[str], level: str, total_s: float, answers: list[str]
) -> None:
    done = CliRunner().invoke(cli, [*answers, "--backend", "cuda", "--json", "--skip", "sm", *asked])
    told = json.loads(done.output)
    assert (told["level"], told["total_s"], told["backend"], told["simulated"]) == (level, total_s, "cuda", True)
    assert [check["name"] for check in told["checks"]] == [name for name in USUAL_CHECKS if name != "sm"]
    assert (
        CliRunner().invoke(cli, [*answers, "--json", *asked]).output
        == CliRunner().invoke(cli, [*answers, "--json", *asked]).output
    ), "the same question, the same answer"
