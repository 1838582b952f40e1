"""Inventory plugin: a YAML file that no other plugin could read is told in one line, and ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.cli import ExitCode
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import AnsibleVaultError, AnsibleVaultFormatError
from ansible.plugins.inventory import BaseFileInventoryPlugin
from ansible.utils.display import Display

DOCUMENTATION = r"""
name: unreadable_yaml
short_description: Tell an inventory that is no YAML in one line for each mistake
version_added: "0.3.0"
description:
  - Stands behind C(yaml) and C(auto) in C(enable_plugins), and so sees only YAML files that they did not take. When
    such a file is not YAML, each mistake in it, and in C(group_vars) and C(host_vars) beside it, is told in one line
    with its place and what to do, and the run ends. It costs nothing where all is well.
  - Ansible itself tells the mistake at length for each of its plugins, and goes on without hosts.
requirements:
  - C(enable_plugins = host_list, script, yaml, auto, muster.fleet.unreadable_yaml, ini, toml) under C([inventory]) in
    C(ansible.cfg).
author:
  - Muster (@muster)
options: {}
"""


class InventoryModule(BaseFileInventoryPlugin):
    """Takes no file: it ends the run, or leaves the file to the next plugin."""

    NAME = "muster.fleet.unreadable_yaml"

    def verify_file(self, path: str) -> bool:
        """Whether this is a YAML file, and none that can be read. One that a password opens is for the others."""
        if not super().verify_file(path) or Path(path).suffix not in (".yml", ".yaml"):
            return False
        try:
            DataLoader().load_from_file(path)
        except (AnsibleVaultError, AnsibleVaultFormatError):
            return False
        except AnsibleError:
            return True
        return False

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """End the run with Ansible's code for files that it cannot parse."""
        # Where all is well this module is loaded too, and needs nothing.
        from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report
        from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import unreadable

        problems = unreadable([path], str(Path(path).parent), loader)
        Display().error(report("Files of the inventory cannot be read, nothing was touched", problems))
        # An exception of another kind is one more warning, and the run goes on.
        raise SystemExit(ExitCode.PARSER_ERROR)
