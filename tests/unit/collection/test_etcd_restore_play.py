"""playbooks/etcd_restore.yml as far as it goes without a host: what it asks for and refuses; and its page's words.

Only here: that the playbook itself refuses each wrong call before it leaves anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.etcd_snapshot import lab_snapshot

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK = str(ROOT / "playbooks/etcd_restore.yml")
PAGE = (ROOT / "docs/operations/backup-and-restore.md").read_text()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return lab_snapshot(tmp_path)


@pytest.fixture
def restore(tmp_path: Path, ansible_playbook: Playbook) -> Callable[..., str]:
    """Runs it with these variables; it must fail, and leave nothing. Returns what it said on one line."""
    inventory = tmp_path / "hosts.yml"
    member = {"ansible_host": "198.51.100.1", "ansible_connection": "local"}
    groups = {"etcd": {"hosts": {"etcd-1": member}}, "etcd_events": {"hosts": {"events-1": member}}}
    state = tmp_path / "state"
    state.mkdir()
    variables = {"fleet_name": "lab", "fleet_state_dir": str(state)}
    inventory.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))

    def run(*options: str, **given: Any) -> str:
        extra = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
        done = ansible_playbook(PLAYBOOK, *options, *extra, inventory=str(inventory))
        assert done.returncode != 0, done.stdout
        assert not list(state.iterdir())
        return " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.slow
def test_without_the_clusters_name_it_tells_what_it_would_do(restore: Callable[..., str], snapshot: Path) -> None:
    for confirm in ({}, {"confirm": "lab-events"}):
        said = restore(cluster="main", snapshot=snapshot, **confirm)
        assert "is whole: lab-main as of" in said
        assert "revision 7, 3 keys" in said
        assert "stops every API server meanwhile: etcd-1" in said
        assert "add `-e confirm=lab-main`. Nothing was done." in said
        # Nobody is there to say what the nodes were.
        assert "Every node takes no new work afterwards until its agent has spoken" in said
        assert "no member of etcd answers" in said
    events = lab_snapshot(snapshot.parent, cluster="events")
    said = restore(cluster="events", snapshot=events, confirm="lab")
    assert "add `-e confirm=lab-events`. Nothing was done." in said and "agent has spoken" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "given", "why"),
    [
        ([], {}, "restores one etcd cluster from the snapshot you name"),
        ([], {"cluster": "main"}, "restores one etcd cluster from the snapshot you name"),
        ([], {"cluster": "all", "snapshot": "FILE"}, "add `-e cluster=main` or `-e cluster=events`"),
        (["--check"], {"cluster": "main", "snapshot": "FILE", "confirm": "lab-main"}, "leave out `--check`"),
        ([], {"cluster": "events", "snapshot": "FILE", "confirm": "lab-events"}, "cluster lab-main, not of lab-events"),
        ([], {"cluster": "main", "snapshot": "FILE", "confirm": "lab-main", "max_age_hours": 0.001}, "are allowed"),
        ([], {"cluster": "main", "snapshot": "/nowhere.tar", "confirm": "lab-main"}, "/nowhere.tar is not there"),
    ],
)
def test_what_it_refuses(
    restore: Callable[..., str], snapshot: Path, options: list[str], given: dict[str, Any], why: str
) -> None:
    named = {name: snapshot if value == "FILE" else value for name, value in given.items()}
    assert why in restore(*options, **named)


def test_the_page_names_what_there_is() -> None:
    playbook = Path(PLAYBOOK).read_text()
    for name in re.findall(r"-e (\w+)=", PAGE):
        assert re.search(rf"\b{name}\b", playbook.partition("\n- name")[2]), name
    options = yaml.safe_load((ROOT / "roles/etcd_backup/meta/argument_specs.yml").read_text())
    known = options["argument_specs"]["main"]["options"]
    named = set(re.findall(r"\b(?<!muster_)(etcd_backup_\w+)", PAGE)) - {"etcd_backup_real"}
    assert named <= set(known), named - set(known)
    assert len(named) >= 8
    for path in re.findall(r"(?:playbooks|tests/integration)/\w+\.\w+", PAGE):
        assert (ROOT / path).exists(), path
    metrics = (ROOT / "roles/etcd_backup/files/etcd_backup.py").read_text()
    for name in re.findall(r"muster_etcd_backup_(\w+)", PAGE):
        assert f'"{name}"' in metrics, name
