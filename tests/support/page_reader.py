"""A page as a reader and a browser meet it: its elements, its words, and whatever in it could run or load."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from gpu_burnin.report import html
from gpu_burnin.report.file_names import FORMS
from tests.support.sample_reports import Sample

# Elements without an end (HTML standard, void elements).
VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Parsed(HTMLParser):
    """Elements, attributes and the visible text of a page; raises AssertionError for unbalanced elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that a reader sees, spaces joined."""
        return " ".join(" ".join(self.words).split())


def page_of(made: Sample) -> str:
    """The page of a sample."""
    return html.render(*made)


def problems(page: str) -> list[str]:
    """Whatever in a page could run, load or submit something; its links go to itself and to the forms beside it."""
    found = []
    for tag, attributes in Parsed(page).elements:
        if tag in ("script", "iframe", "object", "embed", "base", "form", "input", "img", "foreignobject", "animate"):
            found.append(f"<{tag}>")
        for name, value in attributes.items():
            if name.startswith("on") or name == "style" or "javascript:" in value.lower():
                found.append(f"{tag} {name}")
            fragment = value.startswith("#")
            own_icon = (tag, name) == ("link", "href") and value.startswith("data:image/svg+xml,")
            form = (tag, name) == ("a", "href") and value in FORMS
            if name in ("href", "src", "srcset", "xlink:href", "action", "data", "poster") and not (
                fragment or own_icon or form
            ):
                found.append(f"{tag} {name}={value}")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    if style is None or re.search(r"@import|url\(", style[1]):
        found.append("style")
    return found
