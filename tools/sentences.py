"""Pages have one sentence on a line: a change of a sentence is a change of its line. Tables, headings and code stay.

python -m tools.sentences PAGE...  lays out pages so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

# The end of a sentence, with what closes it; but not a mark that is named, such as **?**.
_END = re.compile(r"(?<!\s\*\*)[.!?][\"'*_)\]]*\s+")
# Code, the target of a link, an address: nothing in them ends a sentence.
_OPAQUE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|(?<=\])\([^()\s]+\)|<[^<>\s]+>", re.DOTALL)
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|incl|approx)|\.\.)\.$")


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph. What stands in brackets or in quotes belongs to the sentence around it."""
    text = " ".join(paragraph.split())
    visible = _OPAQUE.sub(lambda found: "x" * len(found[0]), text)
    found, start = [], 0
    for end in _END.finditer(visible):
        if not _ABBREVIATION.search(visible[: end.start() + 1]) and _is_closed(visible[start : end.end()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [*found, text[start:]]


def _is_closed(text: str) -> bool:
    brackets = all(text.count(opening) <= text.count(closing) for opening, closing in ("()", "[]"))
    return brackets and text.count('"') % 2 == 0


def misplaced(page: str) -> Iterator[tuple[int, str]]:
    """The number of the first line of each paragraph that does not hold one sentence, and what is wrong with it."""
    for number, lines in _paragraphs(page):
        wanted = sentences("\n".join(lines))
        for offset, (line, sentence) in enumerate(zip(lines, wanted, strict=False)):
            if line != sentence:
                goes_on = sentence.startswith(line)
                yield number + offset, "its sentence goes on in the next line" if goes_on else "it holds two sentences"
                break


def laid_out(page: str) -> str:
    """The page with one sentence on each line of its paragraphs; it renders as before."""
    lines = page.split("\n")
    for number, old in reversed([*_paragraphs(page)]):
        first = lines[number - 1].rstrip()
        prefix = first.removesuffix(old[0])
        # What comes below a list's item is indented; what is quoted is quoted in each line.
        new = f"\n{re.sub(r'[^>]', ' ', prefix)}".join(sentences("\n".join(old)))
        lines[number - 1 : number - 1 + len(old)] = (prefix + new).split("\n")
    return "\n".join(lines)


def _paragraphs(page: str) -> Iterator[tuple[int, list[str]]]:
    """Each paragraph, also of lists and quotations: the number of its first line, and its lines."""
    tokens = MarkdownIt("commonmark").enable("table").disable("inline").parse(page)
    for before, token in pairwise(tokens):
        if before.type == "paragraph_open" and token.map:
            yield token.map[0] + 1, [line.strip() for line in token.content.split("\n")]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(laid_out(path.read_text()))
