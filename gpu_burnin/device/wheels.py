"""NVIDIA's libraries: where the installed wheels have them, and how they are opened."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any


def wheel_files(wheels: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Version and path of each file with one of these names, wheel by wheel in the order given."""
    for wheel in wheels:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        yield from ((metadata.version(wheel), str(file.locate())) for file in files if file.name in names)


def open_first(
    paths: Iterable[str],
    statuses: Mapping[str, Sequence[Any]],
    others: Mapping[str, tuple[Any, Sequence[Any]]],
    open_library: Callable[[str], Any] = ctypes.CDLL,
) -> Any:
    """The first of these libraries that opens and has every function, with their types set.

    `statuses` are functions that return an int, by their arguments; `others` have (returned, arguments). Raises
    OSError with what is wrong with the first of the paths.
    """
    types = {**{name: (ctypes.c_int, arguments) for name, arguments in statuses.items()}, **others}
    failures: list[str] = []
    for path in paths:
        try:
            library = open_library(path)
            for name, (returned, arguments) in types.items():
                function = getattr(library, name)
                function.argtypes, function.restype = tuple(arguments), returned
        except AttributeError as error:
            failures.append(f"{path} is too old: {error}")
        except OSError as error:
            failures.append(str(error))
        else:
            return library
    raise OSError(failures[0])
