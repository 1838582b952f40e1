"""`gpu-burnin plan`: the table and the JSON say what the plan says, and what simulated is says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks import CHECK_NAMES, CHECKS, USUAL_CHECKS
from gpu_burnin.cli.main import cli
from gpu_burnin.engine.plan import Plan, make_plan, schedule
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.judge.coverage import RULE_OF_THREE
from gpu_burnin.report.plan_view import document, render
from gpu_burnin.system.prose import STANDARD_WIDTH
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
    for width in (60, STANDARD_WIDTH, 200):
        assert all(len(line) <= width for line in render(made, load_skus(), width=width).splitlines())
    text = render(made, load_skus(), width=100)
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert [row.split()[0] for row in rows(text)] == [check.name for check in made.checks]
    head = next(line for line in lines if line.startswith("check "))
    for column in ("on", "time", "would see a fault", "covers"):
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
    assert "28 pairs in each direction" in render(every_check(), load_skus(), width=120)


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
    text = render(made, load_skus(), "no driver here", width=120)
    assert "Simulated: no driver here." in text
    assert "host memory, no GPU memory" in text
    assert "The CPU does every check once at the least" in text
    told = document(made, load_skus(), "no driver here")
    assert (told["simulated"], told["why_simulated"]) == (True, "no driver here")


def test_what_keeps_a_run_from_passing_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Found(gpus=GPUS, simulated=False, busy={"GPU-0": (4711,)})
    monkeypatch.setattr("gpu_burnin.node.planning.discover", lambda: busy)
    (tmp_path / "config.yaml").write_text("level: standard\n")
    asked = ["plan", "--config", str(tmp_path / "config.yaml"), "--backend", "cuda", "--level", "quick"]
    told = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).output)
    assert [check["name"] for check in told["checks"]] == ["state"]
    assert any("a foreign process uses a GPU" in why for why in told["no_pass"])
    text = CliRunner().invoke(cli, asked).output
    assert "Such a run could not pass: the level quick is less than standard" in " ".join(text.split())
    monkeypatch.setattr("gpu_burnin.node.planning.discover", lambda: Found(gpus=GPUS, simulated=False))
    told = json.loads(CliRunner().invoke(cli, [*asked[:-2], "--skip", "sm,hbm", "--json"]).output)
    assert told["no_pass"] == ["the configuration asks for sm, hbm too"]
    assert json.loads(CliRunner().invoke(cli, [*asked[:-2], "--json"]).output)["no_pass"] == []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Arguments for the command on a machine whose NVML gives nothing, with its own empty configuration."""
    monkeypatch.setattr("gpu_burnin.node.planning.discover", lambda: Found(error="there is no driver"))
    (tmp_path / "config.yaml").write_text("expect: {gpus: 8}\n")
    return ["plan", "--config", str(tmp_path / "config.yaml"), "--state-dir", str(tmp_path / "state")]


def asked_of(answers: list[str], *more: str) -> Result:
    return CliRunner().invoke(cli, [*answers, *more], prog_name="gpu-burnin")


@pytest.mark.parametrize("more", [[], ["--json"], ["--backend", "cpu"], ["--backend", "cuda"], ["--level", "quick"]])
def test_without_a_gpu_it_says_so_instead_of_a_table_of_nothing(
    answers: list[str], more: list[str], tmp_path: Path
) -> None:
    done = asked_of(answers, *more)
    assert isinstance(done.exception, GpuBurninError) and done.exception.exit_code == 2
    assert "this node has no GPU to plan for (there is no driver)" in str(done.exception)
    assert "gpu-burnin plan --model KEY --gpus-count N" in str(done.exception)
    assert done.output == "", "no table of zeros"
    assert not (tmp_path / "state").exists()


def test_gpus_that_no_longer_answer_are_no_plan_either(answers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Found(gpus=GPUS, simulated=False, lost=frozenset(gpu.uuid for gpu in GPUS))
    monkeypatch.setattr("gpu_burnin.node.planning.discover", lambda: lost)
    with pytest.raises(GpuBurninError, match="none of the 2 GPUs of this node can be tested"):
        raise asked_of(answers, "--backend", "cuda").exception or AssertionError


@pytest.mark.parametrize(
    ("asked", "level", "total_s"),
    [([], "standard", 300), (["--level", "quick"], "quick", 60), (["--for", "90m"], "extended", 5400)],
)
def test_the_command_takes_the_options_of_a_run(
    asked: list[str], level: str, total_s: float, answers: list[str]
) -> None:
    options = ["--model", "h100-sxm5-80gb", "--json", "--skip", "sm", *asked]
    told = json.loads(asked_of(answers, *options).output)
    assert (told["level"], told["total_s"], told["backend"], told["simulated"]) == (level, total_s, "cuda", False)
    assert [check["name"] for check in told["checks"]] == [name for name in USUAL_CHECKS if name != "sm"]
    assert asked_of(answers, *options).output == asked_of(answers, *options).output, "the same question and answer"


@pytest.mark.parametrize("key", load_skus().skus)
def test_a_plan_from_a_model_is_that_of_a_node_with_such_gpus(key: str, answers: list[str]) -> None:
    sku = load_skus().skus[key]
    gpus = tuple(replace(GPUS[0], index=i, uuid=f"GPU-{i}", sku=key, memory_bytes=sku.memory_bytes) for i in range(4))
    options = {"power_waves": "always", "expect": {"gpus": 8}}
    own = document(make_plan("standard", backend="cuda", gpus=gpus, options=options), load_skus())
    told = json.loads(asked_of(answers, "--model", key, "--gpus-count", "4", "--json").output)
    assert told["planned_from_model"] == key and own["planned_from_model"] is None
    assert [(one["sku"], one["uuid"]) for one in told["gpus"]] == [(key, None)] * 4
    assert told["checks"] == own["checks"]
    assert told["missed_fault_rate_upper95_at_best_per_s"] == own["missed_fault_rate_upper95_at_best_per_s"]


def test_a_plan_from_a_model_says_so(answers: list[str]) -> None:
    output = asked_of(answers, "--model", "h100-sxm5-80gb", "--gpus-count", "8").output
    told = " ".join(output.split())
    assert "Level standard on 8 GPUs (h100-sxm5-80gb), backend cuda: 5 min in all" in told
    assert "Planned from the data of h100-sxm5-80gb (NVIDIA H100 80GB HBM3); nothing was looked at here." in told
    assert "Simulated" not in told and "28 pairs" in told and "of 80 GiB" in told
    assert asked_of(answers, "--model", "h100-sxm5-80gb").output == output, "eight where nothing is said"
    listed = asked_of(answers, "--model", "list")
    assert [line.split()[0] for line in listed.output.splitlines()] == [*load_skus().skus]
    assert [one["key"] for one in json.loads(asked_of(answers, "--model", "list", "--json").output)] == [
        *load_skus().skus
    ]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--model", "h100-sxm"], "did you mean h100-sxm5-80gb?"),
        (["--model", "H100"], "did you mean h100-sxm5-80gb or h100-pcie or h100-nvl?"),
        (["--model", "b20-sxm"], "did you mean b200-sxm?"),
        (["--model", "teapot"], "choose from a100-sxm4-40gb, "),
        (["--model", "h200-sxm", "--backend", "cpu"], "leave --backend cpu out"),
        (["--model", "h200-sxm", "--gpus-count", "0"], "0 is not in the range"),
        (["--gpus-count", "8"], "--gpus-count goes with --model KEY"),
    ],
)
def test_a_wrong_model_or_count_is_a_usage_error(asked: list[str], says: str, answers: list[str]) -> None:
    done = asked_of(answers, *asked)
    told = str(done.exception) if isinstance(done.exception, GpuBurninError) else done.output
    assert says in told
    assert getattr(done.exception, "exit_code", done.exit_code) == 2
