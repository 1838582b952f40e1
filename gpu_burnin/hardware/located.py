"""YAML read with line numbers, so that a mistake in a data file is named by file and line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import yaml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text
from gpu_burnin.system.yaml_text import YamlError, compose, line_of

_E = TypeVar("_E", bound=StrEnum)


class HardwareDataError(GpuBurninError):
    """A data file is malformed; the message names file, line and what is wrong."""


@dataclass(frozen=True)
class Located:
    """One YAML value and where it stands."""

    path: Path
    node: yaml.Node

    @property
    def line(self) -> int:
        """Line in the file, counted from 1."""
        return line_of(self.node)

    def error(self, message: str) -> HardwareDataError:
        """An error at this place."""
        return HardwareDataError(f"{self.path}:{self.line}: {message}")

    def mapping(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Located]:
        """The entries of a mapping with exactly these keys; unknown and missing ones are errors."""
        entries = self.entries()
        for key, value in entries.items():
            if key not in required and key not in optional:
                raise value.error(f"unknown key {key!r}: choose from {', '.join((*required, *optional))}")
        missing = [key for key in required if key not in entries]
        if missing:
            raise self.error(f"{', '.join(missing)} missing")
        return entries

    def entries(self) -> dict[str, Located]:
        """The entries of a mapping with any keys."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("must be a mapping of keys to values")
        return {str(key.value): Located(self.path, value) for key, value in self.node.value}

    @property
    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.node, yaml.SequenceNode)

    def items(self) -> list[Located]:
        """The elements of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("must be a list")
        return [Located(self.path, node) for node in self.node.value]

    def text(self) -> str:
        """A non-empty text."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value.strip():
            raise self.error("must be a text")
        return str(self.node.value).strip()

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(item.text() for item in self.items())

    def integer(self) -> int:
        """A whole number, decimal or 0x-hexadecimal."""
        try:
            return int(self.text(), 0)
        except ValueError:
            raise self.error(f"must be a whole number, not {self.text()!r}") from None

    def number(self) -> float:
        """A number."""
        try:
            return float(self.text())
        except ValueError:
            raise self.error(f"must be a number, not {self.text()!r}") from None

    def flag(self) -> bool:
        """true or false."""
        text = self.text()
        if text not in ("true", "false"):
            raise self.error(f"must be true or false, not {text!r}")
        return text == "true"

    def choice(self, kind: type[_E]) -> _E:
        """One value of an enumeration."""
        try:
            return kind(self.text())
        except ValueError:
            raise self.error(f"must be one of {', '.join(kind)}, not {self.text()!r}") from None


def load(path: Path) -> Located:
    """Parse a YAML file; raises HardwareDataError when it cannot be read or is no YAML."""
    try:
        node = compose(read_text(path), path)
    except OSError as error:
        raise HardwareDataError(f"{path}: cannot be read ({error.strerror}); reinstall gpu_burnin") from error
    except UnicodeDecodeError as error:
        raise HardwareDataError(f"{path}: cannot be read ({error}); reinstall gpu_burnin") from error
    except YamlError as error:
        raise HardwareDataError(str(error)) from error
    if node is None:
        raise HardwareDataError(f"{path}:1: the file is empty")
    return Located(path, node)
