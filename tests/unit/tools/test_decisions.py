"""Every decision has a file of its number, its alternatives, what would reopen it, and one line in the index."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "docs/decisions"
HEADINGS = ["Alternatives", "Reopen when"]
LINE = re.compile(r"^- \[(\d\d\. .+)\]\((\S+)\)$", re.MULTILINE)


def problems(index: str, pages: dict[str, str]) -> list[str]:
    """What is wrong with the index and the decisions, by the names of their files."""
    listed = [(name, title) for title, name in LINE.findall(index)]
    titles = {name: page.partition("\n")[0].removeprefix("# ") for name, page in pages.items()}
    wrong = [f"{name} is not in the index as {title}" for name, title in titles.items() if (name, title) not in listed]
    wrong += [
        f"{name} is in the index twice, or not there" for name, _ in listed if listed_wrongly(name, listed, pages)
    ]
    wrong += [f"{name} has another number than its title" for name, title in titles.items() if name[:2] != title[:2]]
    numbers = sorted(name[:2] for name in pages)
    if numbers != [f"{number:02}" for number in range(1, len(pages) + 1)]:
        wrong.append("the numbers are not 01 to the last, each once")
    return wrong + [
        f"{name} has not the sections {HEADINGS}"
        for name, page in pages.items()
        if re.findall(r"^## (.*)\n\n(?=[^#\n])", page, re.MULTILINE) != HEADINGS
    ]


def listed_wrongly(name: str, listed: list[tuple[str, str]], pages: dict[str, str]) -> bool:
    return name not in pages or [other for other, _ in listed].count(name) > 1


def test_decisions_are_whole_and_in_the_index() -> None:
    pages = {path.name: path.read_text() for path in FOLDER.glob("*.md") if path.name != "README.md"}
    assert problems((FOLDER / "README.md").read_text(), pages) == []


def test_what_is_missing_is_seen() -> None:
    whole = "# 01. A\n\nWhy.\n\n## Alternatives\n\nNone.\n\n## Reopen when\n\nNever.\n"
    line = "- [01. A](01-a.md)\n"
    assert problems(line, {"01-a.md": whole}) == []
    assert problems("", {"01-a.md": whole}) == ["01-a.md is not in the index as 01. A"]
    assert problems(line + line, {"01-a.md": whole}) == ["01-a.md is in the index twice, or not there"] * 2
    assert problems(line, {}) == ["01-a.md is in the index twice, or not there"]
    assert problems(line, {"01-a.md": whole.replace("Never.\n", "")}) == [
        "01-a.md has not the sections ['Alternatives', 'Reopen when']"
    ]
    assert problems("- [01. A](02-a.md)\n", {"02-a.md": whole}) == [
        "02-a.md has another number than its title",
        "the numbers are not 01 to the last, each once",
    ]
