"""What attach says and writes: its manifests as files, and what it has done in words."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.attached import WEBHOOK_CA
from gpu_burnin.fleet.attach.course import AUTHORITY_FILES, Written, authority
from gpu_burnin.fleet.attach.manifests import parts
from gpu_burnin.fleet.attach.settings import WEBHOOK_TAINTS, Settings
from gpu_burnin.system.files import read_text, write_atomic

# What node-feature-discovery and gpu-operator write, minutes after a Node was created.
_LATE = ("nvidia.com/", "feature.node.kubernetes.io/")


@dataclass(frozen=True)
class Rendered:
    """The files, and what whoever applies them has to know: a sentence each."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write(folder: Path, settings: Settings, taints_by: str, now: datetime) -> Rendered:
    """The manifests, a file for each part, to be applied in the order of their names; the files of before are replaced.

    The webhook's authority is that of before until its last year, of the files beside them or of their Secret: both
    have its key, which is a secret.
    """
    settings = replace(settings, taints_by=taints_by)
    folder.mkdir(parents=True, exist_ok=True)
    old_files = sorted(folder.glob("[0-9]0-*.yaml"))
    old = [one for path in old_files for one in _objects(path)]
    kept, notes = _kept(folder, old, now) if taints_by == WEBHOOK_TAINTS else ({}, [])
    made = parts(settings, kept)
    if left := _left(old, made.all()):
        notes.append(
            "these are no manifests any more, and `kubectl apply` leaves them in the cluster, where they go on: "
            f"{'; '.join(left)} (or apply with --prune)"
        )
    written = []
    for path in old_files:
        if path.name not in made.files():
            path.unlink()
    for name, objects in made.files().items():
        path = folder / name
        write_atomic(path, yaml.safe_dump_all(objects, sort_keys=False, width=110).encode(), mode=0o600)
        written.append(path)
    return Rendered(tuple(written), tuple(notes))


def _kept(folder: Path, old: Iterable[Mapping[str, Any]], now: datetime) -> tuple[Mapping[str, str], list[str]]:
    """The authority, and what is to be known of another one."""
    files = {name: folder / name for name in AUTHORITY_FILES}
    there = {name: path.read_text(encoding="ascii") for name, path in files.items() if path.exists()}
    # A checkout has the manifests, and mostly not the files beside them.
    found = there if len(there) == len(files) else _of_secret(old)
    made = authority(now, found)
    if made != there:
        for name, text in made.items():
            write_atomic(files[name], text.encode())
    if made == found:
        return made, []
    if found and found["ca.crt"].strip() and found["ca.crt"] in made["ca.crt"]:
        return made, [f"{folder}: another authority of the webhook was made, and the old one is believed beside it"]
    return made, [
        f"{folder}: a new authority of the webhook was made: keep its ca.key or its 30-config.yaml for the next "
        "rendering, or that makes another one; a webhook that runs with another one is believed no more"
    ]


def _of_secret(old: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The authority in a Secret of before, empty for none, or one that nobody can read, as where it is encrypted."""
    for one in old:
        if one.get("kind") == "Secret" and _key(one)[2] == WEBHOOK_CA:
            try:
                data = one["data"]
                return {name: base64.b64decode(data[name], validate=True).decode("ascii") for name in AUTHORITY_FILES}
            except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
                return {}
    return {}


def _objects(path: Path) -> Iterator[Mapping[str, Any]]:
    """What is in a file of before; nothing where somebody has put something else in its place."""
    try:
        yield from (one for one in yaml.safe_load_all(read_text(path)) if isinstance(one, Mapping) and all(_key(one)))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return


def _key(one: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = one.get("metadata")
    of: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    return str(one.get("kind") or ""), str(of.get("namespace") or "-"), str(of.get("name") or "")


def _left(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[str]:
    """The commands that remove what was a manifest and is none. Pure."""
    there = {_key(one) for one in new}
    gone = dict.fromkeys(key for key in map(_key, old) if key not in there)
    return [
        f"kubectl delete {kind.lower()} {name}{'' if namespace == '-' else f' --namespace {namespace}'}"
        for kind, namespace, name in gone
    ]


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
        "unapproved": None if done.unapproved is None else [*done.unapproved],
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
    lines.append(f"{len(done.written)} objects {would}written; next: {_next(done, dry_run=dry_run)}")
    return "\n".join(lines) + "\n"


def _next(done: Written, *, dry_run: bool) -> str:
    if dry_run:
        return "the same without --dry-run"
    if done.found.nodes and done.unapproved == ():
        return "muster status"
    return "muster attach nodes, then muster attach approve NODE"
