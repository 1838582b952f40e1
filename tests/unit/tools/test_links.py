"""Every link of the documentation leads somewhere, and the README leads to every page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


# Where people look for pages; a virtual environment and downloaded collections have their own.
PLACES = ("*.md", "docs/**/*.md", "roles/*/*.md", "collections/ansible_collections/muster/**/*.md", "tests/**/*.md")
PAGES = sorted({page for place in PLACES for page in ROOT.glob(place)})


@cache
def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """What GitHub calls the headings: lower case, spaces to hyphens, punctuation dropped, doubles numbered."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", other) is not None for other in found)
        found.append(f"{slug}-{count}" if count else slug)
    return frozenset(found)


def links(page: Path) -> list[tuple[Path, str]]:
    """Target and anchor ("" for none) of each link that stays in the checkout."""
    targets = [
        target for target in LINK.findall(prose(page)) if "://" not in target and not target.startswith("mailto:")
    ]
    split = [target.partition("#") for target in targets]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in split]


def problems(page: Path) -> list[str]:
    """What is wrong with the links of a page."""
    wrong = [f"{target} does not exist" for target, _ in links(page) if not target.exists()]
    return wrong + [
        f"{target.name} has no heading #{anchor}"
        for target, anchor in links(page)
        if anchor and target.suffix == ".md" and target.exists() and anchor not in anchors(target)
    ]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert problems(page) == []


def test_a_dead_link_and_a_dead_anchor_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page, here\n[a](gone.md) [b](#a-page-here) [c](#gone) [d](https://example.com/x)\n```\n[e](f)\n```\n"
    )
    assert problems(page) == [f"{tmp_path / 'gone.md'} does not exist", "page.md has no heading #gone"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.is_file() or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [target for target, _ in links(page)]
    # Test data and what Ansible Galaxy wants beside its own README.
    apart = {path for path in PAGES if "tests" in path.relative_to(ROOT).parts or path.parent.name == "fleet"}
    assert sorted(str(path.relative_to(ROOT)) for path in set(PAGES) - reached - apart) == []


def test_the_readme_fits_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


# Pages that code names, and what is no page of this repository.
NAMED = re.compile(r"\bdocs/(?:[a-z0-9-]+/)*[a-z0-9-]+\.md")
NOT_HERE = re.compile(r"\bdesign[,( ]+section\b", re.IGNORECASE)
SOURCES = ("gpu_burnin", "tools", "tests", "roles", "collections", "playbooks", "inventory")
SOURCE_KINDS = {".py", ".yml", ".yaml", ".j2", ".sh", ".cu", ".toml"}


def unreadable(text: str) -> list[str]:
    """What a text sends its reader to that is not in the checkout."""
    return [name for name in NAMED.findall(text) if not (ROOT / name).exists()] + NOT_HERE.findall(text)


def test_code_names_no_page_that_is_not_there() -> None:
    places = [ROOT / place for place in SOURCES]
    found = {path for place in places for path in place.rglob("*") if path.suffix in SOURCE_KINDS and path.is_file()}
    others = found - {Path(__file__)}
    wrong = {str(path.relative_to(ROOT)): unreadable(path.read_text(errors="replace")) for path in others}
    assert {path: names for path, names in wrong.items() if names} == {}
    assert unreadable("as in docs/no-page.md") and unreadable("the design (section 5)")
