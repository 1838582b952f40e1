"""Restoring etcd: what one that was given up leaves beside the data, and what API servers need to start after it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules import etcd_restore as etcd_restore_module

ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "20261122T050000Z", "20261123T050000Z"
LEFT = {f"data.restore-{OLD}", f"data.restore-{OLD}.partial", f"data.restore-{OLD}.db"}
# The data itself, what was put aside, what this restore made, and what somebody else did.
KEPT = {
    "data", f"data.before-{OLD}", f"data.stray-{OLD}", f"data.replaced-{OLD}", f"data.restore-{NEW}",
    f"data.restore-{NEW}.db", "data.restore-mine", f"data.restore-{OLD}.db.copy", f"other.restore-{OLD}", "datas",
}  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """etcd's disk after a restore that was given up, while another goes on."""
    for name in LEFT | KEPT:
        if ".db" in name:
            (tmp_path / name).write_text("not encrypted")
        else:
            (tmp_path / name / "member").mkdir(parents=True)
    return tmp_path


def clear(disk: Path, *, check_mode: bool) -> dict[str, Any]:
    params = {"step": "clear", "data_dir": str(disk / "data"), "id": NEW}
    return etcd_restore_module.restore(cast(AnsibleModule, SimpleNamespace(params=params, check_mode=check_mode)))


def test_what_a_restore_that_was_given_up_has_left_is_removed_by_the_next_one(disk: Path) -> None:
    told = clear(disk, check_mode=True)
    assert told["changed"] and set(told["removed"]) == {str(disk / name) for name in LEFT}
    assert {path.name for path in disk.iterdir()} == LEFT | KEPT
    assert clear(disk, check_mode=False)["removed"] == told["removed"]
    assert {path.name for path in disk.iterdir()} == KEPT
    assert all((disk / name / "member").is_dir() for name in KEPT if ".db" not in name)
    assert not clear(disk, check_mode=False)["changed"]


def test_a_link_of_such_a_name_is_removed_and_not_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"data.restore-{OLD}").symlink_to(tmp_path / "elsewhere")
    clear(tmp_path, check_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_it_is_removed_before_the_snapshot_is_copied_which_needs_the_room() -> None:
    first, *_ = yaml.safe_load((ROOT / "roles/etcd/tasks/restore_prepare.yml").read_text())
    assert first["muster.fleet.etcd_restore"] == "{{ __etcd_restore | combine({'step': 'clear'}) }}"


def test_the_servers_get_the_encryption_keys_before_they_start() -> None:
    """A snapshot of before a rotation is under a key that they have forgotten."""
    plays = yaml.safe_load((ROOT / "playbooks/etcd_restore.yml").read_text())
    (start,) = next(play["tasks"] for play in plays if play["name"].startswith("Start the API servers"))
    role = start["ansible.builtin.import_role"]
    assert role == {"name": "muster.fleet.kube_apiserver", "tasks_from": "rotate_bring"}
    bring, run = yaml.safe_load((ROOT / "roles/kube_apiserver/tasks/rotate_bring.yml").read_text())
    assert bring["muster.fleet.file_set"]["files"] == ["{{ __kube_apiserver_encryption }}"]
    assert run["ansible.builtin.import_tasks"] == "run.yml"


def test_who_gives_a_restore_up_is_told_what_it_has_left(tmp_path: Path) -> None:
    manifest = {"sha256": "0"}
    etcd_restore.operation(tmp_path, manifest, tmp_path / "a.tar", 0.0, begin=True)
    with pytest.raises(FleetError) as refused:
        etcd_restore.operation(tmp_path, {"sha256": "1"}, tmp_path / "b.tar", 1.0, begin=True)
    assert f"removing {tmp_path}, and on every member" in str(refused.value)
    assert "data.restore-19700101T000000Z.db, which is not encrypted" in str(refused.value)
