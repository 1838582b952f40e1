"""The command line: quick, one sentence on error, the right exit codes."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml

from gpu_burnin.api import evidence_codes
from gpu_burnin.api.evidence import Statement
from gpu_burnin.checks import CHECKS
from gpu_burnin.cli import main as cli
from gpu_burnin.cli import program
from gpu_burnin.cli.bash import Bash
from gpu_burnin.cli.options import complete_injections
from gpu_burnin.engine.plan import faults_of, parse_injection
from gpu_burnin.hardware import load_reasons
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from tests.support.clocks import PATIENCE_S
from tests.support.command_line import called
from tests.support.report_helpers import leave_run

ROOT = Path(__file__).resolve().parents[3]


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which takes a third of a second; `called` is enough for what a command answers."""
    command = [sys.executable, "-m", "gpu_burnin", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def loaded_by(*arguments: str | Path) -> set[str]:
    """Names of the modules outside the standard library that a command has loaded, three levels deep."""
    code = (
        "import sys\nfrom gpu_burnin.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "own = {'.'.join(name.split('.')[:3]) for name in sys.modules}\n"
        "known = sys.stdlib_module_names\n"
        "print('\\n' + ' '.join(sorted(n for n in own if n.split('.')[0] not in known)))"
    )
    command = [sys.executable, "-S", "-c", code, *map(str, arguments)]
    environment = {"PYTHONPATH": ":".join(str(path) for path in (ROOT, Path(click.__file__).parents[1]))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=environment)
    return {name for name in done.stdout.splitlines()[-1].split() if not name.startswith(("click", "__main__"))}


def test_help_names_every_command_and_loads_nothing_but_click() -> None:
    done = call("--help")
    assert done.returncode == 0
    for name in (
        "run", "gate", "report", "publish", "explain", "schema", "version", "host", "compare", "selftest",
        "completion", "plan", "start", "status", "power-grant", "scan",
    ):  # fmt: skip
        assert f"\n  {name} " in done.stdout
    own = {
        f"gpu_burnin{name}"
        for name in (
            "", ".__main__", ".cli", ".cli.main", ".cli.options", ".cli.program", ".errors", ".system",
            ".system.own_name", ".system.streams",
            # The flags are made of the settings, which import nothing but the standard library.
            ".settings", ".settings.config", ".settings.durations", ".settings.expectations", ".settings.options",
            ".settings.state_dir", ".api", ".api.levels", ".api.names",
        )
    }  # fmt: skip
    assert loaded_by("--help") == own
    assert loaded_by("run", "--help") == own
    # The measure itself sees what a command loads.
    assert loaded_by("explain") > own


def test_gate_says_open_and_loads_little(config: Config, statement: Statement, tmp_path: Path) -> None:
    here = replace(statement, machine_id=host.machine_id(), boot_id=host.boot_id())
    leave_run(config, here)
    path = tmp_path / "config.yaml"
    settings = {"node_name": "gpu-1", "host_key": str(config.host_key), "state_dir": str(config.state_dir)}
    path.write_text(yaml.safe_dump(settings))
    done = call("gate", "--config", path)
    assert (done.returncode, done.stdout) == (0, "gpu-1: open: PASS of run 1 at 2026-01-02T03:04:05Z\n")
    heavy = {
        "numpy",
        "rich",
        "jsonschema",
        "pynvml",
        "cryptography",
        "gpu_burnin.device",
        "gpu_burnin.exact",
        "gpu_burnin.report",
    }
    assert not loaded_by("gate", "--config", path) & heavy


@pytest.mark.parametrize("name", sorted(cli.TABLE))
def test_lazy_commands_are_there_with_their_help(name: str) -> None:
    module, attribute, help_line = cli.TABLE[name]
    command = getattr(importlib.import_module(module), attribute)
    assert command.name == name
    assert help_line
    assert called(cli.cli, name, "--help").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "No such command"),
        (("run", "--colour"), "No such option"),
        (("run", "--level", "slow"), "Invalid value for '--level'"),
        (("run", "--gpus", ","), "no name given"),
        (("run", "--gpus", "all,1"), "give either all or names of GPUs, not both"),
        (("run", "--for", "soon"), "is not a duration"),
        (("run", "--backend", "tpu"), "Invalid value for '--backend'"),
        (("run", "--waves", "sometimes"), "Invalid value for '--waves'"),
        (("run", "--wave-wait", "soon"), "is not a duration"),
        (("plan", "--level", "slow"), "Invalid value for '--level'"),
        (("plan", "--for", "2h", "--level", "quick"), "does not go with --level quick"),
        (("plan", "--checks", "gem"), "unknown checks gem"),
        (("plann",), "No such command 'plann'. Did you mean 'plan'?"),
        (("plan", "--gpus", "99"), "--gpus 99 fits none"),
        (("plan", "--model", "t4", "--gpus-count", "2", "--gpus", "9"), "fits none of the GPUs here: 0, 1; name"),
        (("host", "--port", "0", "gpu-1"), "0 is not in the range 1<=x<=65535"),
        (("gate", "--deadline", "1s"), "--deadline goes with --cluster"),
        (("status", "--timeout", "1s"), "--timeout goes with --wait-for"),
        (("power-grant", "--timeout", "1s"), "--timeout goes with --wait"),
        (("explain", ""), "an empty text is no code"),
        (("run", "--expect", "gpus=0"), "gpus must be a whole number of 1 or more, not '0'"),
        (("run", "--expect", "gpus"), "'gpus' is not KEY=VALUE"),
        (("plan", "--expect", "gpuz=8"), "unknown key expect.gpuz (did you mean gpus?)"),
        (("completion", "tcsh"), "Invalid value for '{bash|zsh|fish}'"),
        (("selftest", "--checks", "state"), "no self-test for state"),
        (("explain", "NOTHING"), "no code NOTHING"),
        (("gate", "--config", "/none.yaml"), "no such configuration file"),
        (("run", "--expect", "=3"), "'=3' is not KEY=VALUE"),
        (("run", "--state-dir", ""), "the path is empty"),
        (("gate", "--config", ""), "the path is empty"),
        (("report", "/none"), "there is no report; run gpu-burnin run"),
        (("publish", "--deadline", "soon"), "is not a duration"),
    ],
)
def test_mistakes_are_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = called(cli.cli, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_version_schema_and_explain() -> None:
    assert called(cli.cli, "version").stdout.strip() == called(cli.cli, "--version").stdout.split()[-1]
    assert json.loads(called(cli.cli, "schema").stdout)["title"]
    listed = called(cli.cli, "explain").stdout
    assert all(code in listed for code in (*load_reasons(), *evidence_codes.CODES))
    told = " ".join(called(cli.cli, "explain", "gemm_mismatch").stdout.split())
    assert "GEMM_MISMATCH" in told
    assert load_reasons()["GEMM_MISMATCH"].what_to_do in told
    assert "(Reset the GPU, then `gpu-burnin run`)" in called(cli.cli, "explain", "ECC_PENDING").stdout
    assert "did you mean GEMM_MISMATCH?" in called(cli.cli, "explain", "GEM_MISMATCH").stderr
    assert "too old" in called(cli.cli, "explain", "EVIDENCE_EXPIRED").stdout
    assert "stopped reporting" in called(cli.cli, "explain", "NODE_UNKNOWN").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_asks_this_program(shell: str) -> None:
    done = called(cli.cli, "completion", shell)
    assert done.returncode == 0
    assert f"_GPU_BURNIN_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gpu-burnin se", {"seal", "selftest"}),
        ("gpu-burnin pl", {"plan"}),
        ("gpu-burnin run --le", {"--level"}),
        ("gpu-burnin run --level s", {"standard"}),
        ("gpu-burnin completion f", {"fish"}),
        ("gpu-burnin run --checks g", {"gemm"}),
        ("gpu-burnin run --skip state,h", {"state,hbm"}),
        ("gpu-burnin plan --model h100-s", {"h100-sxm5-80gb"}),
        ("gpu-burnin explain gemm_m", {"GEMM_MISMATCH"}),
        ("gpu-burnin explain 79", {"79"}),
        ("gpu-burnin explain xid 79", {"79"}),
        ("gpu-burnin run --inject gemm:bitf", {"gemm:bitflip"}),
        ("gpu-burnin run --inject state:cr", {"state:crash", "state:crash_once"}),
        ("gpu-burnin run --inject gemm:bitflip:gpu=1", {"gemm:bitflip:gpu=1"}),
        ("gpu-burnin run --inject gemm:nothing:", set()),
        ("gpu-burnin explain EVIDENCE_EX", {"EVIDENCE_EXPIRED"}),
    ],
)
def test_completion_completes(words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*completed(words.split(), words.count(" "), monkeypatch)} == expected


def completed(words: Sequence[str], current: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bash gets for these words, of which it asks for the one numbered `current`."""
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(current))
    answer = Bash(cli.cli, {}, cli.NAME, program.complete_variable(cli.NAME)).complete()
    return [line.partition(",")[2] for line in answer.splitlines()]


def test_every_fault_that_is_offered_can_be_injected() -> None:
    offered = complete_injections(click.Context(cli.cli), click.Option(["--inject"]), "")
    assert {parse_injection(spec).check for spec in offered} == set(CHECKS)
    assert {parse_injection(spec).fault for spec in offered if spec.startswith("gemm:")} == set(faults_of("gemm"))


@pytest.mark.parametrize(
    ("words", "current", "expected"),
    [
        # As bash takes them apart: it replaces what is behind the last colon.
        (["run", "--inject", "gemm", ":", "bitf"], 5, ["bitflip"]),
        (["run", "--inject", "gemm", ":", "bitflip", ":"], 6, [f"gpu={index}" for index in range(8)]),
        (["run", "--inject", "gemm:bitf"], 3, ["gemm:bitflip"]),
        (["run", "--inject", "gemm", ":", "bitflip", "--le"], 6, ["--level"]),
        (["run", "--inject", "gemm", ":", "bitflip", "--level", ""], 7, ["quick", "standard", "extended"]),
    ],
)
def test_words_with_colons_are_put_together_again(
    words: list[str], current: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(["gpu-burnin", *words], current, monkeypatch) == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_itself_completes_behind_a_colon() -> None:
    asked = "COMP_WORDS=(gpu-burnin run --inject gemm : bitf); COMP_CWORD=5"
    burnin, reply = Path(sys.executable).with_name("gpu-burnin"), 'printf "%s\n" "${COMPREPLY[@]}"'
    script = f"{called(cli.cli, 'completion', 'bash').stdout}\n{asked}; _gpu_burnin_completion {burnin}; {reply}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.split() == ["bitflip"]


def test_a_fault_of_the_program_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise RuntimeError("not thought of")

    monkeypatch.setattr("gpu_burnin.report.model.schema_text", broken)
    monkeypatch.setattr(sys, "argv", ["gpu-burnin", "schema"])
    assert program.call(cli.cli) == 3, "1 would say FAIL"
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "a fault of gpu-burnin itself (RuntimeError('not thought of'))" in err.splitlines()[-1]
