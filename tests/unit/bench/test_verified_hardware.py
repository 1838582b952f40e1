"""docs/verified-hardware.md claims no model that it does not show, and leaves out none."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_burnin.hardware.skus import load_skus

PAGE = (Path(__file__).resolve().parents[3] / "docs/verified-hardware.md").read_text()


def _part(title: str) -> str:
    """The text under a heading, up to the next one of its level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


def test_each_model_is_either_measured_or_among_those_never_seen() -> None:
    never_seen = re.findall(r"^- (.*)$", _part("Models never seen"), re.M)
    measured = re.findall(r"^### (.*), \d{4}-\d\d-\d\d$", _part("Measured"), re.M)
    known = [sku.name for sku in load_skus().skus.values()]
    assert never_seen == [name for name in known if name not in measured]


def test_the_page_has_no_rows_that_wait_to_be_filled() -> None:
    assert "not yet run" not in PAGE.lower()
