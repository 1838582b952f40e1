"""playbooks/etcd_restore.yml: the words of its page; what it asks for: test_operations_ask.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = str(ROOT / "playbooks/etcd_restore.yml")
PAGE = (ROOT / "docs/operations/backup-and-restore.md").read_text()


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
