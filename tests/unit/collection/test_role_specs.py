"""Names and values against roles' argument_specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.role_specs import (
    RoleSpec,
    has_template,
    is_foreign,
    known_names,
    load_role_specs,
    missing_options,
    owner_of,
    unknown_variable,
    value_errors,
)

SPECS = {
    "etcd": RoleSpec("etcd", {"main": {"etcd_data_dir": {"type": "path"}, "etcd_quota_bytes": {"type": "int"}}}),
    "etcd_backup": RoleSpec("etcd_backup", {"main": {"etcd_backup_dir": {}}, "restore": {"etcd_backup_from": {}}}),
}


NAMES = known_names(SPECS, ["ansible_host"])


@pytest.mark.parametrize(
    ("variable", "owner"),
    [
        ("etcd_data_dir", "etcd"),
        ("etcd_backup_dir", "etcd_backup"),
        ("etcd_backups", "etcd"),
        ("etcd", "etcd"),
        ("etcdx", None),
        ("my_etcd_dir", None),
        ("__etcd_x", None),
    ],
)
def test_longest_role_name_owns_the_prefix(variable: str, owner: str | None) -> None:
    assert owner_of(variable, SPECS) == owner


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("etcd_data_dri", "etcd_data_dir"),
        ("etcd_backup_form", "etcd_backup_from"),
        ("etcd_back_dir", "etcd_backup_dir"),
        ("etcd_zzzzzzzzz", ""),
    ],
)
def test_misspelt_names(variable: str, suggestion: str) -> None:
    found = unknown_variable(variable, SPECS, NAMES)
    assert found is not None
    assert found.message == f"{variable} is not a variable of role {owner_of(variable, SPECS)}"
    assert found.suggestion == suggestion
    assert found.fix == (f"did you mean {suggestion}?" if suggestion else "see its variables in roles/etcd/README.md")


@pytest.mark.parametrize("variable", ["etcd_data_dir", "etcd_backup_from", "ansible_host", "lab_subnet"])
def test_known_and_foreign_names_pass(variable: str) -> None:
    assert unknown_variable(variable, SPECS, NAMES) is None


@pytest.mark.parametrize(
    ("variable", "owner", "suggestion", "whose"),
    [
        ("ectd_data_dir", "role etcd", "etcd_data_dir", "Muster"),
        ("ansible_hots", "Ansible", "ansible_host", "Ansible"),
    ],
)
def test_a_misspelt_prefix(variable: str, owner: str, suggestion: str, whose: str) -> None:
    found = unknown_variable(variable, SPECS, NAMES)
    assert found is not None
    assert found.message == f"{variable} is not a variable of {owner}"
    assert found.fix == f"did you mean {suggestion}? If it is your own, rename it: it is too close to one of {whose}'s"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("rack", True), ("etcd_data_dir", False), ("etcd_x", False), ("ansible_x", False), ("group_names", False)],
)
def test_is_foreign(variable: str, expected: bool) -> None:
    assert is_foreign(variable, SPECS) is expected


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ({"type": "int"}, "8", ""),
        ({"type": "int"}, "many", "unable to convert to int"),
        ({"type": "str", "choices": ["a", "b"]}, "a", ""),
        ({"type": "str", "choices": ["a", "b"]}, "c", "must be one of: a, b"),
        ({"type": "list", "elements": "int"}, [1, "x"], "unable to convert to int"),
        ({"type": "dict", "options": {"size": {"type": "int", "required": True}}}, {}, "missing required"),
        ({"type": "dict", "options": {"size": {"type": "int"}}}, {"sise": 1}, "x.sise is unknown; did you mean size?"),
        ({"type": "dict", "options": {"size": {"type": "int"}}}, {"who": 1}, "x.who is unknown; its keys are size"),
        (
            {"type": "dict", "options": {"a": {"type": "dict", "options": {"size": {"type": "int"}}}}},
            {"a": {"sise": 1}, "b": 1},
            "x.a.sise is unknown; did you mean size?; x.b is unknown; did you mean a?".partition("?")[0],
        ),
        ({"type": "bool"}, "maybe", "not a valid bool"),
        ({"type": "str", "description": "text"}, None, ""),
    ],
)
def test_values(option: dict[str, Any], value: object, error: str) -> None:
    errors = value_errors("x", option, value)
    assert bool(errors) == bool(error)
    assert error in " ".join(errors)
    assert "<class" not in " ".join(errors)


def test_a_secret_s_value_is_not_repeated() -> None:
    errors = value_errors("x_token", {"type": "int", "no_log": True}, "hunter2")
    assert errors
    assert "hunter2" not in errors[0]


def test_missing_options() -> None:
    options = {"a": {"required": True}, "b": {"required": True}, "c": {}}
    assert missing_options(options, ["a"]) == ["b"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("{{ a }}", True), ({"k": ["{% if a %}"]}, True), ({"{{ k }}": 1}, True), ("plain", False), ([1, None], False)],
)
def test_has_template(value: object, expected: bool) -> None:
    assert has_template(value) is expected


def test_loads_the_first_root_s_role(tmp_path: Path) -> None:
    for root, option in (("a", "x_one"), ("b", "x_two")):
        meta = tmp_path / root / "x" / "meta"
        meta.mkdir(parents=True)
        (meta / "argument_specs.yml").write_text(f"argument_specs: {{main: {{options: {{{option}: {{}}}}}}}}")
    (tmp_path / "a" / "bare" / "meta").mkdir(parents=True)
    specs = load_role_specs([tmp_path / "a", tmp_path / "b"])
    assert list(specs) == ["x"]
    assert list(specs["x"].options) == ["x_one"]


@pytest.mark.parametrize(("text", "error"), [("[", "cannot be read as YAML"), ("main: {}", "has no dictionary")])
def test_bad_spec_files_are_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "x/meta").mkdir(parents=True)
    (tmp_path / "x/meta/argument_specs.yml").write_text(text)
    with pytest.raises(FleetError, match=f"argument_specs.yml: {error}"):
        load_role_specs([tmp_path])
