"""How an action on the controller ends with many problems: each told once, on the screen or in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleAction, AnsibleError
from ansible_collections.muster.fleet.plugins.module_utils.host.files import replacing
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import (
    Problem,
    is_named_in_full,
    name_groups,
    together,
)

# More problems than one reads: of each kind so many are shown then, and the rest is in the file.
LINES_SHOWN = 40
OF_A_KIND = 3
# A problem of more hosts than one looks up by hand has all their names in the file.
HOSTS_UNLISTED = 50


class ProblemsFound(AnsibleAction):
    """Ends a task as failed. The result's `msg` has the whole message, for rescue blocks and programs.

    Ansible shows the error and then the result. So the error is the first line alone where the result can be read, and
    the whole message where results are shown as JSON, on one line.
    """

    def __init__(self, message: str, **result: Any) -> None:
        shown = message.partition("\n")[0] if _shows_results_to_read() else message
        super().__init__(shown, result={**result, "failed": True, "changed": False, "msg": message})


def _shows_results_to_read() -> bool:
    # Ansible keeps the options of its own plugins under their short names.
    name = constants.DEFAULT_STDOUT_CALLBACK.removeprefix("ansible.builtin.")
    try:
        return bool(constants.config.get_config_value("result_format", None, "callback", name) == "yaml")
    except AnsibleError:
        return False  # another callback, which may show them in any way


def failure(
    title: str,
    problems: Sequence[Problem],
    list_file: Path | None,
    every: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
    **result: Any,
) -> ProblemsFound:
    """The failure with all problems, those of many hosts folded.

    What is left out, because there are many problems or hosts without runs of names, is in `list_file`, a line each:
    `every`, or else the problems with all their hosts. Without a file that can be written nothing is left out.
    Many hosts that are whole `groups` of the inventory are named by these. `result` is what else the task returns.
    """
    forget(list_file)
    found = together(problems)
    groups = groups or {}
    lines = [f"- {problem.line(groups)}" for problem in found]
    unnamed = [p for p in found if not name_groups(p.hosts, groups) and not is_named_in_full(p.hosts)]
    if len(lines) > LINES_SHOWN or every or any(len(problem.hosts) > HOSTS_UNLISTED for problem in unnamed):
        written = list_file and write_list(list_file, every or [_in_full(problem) for problem in found])
        if written and len(lines) > LINES_SHOWN:
            lines = _some_of_each(found, groups)
        if written:
            lines.append(f"All of them: {list_file}")
    noun = "problem" if len(found) == 1 else "problems"
    return ProblemsFound("\n".join([f"{title}: {len(found):,} {noun}.", *lines]), **result)


def forget(list_file: Path | None) -> None:
    """Remove the list of an earlier run, whose problems may be mended by now."""
    if list_file is not None:
        with contextlib.suppress(OSError):
            list_file.unlink(missing_ok=True)


def write_list(path: Path, lines: Sequence[str]) -> bool:
    """Write the list whole, for its owner alone; False where that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    except OSError:
        return False
    return True


def _some_of_each(problems: Sequence[Problem], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The first problems of each kind (what is mended in the same way), and how many more there are."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.fix, []).append(problem)
    lines: list[str] = []
    told = 0
    for alike in kinds.values():
        if len(lines) >= LINES_SHOWN:
            break
        lines += [f"- {problem.line(groups)}" for problem in alike[:OF_A_KIND]]
        if len(alike) > OF_A_KIND:
            lines.append(f"- and {len(alike) - OF_A_KIND:,} more like these")
        told += len(alike)
    if told < len(problems):
        lines.append(f"- and {len(problems) - told:,} more problems")
    return lines


def _in_full(problem: Problem) -> str:
    place = ", ".join(part for part in (problem.where, *problem.hosts) if part)
    return f"{place}: {problem.message}; {problem.fix}" if place else f"{problem.message}; {problem.fix}"
