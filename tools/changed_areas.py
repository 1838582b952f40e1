#!/usr/bin/env python3
"""Print the folders of unit tests that changed since a commit, or whose product code did.

Usage: tools/changed_areas.py COMMIT

`make check BASE=COMMIT` runs their slow tests, which the fast loop leaves out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parent.parent
# The tests of what is outside gpu_burnin, whose rooms have folders of tests with their own names.
OTHERS = {
    "collections": ("collection",),
    "playbooks": ("collection",),
    "roles": ("collection", "settings", "tools"),
    "site.yml": ("collection",),
    "tools": ("tools",),
    "requirements": ("tools",),
    "pyproject.toml": ("tools",),
    "docs": ("cli", "tools"),
    "README.md": ("cli", "tools"),
}
SAME_NAME = frozenset({"gpu_burnin", "tests"})


class UnknownCommitError(Exception):
    """Git does not know a commit; one sentence."""


def main(base: str) -> int:
    """Print one folder a line; 2 with one sentence when git does not know the commit."""
    try:
        changed = changed_files(base)
    except UnknownCommitError as error:
        print(error, file=sys.stderr)
        return 2
    folders = [path.name for path in (REPOSITORY / "tests/unit").iterdir() if path.is_dir()]
    for folder in areas(changed, folders):
        print(f"tests/unit/{folder}")
    return 0


def changed_files(base: str) -> list[str]:
    """Files that differ from this commit, are new or are gone; of a renamed one both names.

    Raises UnknownCommitError when git cannot compare with it.
    """
    changed = git("diff", "--name-only", "--no-renames", base, "--")
    if changed.returncode:
        why = " ".join(changed.stderr.split())
        raise UnknownCommitError(f"check: BASE={base}: git cannot compare with it ({why}); name a commit")
    new = git("ls-files", "--others", "--exclude-standard")
    return [*changed.stdout.splitlines(), *new.stdout.splitlines()]


def areas(changed: Iterable[str], folders: Iterable[str]) -> list[str]:
    """The folders of tests, out of `folders`, that these changed files concern; what all tests share concerns all."""
    known = set(folders)
    found: set[str] = set()
    for name in changed:
        top, *rest = PurePosixPath(name).parts
        if name.startswith(("tests/support/", "tests/conftest.py", "tests/unit/conftest.py")):
            return sorted(known)
        found.update(OTHERS.get(top, ()))
        if top in SAME_NAME:
            room = rest[1] if rest[0] == "unit" and len(rest) > 1 else rest[0]
            found.add(PurePosixPath(room).stem)
    return sorted(found & known)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in this checkout."""
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
