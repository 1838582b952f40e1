"""Action side of the modules that place files: templates and sources become bytes, then one call on the host."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, os_error

FILE_KEYS = {
    "dest",
    "template",
    "src",
    "content",
    "content_b64",
    "mode",
    "owner",
    "group",
    "sensitive",
    "validate",
}
DIRECTORY_KEYS = {"path", "mode", "owner", "group"}
SOURCES = ("template", "src", "content", "content_b64")


def _entries(value: Any, name: str, keys: set[str], path_key: str) -> list[dict[str, Any]]:
    """The checked entries of one list option. Raises FleetError."""
    if not isinstance(value or [], list):
        raise FleetError(f"{name} must be a list of dicts")
    entries = []
    for number, entry in enumerate(value or [], start=1):
        if not isinstance(entry, dict):
            raise FleetError(f"{name} entry {number} must be a dict with {path_key!r}")
        path = entry.get(path_key)
        if not isinstance(path, str) or not path:
            raise FleetError(f"{name} entry {number} has no {path_key!r}; give its path")
        unknown = sorted(set(entry) - keys)
        if unknown:
            known = ", ".join(sorted(keys))
            raise FleetError(f"{path}: unknown key {unknown[0]!r}; known: {known}")
        # An unquoted 0644 is the number 420 to YAML; as text it would be another, wrong mode.
        if "mode" in entry and not isinstance(entry["mode"], str):
            raise FleetError(f'{path}: mode must be a quoted string such as "0644"')
        if "mode" not in entry and name == "files":
            raise FleetError(f'{path}: has no mode; give one, quoted, such as "0644"')
        entries.append({key: item for key, item in entry.items() if item is not None})
    return entries


class PlacingAction(ActionBase):
    """Renders on the controller, runs the module once on the host."""

    # The module, and its options beside those of files.
    MODULE = ""
    OPTIONS: frozenset[str] = frozenset()
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the task; errors name the host and the destination."""
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            module_args = self._module_args(task_vars)
        except FleetError as error:
            raise AnsibleActionFail(f"{task_vars.get('inventory_hostname', 'host')}: {error}") from error
        done = self._execute_module(
            module_name=f"muster.fleet.{self.MODULE}", module_args=module_args, task_vars=task_vars
        )
        # The contents are neither news nor harmless.
        done.pop("invocation", None)
        result.update(done)
        return result

    def _module_args(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """The module's arguments, with every content. Raises FleetError."""
        args = dict(self._task.args)
        known = {"files", "directories", "absent", *self.OPTIONS}
        unknown = sorted(set(args) - known)
        if unknown:
            raise FleetError(f"{self.MODULE} has no option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        files = _entries(args.get("files"), "files", FILE_KEYS, "dest")
        return {
            **{key: args[key] for key in self.OPTIONS & set(args)},
            "files": [self._with_content(entry, task_vars) for entry in files],
            "directories": _entries(args.get("directories"), "directories", DIRECTORY_KEYS, "path"),
            "absent": args.get("absent") or [],
        }

    def _with_content(self, entry: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The entry with its source replaced by `content_b64`. Raises FleetError."""
        dest = entry["dest"]
        given = [key for key in SOURCES if key in entry]
        if len(given) != 1:
            raise FleetError(f"{dest}: give exactly one of {', '.join(SOURCES)}")
        spec = {key: value for key, value in entry.items() if key not in SOURCES}
        spec["sensitive"] = boolean(entry.get("sensitive", False))
        source = entry[given[0]]
        if given[0] == "content_b64":
            spec["content_b64"] = source
            return spec
        if given[0] == "content":
            if isinstance(source, (dict, list)):
                raise FleetError(f"{dest}: content must be text; use to_nice_yaml")
            data = to_bytes(to_text(source), errors="surrogate_or_strict")
        elif given[0] == "template":
            data = self._render(source, dest, task_vars)
        else:
            data = self._read(source, dest)
        spec["content_b64"] = base64.b64encode(data).decode()
        return spec

    def _find(self, folder: str, name: str, dest: str) -> str:
        try:
            return str(self._find_needle(folder, name))
        except AnsibleError as error:
            raise FleetError(
                f"{dest}: there is no {name!r} in the role's {folder} folder or beside the playbook; "
                "create it, or correct the name"
            ) from error

    def _read(self, name: str, dest: str) -> bytes:
        path = self._find("files", name, dest)
        if Path(path).is_dir():
            raise FleetError(f"{dest}: src {path} is a directory; name one file")
        try:
            # Gives the plain text of a file under ansible-vault, too.
            real = self._loader.get_real_file(path)
            try:
                return Path(real).read_bytes()
            finally:
                self._loader.cleanup_tmp_file(real)
        except OSError as error:
            raise FleetError(f"{dest}: src {os_error(error)}") from error

    def _render(self, name: str, dest: str, task_vars: dict[str, Any]) -> bytes:
        """The rendered template, by the rules of ansible.builtin.template."""
        path = self._find("templates", name, dest)
        roots = [
            *task_vars.get("ansible_search_path", []),
            self._loader.get_basedir(),
            str(Path(path).parent),
        ]
        searchpath = [place for root in roots for place in (f"{root}/templates", root)]
        variables = {"ansible_managed": "Ansible managed", **task_vars}
        templar = self._templar.copy_with_new_env(searchpath=searchpath, available_variables=variables)
        try:
            text = templar.template(
                trust_as_template(self._loader.get_text_file_contents(path)),
                escape_backslashes=False,
                overrides={"trim_blocks": True, "lstrip_blocks": False, "newline_sequence": "\n"},
            )
        except AnsibleError as error:
            raise FleetError(f"{dest}: template {path}: {error}") from error
        return to_bytes("" if text is None else to_text(text), errors="surrogate_or_strict")
