"""Callback: tells before the first play what is wrong with the run's inventory or its files, and ends the run."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from ansible import constants, context
from ansible.cli import ExitCode
from ansible.plugins.callback import CallbackBase
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import missing, unreadable

DOCUMENTATION = r"""
name: inventory_files
type: aggregate
short_description: Tell files of variables that cannot be read, with file and line
version_added: "0.2.0"
description:
  - Reads the inventory's YAML files, C(group_vars) and C(host_vars) before the first play begins. When some are not
    YAML, or no password opens C(group_vars/all), each is told in one line with its place and what to do, and the run
    ends. So it does when an inventory does not exist, or none was given to plays that need hosts.
  - Ends the run when a word of C(--tags) is no tag of the plays. Ansible itself runs nothing then, and ends with 0.
  - Warns when C(--limit) leaves out C(localhost), on which plays of the run have their work.
  - Ansible itself ends at the first and says neither file nor line.
requirements:
  - C(callbacks_enabled = muster.fleet.inventory_files) in C(ansible.cfg).
author:
  - Muster (@muster)
"""


# Words that Ansible gives a meaning of their own.
_SPECIAL = frozenset({"all", "always", "never", "tagged", "untagged"})


class CallbackModule(CallbackBase):
    """Acts once, before the plays."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.inventory_files"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """End the run with Ansible's code for files that it cannot parse."""
        sources = context.CLIARGS.get("inventory") or constants.DEFAULT_HOST_LIST
        plays = playbook.get_plays()
        inventory = plays[0].get_variable_manager()._inventory if plays else None
        if message := missing(
            sources,
            is_given=list(sources) != list(constants.DEFAULT_HOST_LIST),
            has_hosts=inventory is None or bool(inventory.hosts),
            needs_hosts=any(not _is_of_localhost(play) for play in plays),
        ):
            self._display.error(message)
            raise SystemExit(ExitCode.PARSER_ERROR)
        problems = unreadable(sources, playbook._basedir, playbook._loader)
        if problems:
            self._display.error(report("Files of the inventory cannot be read, nothing was touched", problems))
            # An exception of another kind is a warning, and the plays go on.
            raise SystemExit(ExitCode.PARSER_ERROR)
        if message := tags_problem(context.CLIARGS.get("tags") or (), plays):
            self._display.error(message)
            raise SystemExit(ExitCode.PARSER_ERROR)
        if inventory and (limit := context.CLIARGS.get("subset")) and not inventory.get_hosts("localhost"):
            left_out = [play.get_name() for play in plays if _is_of_localhost(play)]
            if left_out:
                self._display.warning(limit_warning(limit, left_out))


def limit_warning(limit: str, plays: Sequence[str]) -> str:
    """What a limit without localhost leaves out, and how to have it."""
    noun = "play" if len(plays) == 1 else "plays"
    names = "; ".join(plays)
    return (
        f"-l leaves out localhost, and with it {len(plays)} {noun} ({names}); "
        f"add localhost to have them: -l {shlex.quote(f'{limit},localhost')}"
    )


def tags_problem(given: Iterable[str], plays: Sequence[Any]) -> str:
    """The sentence for words of --tags that no play, role or task has, so that they select nothing; else nothing."""
    unknown = sorted(set(given) - _SPECIAL)
    if not unknown:
        return ""
    known = {tag for play in plays for tag in (*play.tags, *(tag for block in play.compile() for tag in _tags(block)))}
    known -= _SPECIAL
    for tag in unknown:
        if tag not in known:
            near = difflib.get_close_matches(tag, known, 1)
            there = f"the tags are {', '.join(sorted(known))}" if known else "they have none"
            hint = f"did you mean {near[0]}?" if near else there
            return f"--tags {tag} is no tag of these plays, so that it would run nothing; {hint}"
    return ""


def _tags(block: Any) -> Iterable[str]:
    for task in (*block.block, *block.rescue, *block.always):
        yield from _tags(task) if hasattr(task, "rescue") else task.tags


def _is_of_localhost(play: Any) -> bool:
    return play.hosts in ("localhost", ["localhost"])
