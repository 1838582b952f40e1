#!/usr/bin/env python3
"""Build the collection muster.fleet as one archive: plugins, roles, playbooks, and the gpu-burnin that they install.

The checkout keeps each part where people look for it, the archive where Ansible does. `ansible-galaxy collection
install ARCHIVE` is then all that a controller needs, but for the Python packages that the collection's README names.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
# Path in the checkout -> path in the collection. The first brings the roles too, by its link to them.
CONTENT = {
    "collections/ansible_collections/muster/fleet": ".",
    "site.yml": "playbooks/site.yml",
    "playbooks": "playbooks",
    "inventory/example": "inventory/example",
    "LICENSE": "LICENSE",
    # What the role gpu_burnin builds its wheelhouse from.
    "tools/wheelhouse.py": "tools/wheelhouse.py",
    # The other collections, for a controller that does not reach Galaxy.
    "tools/install_collections.py": "tools/install_collections.py",
    "gpu_burnin": "gpu_burnin",
    "pyproject.toml": "pyproject.toml",
    "requirements": "requirements",
}
# Tests, and the link by which the checkout's playbooks find the collection.
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "molecule", "collections")


class CollectionError(Exception):
    """An archive that cannot be built; the message is one sentence with what to do."""


def stage(checkout: Path, directory: Path) -> None:
    """Lay out the collection in the empty `directory`. Raises OSError."""
    for source, target in CONTENT.items():
        origin, place = checkout / source, directory / target
        if origin.is_dir():
            shutil.copytree(origin, place, ignore=NOT_SHIPPED, dirs_exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, place)
    galaxy = directory / "galaxy.yml"
    about = yaml.safe_load(galaxy.read_text()) | {"repository": repository_url(checkout)}
    galaxy.write_text(yaml.safe_dump(about, sort_keys=False))


def repository_url(checkout: Path) -> str:
    """Where on the network the checkout was cloned from, without password; empty where that is unknown."""
    # Not the repository that a checkout without one of its own lies in.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(checkout.resolve().parent)}
    command = ["git", "-C", str(checkout), "remote", "get-url", "origin"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    url = done.stdout.strip() if done.returncode == 0 else ""
    short = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!/)(.+)", url)
    if short:
        return f"ssh://{short[1]}/{short[2]}"
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "ssh", "git"):
        return ""
    host = parts.netloc.rpartition("@")[2]
    user = f"{parts.username}@" if parts.scheme == "ssh" and parts.username else ""
    return parts._replace(netloc=user + host, query="", fragment="").geturl()


def build(checkout: Path, output: Path) -> Path:
    """Build the archive in the folder `output` and give its path. Raises CollectionError, OSError."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".collection-", dir=output) as scratch:
        layout, built = Path(scratch, "layout"), Path(scratch, "built")
        stage(checkout, layout)
        galaxy = str(Path(sys.executable).with_name("ansible-galaxy"))
        command = [galaxy, "collection", "build", str(layout), "--output-path", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise CollectionError(f"ansible-galaxy collection build failed: {done.stderr.strip()}")
        (archive,) = built.glob("*.tar.gz")
        return archive.replace(output / archive.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; prints the archive's path, or one sentence and exit code 2 when it cannot be built."""
    parser = argparse.ArgumentParser(description="Build the collection muster.fleet with its roles and playbooks.")
    parser.add_argument("--output", type=Path, default=CHECKOUT / "build", help="folder of the archive")
    options = parser.parse_args(arguments)
    try:
        print(build(CHECKOUT, options.output))
    except CollectionError as error:
        print(f"collection: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"collection: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
