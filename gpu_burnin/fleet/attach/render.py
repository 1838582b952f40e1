"""What attach says and writes: its manifests as files, and what it has done in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.fleet.attach.course import AUTHORITY_FILES, Written, authority
from gpu_burnin.fleet.attach.manifests import parts
from gpu_burnin.fleet.attach.settings import WEBHOOK_TAINTS, Settings
from gpu_burnin.system.files import write_atomic

# What node-feature-discovery and gpu-operator write, minutes after a Node was created.
_LATE = ("nvidia.com/", "feature.node.kubernetes.io/")


def write(folder: Path, settings: Settings, taints_by: str, now: datetime) -> list[Path]:
    """The manifests, a file for each part, to be applied in the order of their names; the files of before are replaced.

    The webhook's authority is kept beside them until its last year: the file with its key is a secret.
    """
    settings = replace(settings, taints_by=taints_by)
    folder.mkdir(parents=True, exist_ok=True)
    made = parts(settings, _kept(folder, now) if taints_by == WEBHOOK_TAINTS else {}).files()
    written = []
    for old in folder.glob("[0-9]0-*.yaml"):
        if old.name not in made:
            old.unlink()
    for name, objects in made.items():
        path = folder / name
        write_atomic(path, yaml.safe_dump_all(objects, sort_keys=False, width=110).encode(), mode=0o600)
        written.append(path)
    return written


def _kept(folder: Path, now: datetime) -> Mapping[str, str]:
    files = {name: folder / name for name in AUTHORITY_FILES}
    found = {name: path.read_text(encoding="ascii") for name, path in files.items() if path.exists()}
    made = authority(now, found)
    if made != found:
        for name, text in made.items():
            write_atomic(files[name], text.encode())
    return made


def to_json(done: Written, *, dry_run: bool) -> dict[str, Any]:
    """Plain JSON values."""
    found = done.found
    return {
        "mode": str(done.settings.mode),
        "dry_run": dry_run,
        "version": done.capabilities.version,
        "missing": [*done.capabilities.missing],
        "lacking": done.lacking,
        "webhook_taints": done.tainted,
        "taints_by": done.settings.taints_by,
        "monitoring": done.settings.monitoring,
        "gpu_nodes": [*found.nodes],
        "at_work": [*found.at_work],
        "without_gpus": [*found.without_gpus],
        "intolerant_daemonsets": [*found.intolerant],
        "changes": [*done.changes],
        "written": [*done.written],
        "removed": [*done.removed],
    }


def text(done: Written, *, dry_run: bool) -> str:
    """For people: what it is now, what is missing, what to do next."""
    found, settings = done.found, done.settings
    would = "would be " if dry_run else ""
    lines = [
        f"{would}attached, {settings.mode}: Kubernetes {done.capabilities.version}, "
        f"GPU Nodes {settings.gpu_nodes.words}",
        f"GPU Nodes now: {', '.join(found.nodes) or 'none: is the label right?'}",
    ]
    lines += [f"lacking: {sentence}" for sentence in done.capabilities.missing]
    if done.lacking:
        lines.append(f"lacking: you may not {done.lacking}; have an admin do this, or give one the files of --render")
    if done.tainted is False:
        lines.append(
            "the webhook adds no taint yet: until it does no GPU Node joins that brings none itself; `muster status` "
            "says whether it lasts"
        )
    if done.capabilities.monitoring and not settings.monitoring:
        lines.append("prometheus-operator is here: --monitoring has it read Muster's numbers and alert on the gate")
    if found.at_work:
        lines.append(f"at work, tested when they are idle: {', '.join(found.at_work)}")
    if found.without_gpus:
        lines.append(f"without nvidia.com/gpu: {', '.join(found.without_gpus)}; is the device plugin there?")
    if found.intolerant:
        when = "these stay away from new GPU Nodes" if settings.enforcing else "these stay away once you --enforce"
        lines.append(
            f"{when}, until they tolerate {settings.names.preflight}:NoSchedule: {', '.join(found.intolerant)}"
        )
    if settings.gpu_nodes.label.startswith(_LATE):
        lines.append(
            f"{settings.gpu_nodes.label}: labels of this kind mostly come after a Node was created, and then its taint "
            "does not; take it only where kubelet registers with it (--node-labels)"
        )
    lines += [f"{would}changed: {sentence}" for sentence in done.changes]
    lines += [f"{would}removed: {name}" for name in done.removed]
    then = "the same without --dry-run" if dry_run else "muster attach nodes, then muster attach approve NODE"
    lines.append(f"{len(done.written)} objects {would}written; next: {then}")
    return "\n".join(lines) + "\n"
