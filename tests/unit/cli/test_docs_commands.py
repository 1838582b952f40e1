"""The commands in the documentation exist, with these options and arguments, and say what the page says."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpu_burnin.admission.decide import CODES
from gpu_burnin.api import evidence_codes
from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.cli.main import cli
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.hardware import HardwareDataError, load_reasons, load_xids
from gpu_burnin.launch.request import RESERVED
from gpu_burnin.system.journald import FIELDS
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")))
CODE = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")
BURNIN = ROOT / "docs/operations/burnin.md"
CHECKS = ROOT / "docs/reference/checks.md"
EXPECTATIONS = ROOT / "docs/reference/expectations.md"
# Environment variables that the pages name.
ENVIRONMENT = {
    "ANSIBLE_CONFIG",
    "ANSIBLE_VAULT_PASSWORD_FILE",
    "GPU_BURNIN_SIMULATED_NVML",
    "LD_LIBRARY_PATH",
    "SOURCE_DATE_EPOCH",
    "MIG_STRATEGY",
    "MUSTER_CACHE",
    "MUSTER_LAB_STATE",
    "MUSTER_LEAVE_FILE",
    "MUSTER_MONITORING",
    "NVIDIA_DRIVER_CAPABILITIES",
    # Of jobs.
    "MUSTER_ATTEMPT",
    "MUSTER_IMAGE",
    "MUSTER_JOB",
    "MUSTER_NODE",
    "MUSTER_TEAM",
    *RESERVED,
}
# Fields of the systemd journal.
JOURNAL = {*FIELDS, "SYSLOG_IDENTIFIER"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r'^(?:eval "\$\()?((?:gpu-burnin|muster) [^)#>]*)')
PROGRAMS: dict[str, click.Group] = {"gpu-burnin": cli, "muster": muster.cli}


def commands(page: str) -> list[str]:
    """Lines of a page's plain code blocks that run one of the programs, without comments and redirections."""
    blocks = [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == ""]
    return [found[1].strip() for text in blocks for line in text.splitlines() if (found := COMMAND.match(line))]


ALL = [(page, command) for page in PAGES for command in commands(page)]


def resolved(words: list[str]) -> click.Context:
    """What click makes of the words, without running anything; a wrong option or argument raises."""
    program, *words = words
    command: click.Command = PROGRAMS[program]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group) and (words or not command.invoke_without_command):
        if words[0].startswith("--") and command.invoke_without_command:
            break
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
    return command.make_context(command.name or "", words, parent=context)


def test_pages_have_commands() -> None:
    assert {page for page, _ in ALL} >= {"README.md", "docs/operations/burnin.md"}
    assert len([command for page, command in ALL if page == "docs/operations/burnin.md"]) >= 12
    with pytest.raises(click.UsageError):
        resolved(["gpu-burnin", "run", "--no-such-option"])


@pytest.mark.parametrize(("page", "command"), ALL)
def test_command_is_one_that_the_program_has(page: str, command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    # Files and folders that a command checks for while it reads its options.
    for number, word in enumerate(words):
        if word == "STATE":
            words[number] = str(tmp_path)
        if word.endswith((".json", ".log")):
            (tmp_path / f"{number}.json").touch()
            words[number] = str(tmp_path / f"{number}.json")
    resolved(words)


@pytest.mark.slow
def test_the_commands_for_simulated_gpus_find_what_the_page_plants(tmp_path: Path) -> None:
    """The section as it stands, but for the demo, which has its own tests; each command ends with a FAIL."""
    section = BURNIN.read_text().partition("\n## Without a GPU\n")[2].partition("\n## ")[0]
    lines = [line for _, text in BLOCK.findall(section) for line in text.splitlines() if "gpu-burnin demo" not in line]
    script = "\n".join(f"{line}; echo code=$?" if line.startswith("gpu-burnin ") else line for line in lines)
    bin_dirs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={"PATH": bin_dirs, "HOME": str(tmp_path)}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.startswith("code=")] == ["code=1"] * 3, done.stderr
    report = json.loads((tmp_path / "look/latest/report.json").read_text())
    assert report["coverage"]["injected"] == ["gemm:bitflip:gpu=0"]
    assert "GEMM_MISMATCH" in {reason["code"] for reason in report["reasons"]}


def test_checks_of_the_page_are_those_of_the_program() -> None:
    named = re.findall(r"^\| `(\w+)` \|", CHECKS.read_text(), re.MULTILINE)
    assert tuple(named) == CHECK_NAMES


def test_the_page_of_exit_codes_has_every_command() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    for name, program in PROGRAMS.items():
        rows = re.findall(rf"^\| (`{name} [^|]*) \|", page, re.MULTILINE)
        named = {words.removeprefix(f"{name} ").split()[0] for row in rows for words in re.findall(r"`([^`]+)`", row)}
        assert named == set(program.list_commands(click.Context(program))), name


@pytest.mark.parametrize("page", PAGES)
def test_codes_of_a_page_are_those_of_the_program(page: str) -> None:
    known = {*load_reasons(), *evidence_codes.CODES, *CODES}
    named = set(CODE.findall((ROOT / page).read_text())) - ENVIRONMENT - JOURNAL
    assert named <= known, "codes are stable: a page must not name one that is not there"


@pytest.mark.parametrize("words", [["explain"], ["explain", "XID_UNKNOWN"], ["schema"], ["completion", "bash"]])
def test_commands_that_need_nothing_run(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert result.output


def test_program_of_the_page_is_python_that_finds_its_names() -> None:
    (source,) = [text for kind, text in BLOCK.findall(BURNIN.read_text()) if kind == "python"]
    import gpu_burnin

    names = [alias.name for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert names
    assert all(hasattr(gpu_burnin, name) for name in names)


def test_mistake_in_a_data_file_is_told_as_the_page_says(tmp_path: Path) -> None:
    shown = next(
        line for line in EXPECTATIONS.read_text().splitlines() if line.startswith(".../gpu_burnin/hardware/xid.yaml:")
    )
    line, _, message = shown.partition("xid.yaml:")[2].partition(": ")
    text = (ROOT / "gpu_burnin/hardware/xid.yaml").read_text().splitlines()
    assert "preflight: " in text[int(line) - 1]
    text[int(line) - 1] = "    preflight: panic"
    path = tmp_path / "xid.yaml"
    path.write_text("\n".join(text))
    with pytest.raises(HardwareDataError, match=rf"xid\.yaml:{line}: {re.escape(message)}"):
        load_xids(path)
