"""The plays of site.yml, and the roles of each."""

from __future__ import annotations

from typing import Any

import yaml

from tests.lab.paths import REPOSITORY

IMPORT = "ansible.builtin.import_role"


def site_plays() -> list[dict[str, Any]]:
    """All of them, in order."""
    plays: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "site.yml").read_text())
    return plays


def roles_of(play: dict[str, Any]) -> list[str]:
    """Its roles and those that its tasks import, in order, without the collection's name."""
    imported = [task[IMPORT]["name"] for task in play.get("tasks", []) if IMPORT in task]
    return [name.rpartition(".")[2] for name in [*(entry["role"] for entry in play.get("roles", [])), *imported]]
