"""The campaign's page: its commands parse, its cases exist, and its table names every area with files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.campaign.__main__ import parser
from tests.campaign.faults.state import STATE_FAULTS
from tests.campaign.matrix import AREAS, TOOLS

ROOT = Path(__file__).resolve().parents[3]
CAMPAIGN = ROOT / "tests/campaign"
PAGE = (ROOT / "docs/reference/campaign.md").read_text()
COMMANDS = re.findall(r"^python -m tests\.campaign ?(.*)$", PAGE, re.MULTILINE)
AREA = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \|$", re.MULTILINE)


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 3
    with pytest.raises(SystemExit):
        parser().parse_args(["--no-such-option"])


@pytest.mark.parametrize("arguments", COMMANDS)
def test_command_parses_and_its_cases_exist(arguments: str) -> None:
    for test in parser().parse_args(shlex.split(arguments)).tests:
        path, function, fault = re.fullmatch(r"(\S+)::(\w+)\[(.*)-\d+\]", test).groups()  # type: ignore[union-attr]
        assert f"def {function}(" in (ROOT / path).read_text()
        assert fault in STATE_FAULTS


def test_table_names_every_area_and_existing_files() -> None:
    rows = AREA.findall(PAGE)
    assert tuple(area for area, _, _ in rows) == AREAS
    for _, faults, cases in rows:
        for folder, names in (("faults", faults), ("cases", cases)):
            for name in re.findall(r"`(\S+\.py)`", names):
                assert (CAMPAIGN / folder / name).is_file(), name


def test_matrix_of_the_page_has_the_columns_of_the_matrix() -> None:
    heading = re.search(r"^area +fault .*$", PAGE, re.MULTILINE)
    assert heading is not None
    assert re.split(r" {2,}", heading[0]) == ["area", "fault", "muster", *(f"{tool} rule" for tool in TOOLS), "codes"]
