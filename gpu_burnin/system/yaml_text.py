"""YAML that people write, read in one way: safe, each key once, and every mistake named by file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from gpu_burnin.errors import GpuBurninError

# The C parser is some ten times faster; PyYAML built without libyaml has only the Python one.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MOST_LEVELS = 50


class YamlError(GpuBurninError):
    """A text that is not what it should be; the message names file and line."""


def line_of(node: yaml.Node) -> int:
    """Where a value stands in its file, counted from 1."""
    return int(node.start_mark.line) + 1


def compose(text: str, path: Path) -> yaml.Node | None:
    """The one document in `text` with the places of its values, None when there is none. Raises YamlError."""
    try:
        _refuse_depth(text, path)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlError(f"{path}:{line}: is not YAML: {error.problem}; correct the file") from error
    except yaml.YAMLError as error:
        raise YamlError(f"{path}: is not YAML ({' '.join(str(error).split())}); correct the file") from error
    for mapping in _mappings(root):
        seen: set[tuple[str, str]] = set()
        for key, _ in mapping.value:
            name = (key.tag, str(key.value))
            if name in seen:
                raise YamlError(f"{path}:{line_of(key)}: key {key.value!r} is given twice; leave one of them")
            seen.add(name)
    return root


def load(text: str, path: Path) -> object:
    """The plain values of the one document in `text`, None when there is none. Raises YamlError."""
    return load_with_lines(text, path)[0]


def load_documents(text: str, path: Path) -> list[dict[str, object]]:
    """The mappings of a text of several documents, which a program has written. Raises YamlError."""
    try:
        return [document for document in yaml.load_all(text, Loader=_LOADER) if isinstance(document, dict)]
    except yaml.YAMLError as error:
        raise YamlError(f"{path}: is not YAML ({' '.join(str(error).split())}); correct the file") from error


def load_with_lines(text: str, path: Path) -> tuple[object, dict[str, int]]:
    """As load, and the line of each key of the document's mappings, by the key written with dots (a.b)."""
    root = compose(text, path)
    if root is None:
        return None, {}
    try:
        values = yaml.constructor.SafeConstructor().construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else line_of(root)
        raise YamlError(f"{path}:{line}: {error.problem}; correct the file") from error
    except (ValueError, OverflowError, TypeError, RecursionError, AttributeError) as error:
        # A number or a date that Python does not take, or a list that an alias makes part of itself.
        raise YamlError(f"{path}: holds a value that cannot be read ({error}); correct the file") from error
    return values, dict(_lines(root))


def _lines(root: yaml.Node) -> Iterator[tuple[str, int]]:
    """Each mapping once: an alias may lead back to where it stands."""
    waiting, met = [("", root)], set()
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, yaml.MappingNode) and id(node) not in met:
            met.add(id(node))
            yield from ((f"{prefix}{key.value}", line_of(key)) for key, _ in node.value)
            waiting += [(f"{prefix}{key.value}.", value) for key, value in node.value]


def _refuse_depth(text: str, path: Path) -> None:
    """The composer calls itself for each level, in C without a limit: the process would end with SIGSEGV."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_LEVELS:
            raise YamlError(f"{path}: is nested too deep, more than {_MOST_LEVELS} levels; correct the file")


def _mappings(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """All mappings of a document, each once: an alias may lead back to where it stands."""
    waiting, met = [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in met:
            continue
        met.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
