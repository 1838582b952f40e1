"""What pages and docstrings say has not run on real GPUs agrees with docs/verified-hardware.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = "docs/verified-hardware.md"
# What a sentence says of something that did not run on a GPU.
CLAIM = re.compile(
    r"\b(?:has|have|was|were) (?:not|never)(?: yet)?(?: been)? run (?:yet )?on .*(?:hardware|GPU)"
    r"|\b[Nn]othing (?:here )?(?:is|was|has been) (?:proven|tested|tried|measured) on .*(?:hardware|GPU)"
    r"|tests on GPUs \| \**none yet"
)
# Where a page names the models that have run the burn-in: an H100 and an H200.
NAMED = re.compile(r"\b(?:[Aa]n?|one) ([A-Z]{1,2}\d{2,3})\b")
NAMING = ("README.md", "docs/status.md", "docs/reference/comparison.md")
# Each run was of one GPU: what takes several has not run, and neither has a fleet.
NOT_THERE = re.compile(r"\b(?:several|whole fleet)\b")
FALSE = [
    "It has not run on a real GPU or on Ubuntu yet.",
    "Descriptors were made without a GPU; products have not yet been run on hardware.",
    "Communicators have not yet been run on hardware.",
    "Nothing here is proven on a GPU: not the kernels.",
    "| tests on GPUs | **none yet** | by its maker |",
]
TRUE = ["The whole fleet has not run on machines with GPUs.", "A common start of several has not run on hardware."]


def claims(text: str) -> list[str]:
    """The sentences that are false beside what the page has: one line each."""
    line = " ".join(part.strip(" #*") for part in text.splitlines())
    found = (sentence.strip() for sentence in re.split("[.;:]", line))
    return [sentence for sentence in found if CLAIM.search(sentence) and not NOT_THERE.search(sentence)]


def test_the_page_has_runs_of_one_gpu_each() -> None:
    """What `claims` takes for granted; a section of several GPUs asks for another look at it."""
    page = (ROOT / PAGE).read_text()
    assert "Each of these is one GPU" in page
    assert re.findall(r"^### NVIDIA (?:H100|H200)\b.*, 2026-", page, re.MULTILINE)


@pytest.mark.parametrize("name", NAMING)
def test_pages_name_the_models_that_ran_and_no_others(name: str) -> None:
    ran = set(re.findall(r"^### NVIDIA (\w+)\b.*, 2026-", (ROOT / PAGE).read_text(), re.MULTILINE))
    assert set(NAMED.findall((ROOT / name).read_text())) == ran


@pytest.mark.parametrize("sentence", FALSE)
def test_a_false_sentence_is_seen(sentence: str) -> None:
    assert claims(sentence)


@pytest.mark.parametrize("sentence", TRUE)
def test_a_true_one_is_left(sentence: str) -> None:
    assert not claims(sentence)


@pytest.mark.slow
def test_nothing_that_ran_on_a_gpu_is_said_not_to_have_run() -> None:
    tracked = ["git", "ls-files", "*.md", "gpu_burnin/*.py", "gpu_burnin/*.yaml", "roles/*.yml"]
    names = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = {name: (ROOT / name).read_text() for name in names if name not in (PAGE, "CHANGELOG.md")}
    assert {name: found for name, text in texts.items() if (found := claims(text))} == {}
