#!/usr/bin/env python3
"""ansible-lint for `make check`: on what changed; with --all on everything, as `make test` runs it.

Usage: python -m tools.ansible_lint [--all | COMMIT]

Changed is what differs from COMMIT, or from where this branch left main: committed, not yet committed and new. Where
git cannot tell (a shallow clone of a branch, a clone without main) and where a file changed that others are read with,
everything is linted. It says what was linted and why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tools import warm_ansible
from tools.changed_areas import REPOSITORY, UnknownCommitError, changed_files, git

# Rules read all others with these: modules and their options, versions, settings.
SHARED = ("collections/", "requirements/", ".ansible-lint", ".yamllint", "ansible.cfg")
READ = frozenset({".yml", ".yaml"})
FRUGAL = (sys.executable, "-m", "tools.frugal_lint")


@dataclass(frozen=True)
class Choice:
    """What to lint: these paths, or everything where there is a reason for it."""

    paths: tuple[str, ...] = ()
    everything: str = ""


def main(arguments: Sequence[str]) -> int:
    """Lint; the exit status of ansible-lint, 0 where there is nothing to lint, 2 when git does not know the commit."""
    try:
        chosen, since = _chosen(arguments)
    except UnknownCommitError as error:
        print(error, file=sys.stderr)
        return 2
    if not chosen.paths and not chosen.everything:
        print(f"ansible-lint: left out: nothing that it reads changed {since}; tools/check.sh --all lints everything")
        return 0
    if chosen.everything:
        print(f"ansible-lint: everything ({chosen.everything})", flush=True)
    else:
        print(f"ansible-lint: {' '.join(chosen.paths)} (changed {since}); left out: the rest", flush=True)
    status = warm_ansible.main([*FRUGAL, "--offline", "-q", *chosen.paths])
    if status:
        print(" ".join(["again: ansible-lint --offline", *chosen.paths]))
    return status


def _chosen(arguments: Sequence[str]) -> tuple[Choice, str]:
    """What to lint, and since when it changed, in words."""
    if arguments == ["--all"]:
        return Choice(everything="--all"), ""
    base = arguments[0] if arguments else left_main_at()
    if not base:
        return Choice(everything="git does not know here where this branch left main"), ""
    words = f"since {base}" if arguments else f"since {base[:8]}, where this branch left main"
    return choose(changed_files(base), lambda name: (REPOSITORY / name).exists()), words


def left_main_at() -> str:
    """The last commit that this branch and main share, on main what was pushed or else HEAD; "" if git cannot tell."""
    for branch in ("origin/main", "main"):
        if not git("rev-parse", "--verify", "--quiet", branch + "^{commit}").returncode:
            return git("merge-base", "HEAD", branch).stdout.strip()
    return ""


def choose(changed: Sequence[str], exists: Callable[[str], bool]) -> Choice:
    """What to lint when these files changed. A role is linted as a whole: its parts are read together."""
    paths = set()
    for name in changed:
        top, *rest = PurePosixPath(name).parts
        of_role = top == "roles" and len(rest) > 1
        if name.startswith(SHARED) or (of_role and rest[1] == "meta"):
            return Choice(everything=f"{name} changed, which others are read with")
        if not of_role and PurePosixPath(name).suffix not in READ:
            continue
        if not exists(name):
            return Choice(everything=f"{name} is gone, which others may name")
        paths.add(f"roles/{rest[0]}" if of_role else name)
    return Choice(tuple(sorted(paths)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
