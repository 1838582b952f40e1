"""A copy of inventory/example in which every placeholder has a site's own value."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "inventory/example"
SITE = (
    ("198.51.100.", "10.9.0."),
    ("example.com", "site.internal"),
    ("fleet_name: example", "fleet_name: site"),
    ("nvme-EXAMPLE_SSD", "nvme-SITE_SSD"),
)


def filled_example(folder: Path, example: Path = EXAMPLE) -> Path:
    """Copy the example to `folder` with a site's values in it; the checksums are those of the files' names."""
    shutil.copytree(example, folder)
    for file in folder.rglob("*.yml"):
        text = file.read_text()
        for placeholder, own in SITE:
            text = text.replace(placeholder, own)
        file.write_text(text)
    sums = folder / "SHA256SUMS.txt"
    names = [line.split()[1] for line in sums.read_text().splitlines() if not line.startswith("#")]
    sums.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in names))
    return folder
