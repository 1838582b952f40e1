"""Write the chart of this checkout into a folder: `python -m tools.dist.chart FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from .archive import NAME
from .files import files


def write(folder: Path) -> Path:
    """The chart as a folder in this one. Raises OSError."""
    for name, text in files().items():
        path = folder / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / NAME


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
