#!/usr/bin/env python3
"""Put the third-party Ansible collections that Muster uses into this Python's site-packages.

They come from the `ansible` distribution on PyPI (pinned with its hash), of which only the named
collections are unpacked: 4 MB instead of 470.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

COLLECTIONS = ("community/crypto", "kubernetes/core")
REQUIREMENT = Path(__file__).parent.parent / "requirements" / "ansible-distribution.txt"


def main() -> int:
    """Download the pinned distribution, unpack the collections, leave a stamp; nothing where the stamp fits."""
    site = Path(sysconfig.get_paths()["purelib"])
    stamp = site / "ansible_collections" / ".muster-stamp"
    wanted = REQUIREMENT.read_text() + "\n".join(COLLECTIONS)
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    with tempfile.TemporaryDirectory() as tmp:
        names = ", ".join(name.replace("/", ".") for name in COLLECTIONS)
        print(f"setup: Ansible collections {names}: fetching the distribution that holds them", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        quiet = [] if sys.stderr.isatty() else ["-q"]
        if subprocess.run([*pip, *quiet, "-r", str(REQUIREMENT), "-d", tmp], stdout=sys.stderr, check=False).returncode:
            print("setup: the download failed: look at the network or pip's package index, run again", file=sys.stderr)
            return 2
        (wheel,) = Path(tmp).glob("ansible-*.whl")
        prefixes = tuple(f"ansible_collections/{name}/" for name in COLLECTIONS)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [n for n in archive.namelist() if n.startswith(prefixes)])
    stamp.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
