"""A tree with choices and marks as a template of Helm. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .merge import ABSENT, Choice, Raw

_PLAIN = re.compile(r"[A-Za-z/][\w./@-]*")
_STEP = "  "


class Template:
    """Writes trees; `marks` are what Helm puts in for texts, `repeated` for which of them an item of a list is several."""

    def __init__(self, marks: Mapping[str, str], repeated: Mapping[str, str]) -> None:
        self._marks, self._repeated = marks, repeated

    def documents(self, trees: list[Any]) -> str:
        """Objects, each after its `---`."""
        return "".join(f"{line}\n" for tree in trees for line in self._document(tree))

    def body(self, tree: Any) -> str:
        """A tree that another one includes, or a text."""
        return self._text(tree) if _is_scalar(tree) else "\n".join(self._mapping(tree, ""))

    def _document(self, tree: Any) -> Iterator[str]:
        if isinstance(tree, Choice):
            yield from self._chosen(tree, self._document)
        else:
            yield "---"
            yield from self._mapping(tree, "")

    def _chosen(self, choice: Choice, of: Any) -> Iterator[str]:
        yes, no = choice.yes, choice.no
        if yes is ABSENT:
            yield f"{{{{- if not {choice.condition} }}}}"
            yield from of(no)
        else:
            yield f"{{{{- if {choice.condition} }}}}"
            yield from of(yes)
            if no is not ABSENT:
                yield "{{- else }}"
                yield from of(no)
        yield "{{- end }}"

    def _mapping(self, tree: Mapping[str, Any], indent: str) -> Iterator[str]:
        for key, value in tree.items():
            yield from self._entry(key, value, indent)

    def _entry(self, key: str, value: Any, indent: str) -> Iterator[str]:
        name = f"{indent}{_plain(key)}:"
        if isinstance(value, Choice) and not _is_scalar(value):
            yield from self._chosen(value, lambda one: self._entry(key, one, indent))
        elif isinstance(value, Raw):
            yield name
            yield f"{indent}{_STEP}{{{{- {value.expression[2:-2].strip()} | nindent {len(indent) + 2} }}}}"
        elif isinstance(value, dict) and value:
            if all(isinstance(one, Raw) for one in value.values()):
                yield name
                for inner, raw in value.items():
                    yield f"{indent}{_STEP}{_plain(inner)}: {{{{ {raw.expression[2:-2].strip()} | quote }}}}"
            else:
                yield name
                yield from self._mapping(value, indent + _STEP)
        elif isinstance(value, list) and value:
            yield name
            yield from self._items(value, indent)
        else:
            yield from self._scalar(f"{name} ", value, indent + _STEP)

    def _items(self, items: list[Any], indent: str) -> Iterator[str]:
        for item in items:
            block = next((words for mark, words in self._repeated.items() if mark in repr(item)), None)
            if block is None:
                yield from self._item(item, indent)
            else:
                yield f"{{{{- {block} }}}}"
                # What is within is there once for each already.
                yield from Template(self._marks, {})._item(item, indent)
                yield "{{- end }}"

    def _item(self, item: Any, indent: str) -> Iterator[str]:
        if isinstance(item, Choice) and not _is_scalar(item):
            yield from self._chosen(item, lambda one: self._item(one, indent))
        elif isinstance(item, dict) and item:
            lines = list(self._mapping(item, indent + _STEP))
            if lines[0].startswith("{{-"):
                raise ValueError(f"an item of a list begins with a choice: {item}")
            yield f"{indent}- {lines[0][len(indent) + 2 :]}"
            yield from lines[1:]
        elif isinstance(item, list) and item:
            raise ValueError(f"a list in a list: {item}")
        else:
            yield from self._scalar(f"{indent}- ", item, indent + _STEP)

    def _scalar(self, before: str, value: Any, indent: str) -> Iterator[str]:
        text = self._text(value) if isinstance(value, str | Choice) else None
        if text is None:
            yield f"{before}{json.dumps(value)}"
        elif isinstance(value, str) and text == value and "\n" not in text:
            yield f"{before}{_plain(text)}"
        else:
            # In a literal block nothing that is put in has to be quoted.
            yield f"{before}|{'' if text.endswith(chr(10)) else '-'}"
            yield from (f"{indent}{line}" if line else "" for line in text.removesuffix("\n").split("\n"))

    def _text(self, value: Any) -> str:
        if isinstance(value, Choice):
            yes, no = self._text(value.yes), self._text(value.no)
            start = _common(yes, no)
            end = _common(yes[start:][::-1], no[start:][::-1])
            inner = [text[start : len(text) - end] for text in (yes, no)]
            chosen = f"{{{{ if {value.condition} }}}}{inner[0]}{{{{ else }}}}{inner[1]}{{{{ end }}}}"
            return f"{yes[:start]}{chosen}{yes[len(yes) - end :]}"
        if not isinstance(value, str):
            raise ValueError(f"no text: {value!r}")
        # What is another program's to put in, as Prometheus does.
        text: str = value.replace("{{", '{{ "{{" }}')
        for mark, expression in self._marks.items():
            text = text.replace(mark, expression)
        return text


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Choice):
        return isinstance(value.yes, str | Choice) and _is_scalar(value.yes) and _is_scalar(value.no)
    return isinstance(value, str | int | float) or value is None


def _common(one: str, other: str) -> int:
    """Length of the common beginning, up to a place where both may be cut: not within an expression of Helm."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    while count and (one[:count].count("{{") != one[:count].count("}}") or one[count - 1] in "{}"):
        count -= 1
    return count


def _plain(text: str) -> str:
    plain = _PLAIN.fullmatch(text) is not None and yaml.safe_load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)
