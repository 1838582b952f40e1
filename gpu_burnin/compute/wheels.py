"""Libraries in the installed nvidia wheels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata


def wheel_files(wheels: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Version and path of each file with one of these names, wheel by wheel in the order given."""
    for wheel in wheels:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        yield from ((metadata.version(wheel), str(file.locate())) for file in files if file.name in names)
