"""Callback: tells every file of variables that cannot be read before the first play begins, and ends the run."""

from __future__ import annotations

from typing import Any

from ansible import constants, context
from ansible.cli import ExitCode
from ansible.plugins.callback import CallbackBase
from ansible_collections.muster.fleet.plugins.module_utils.problems import report
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import unreadable

DOCUMENTATION = r"""
name: inventory_files
type: aggregate
short_description: Tell files of variables that cannot be read, with file and line
version_added: "0.2.0"
description:
  - Reads the inventory's YAML files, C(group_vars) and C(host_vars) before the first play begins. When some are not
    YAML, or no password opens C(group_vars/all), each is told in one line with its place and what to do, and the run
    ends.
  - Ansible itself ends at the first and says neither file nor line.
requirements:
  - C(callbacks_enabled = muster.fleet.inventory_files) in C(ansible.cfg).
author:
  - Muster (@muster)
"""


class CallbackModule(CallbackBase):
    """Acts once, before the plays."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.inventory_files"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """End the run with Ansible's code for files that it cannot parse."""
        sources = context.CLIARGS.get("inventory") or constants.DEFAULT_HOST_LIST
        problems = unreadable(sources, playbook._basedir, playbook._loader)
        if problems:
            self._display.error(report("Files of the inventory cannot be read, nothing was touched", problems))
            # An exception of another kind is a warning, and the plays go on.
            raise SystemExit(ExitCode.PARSER_ERROR)
