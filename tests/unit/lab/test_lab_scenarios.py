"""A scenario and the kernel log that goes with it: who uses one by hand learns of the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "tests/lab/scenarios"
PAGE = ROOT / "docs/operations/lab.md"
HEADING = "## A sick node without the lab"


def test_a_scenario_names_its_kernel_log_and_how_to_use_it() -> None:
    logs = sorted(SCENARIOS.glob("*.kmsg"))
    assert {path.stem for path in SCENARIOS.glob("sick-*.scenario")} == {path.stem for path in logs}
    for log in logs:
        comment = [line for line in log.with_suffix(".scenario").read_text().splitlines() if line.startswith("#")]
        assert f"`kernel_log: PATH/{log.name}`" in " ".join(comment), log


@pytest.mark.slow
def test_the_commands_of_the_page_show_the_sick_node_with_its_xid(tmp_path: Path) -> None:
    _, _, section = PAGE.read_text().partition(f"{HEADING}\n")
    found = re.search(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE} has no commands below {HEADING!r}"
    commands = (
        found[1]
        .replace("/tmp/nvml", str(tmp_path / "nvml"))
        .replace("--state-dir look", f"--state-dir {tmp_path}/look")
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    promised = re.findall(r"`([A-Z][A-Z_]+)`", section.partition("## ")[0])
    assert {"XID_FATAL", "ECC_UNCORRECTED"} <= set(promised)
    assert all(f"FAIL {code} on GPU 1" in done.stdout for code in promised), done.stdout
    assert "Power the machine off and on" in done.stdout
