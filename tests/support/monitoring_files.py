"""What the roles write on the hosts of a fleet's monitoring, rendered by the real ansible-playbook into a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Role, template, and the name of what comes of it.
FILES = (
    ("fleet_monitoring", "prometheus.yml.j2", "prometheus.yml"),
    ("fleet_monitoring", "prometheus.default.j2", "prometheus.default"),
    ("fleet_monitoring", "alertmanager.yml.j2", "alertmanager.yml"),
    ("fleet_monitoring", "alertmanager.default.j2", "alertmanager.default"),
    ("fleet_monitoring", "alertmanager-cluster.yml.j2", "alertmanager-cluster.yml"),
    ("host_metrics", "haproxy.cfg.j2", "haproxy.cfg"),
)


def render(folder: Path, hosts: Mapping[str, Mapping[str, Any]], variables: Mapping[str, Any]) -> dict[str, Path]:
    """A folder for each host of the group `monitoring`, with the files and the targets of each job (targets/JOB.json).

    `variables` win over the roles' own. Raises RuntimeError with Ansible's output where it fails.
    """
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": {"monitoring": {"hosts": hosts}}}}))
    (folder / "variables.json").write_text(json.dumps(variables))
    (folder / "files").symlink_to(ROOT / "roles" / "fleet_monitoring" / "files")
    texts = [
        f"'{made}': lookup('ansible.builtin.template', '{ROOT}/roles/{role}/templates/{name}')"
        for role, name, made in FILES
    ]
    content = f"{{{{ {{{', '.join(texts)}, 'targets': __fleet_monitoring_target_files}} | to_json }}}}"
    task = {"ansible.builtin.copy": {"content": content, "dest": f"{folder}/{{{{ inventory_hostname }}}}.json"}}
    roles = ("fleet", "host_metrics", "fleet_monitoring")
    files = [str(ROOT / "roles" / role / kind / "main.yml") for kind in ("defaults", "vars") for role in roles]
    play = {"hosts": "monitoring", "gather_facts": False, "connection": "local", "vars_files": files, "tasks": [task]}
    (folder / "play.yml").write_text(json.dumps([play]))
    _run([folder / "play.yml", "-i", folder / "hosts.json", "-e", f"@{folder / 'variables.json'}"], folder)
    for host in hosts:
        _write(folder / host, json.loads((folder / f"{host}.json").read_text()))
    return {host: folder / host for host in hosts}


def _write(folder: Path, texts: dict[str, Any]) -> None:
    (folder / "targets").mkdir(parents=True)
    for file in texts.pop("targets"):
        (folder / "targets" / Path(file["dest"]).name).write_text(file["content"])
    for name, text in texts.items():
        (folder / name).write_text(text)


def _run(arguments: Sequence[object], folder: Path) -> None:
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
