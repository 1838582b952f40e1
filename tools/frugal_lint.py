#!/usr/bin/env python3
"""ansible-lint, with the same findings for three fifths of its processor time: what does not change is read once.

Usage: python -m tools.frugal_lint ARGUMENTS OF ansible-lint

- Each of its rules copies every task, down to each string. Ansible's strings, numbers and tags cannot change: a copy of
  a task has the same ones.
- It asks thousands of times of which kind a file is, and reads all patterns anew each time.
- The playbooks that others import are checked with other variables than those that it lints: with the same ones
  tools/warm_ansible.py forks for both, where it had to start the real program for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

# What its rule syntax-check adds to the environment.
CHECKED_WITH = {"PYTHONWARNINGS": "ignore", "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "False"}
FIXED = ("_AnsibleTaggedStr", "_AnsibleTaggedInt", "_AnsibleTaggedFloat", "AnsibleDatatagBase")
KIND = "_match_kind_from_globs"


def main() -> None:
    """Run it; it exits with its own status. Raises AttributeError where another version of it lacks one of these."""
    os.environ.update(CHECKED_WITH)
    # Here, not above: as Ansible is loaded it reads the environment.
    from ansible.module_utils._internal import _datatag
    from ansiblelint import __main__, file_utils

    share(getattr(_datatag, name) for name in FIXED)
    setattr(file_utils, KIND, kept(getattr(file_utils, KIND)))
    __main__._run_cli_entrypoint()


def share(types: Iterable[type]) -> None:
    """Have copy.deepcopy give what is of these types itself."""
    for one in types:
        one.__deepcopy__ = lambda value, _: value  # type: ignore[attr-defined]


def kept(kind: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Ask this function once for each path and list of kinds."""
    found: dict[tuple[str, int], tuple[Any, Any]] = {}

    def once(path: Any, kinds: Any, file: Any) -> Any:
        key = str(path), id(kinds)
        if key not in found:
            # With the list, so that no other one gets its id.
            found[key] = kind(path, kinds, file), kinds
        return found[key][0]

    return once


if __name__ == "__main__":
    main()
