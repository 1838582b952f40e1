"""What the pods of a job are given besides GPUs: claims, variables of Secrets and ConfigMaps, CPU, memory, a hold.

Checked as far as that goes without a cluster.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.api.jobs import CHECKPOINT
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s

SECRET, CONFIG_MAP = "secret", "configmap"
# The launcher's own folders, and what every container has of its kernel: nothing goes over, under or into them.
_TAKEN_PATHS = ("/run/muster", "/dev", "/proc", "/sys")
_OBJECT = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)")


@dataclass(frozen=True)
class Mount:
    """A PersistentVolumeClaim of the team's namespace, and where the pods have it."""

    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Variables:
    """A Secret or ConfigMap (`kind` as SECRET and CONFIG_MAP are) of which each key becomes a variable."""

    kind: str
    name: str


def check_volumes(volumes: Sequence[str]) -> tuple[Mount, ...]:
    """Claims with their paths, of texts NAME:/path and NAME:/path:ro. Raises LaunchError."""
    mounts = tuple(map(_mount, _texts("volumes", volumes, "data:/data")))
    for which in ("claim", "path"):
        values = [getattr(mount, which) for mount in mounts]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise LaunchError(f"volumes name the {which} {twice} twice; name each claim and each path once")
    return mounts


def _mount(text: str) -> Mount:
    claim, *rest = text.split(":")
    if len(rest) not in (1, 2) or rest[1:] not in ([], ["ro"]):
        raise LaunchError(f"the volume {text!r} is not NAME:/path or NAME:/path:ro, such as data:/data")
    _check_object("PersistentVolumeClaim", claim)
    path = rest[0]
    if not path.startswith("/") or ".." in path.split("/"):
        raise LaunchError(f"the volume {text!r} goes to {path!r}; give a whole path, such as {claim}:/data")
    path = "/" + posixpath.normpath(path).strip("/")
    taken = next((own for own in _TAKEN_PATHS if _within(path, own) or _within(own, path)), None)
    if taken:
        raise LaunchError(f"the volume {claim} cannot be at {path}, since {taken} is taken; give another path")
    return Mount(claim, path, bool(rest[1:]))


def _within(path: str, folder: str) -> bool:
    return posixpath.commonpath([path, folder]) == folder


def check_env_from(env_from: Sequence[str]) -> tuple[Variables, ...]:
    """Secrets and ConfigMaps, of texts NAME (of which the kind is still ""), secret/NAME and configmap/NAME.

    Raises LaunchError.
    """
    found = []
    for text in _texts("env_from", env_from, "tokens"):
        kind, slash, name = text.rpartition("/")
        if slash and kind not in (SECRET, CONFIG_MAP):
            raise LaunchError(f"env_from has {text!r}; give a name, {SECRET}/NAME or {CONFIG_MAP}/NAME")
        _check_object("Secret or ConfigMap", name)
        found.append(Variables(kind, name))
    return tuple(found)


def _texts(key: str, values: Sequence[str], such_as: str) -> Sequence[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise LaunchError(f"{key} is {values!r}; give a list of texts, such as [{such_as!r}]")
    return values


def _check_object(kind: str, name: str) -> None:
    if not _OBJECT.fullmatch(name):
        raise LaunchError(f"no {kind} can have the name {name!r}; names are small letters, digits, hyphens and dots")


def check_hold(hold_until: str | None, now: datetime) -> str | None:
    """Until when pods are left, as the admitter reads it: CHECKPOINT or a time to come. Raises LaunchError."""
    if hold_until is None:
        return None
    text = hold_until.strip()
    if text == CHECKPOINT:
        return text
    try:
        end = parse_rfc3339(text)
    except ValueError as error:
        raise LaunchError(
            f"hold_until is {hold_until!r} ({error}); give a time with its offset, or {CHECKPOINT}"
        ) from error
    if end <= now:
        raise LaunchError(f"hold_until is {text}, and it is {rfc3339_s(now)} now; give a time to come, or {CHECKPOINT}")
    return text


def check_cpus(cpus: float | None) -> str | None:
    """CPUs of each pod as Kubernetes writes them. Raises LaunchError."""
    if cpus is None:
        return None
    number = isinstance(cpus, int | float) and not isinstance(cpus, bool) and math.isfinite(cpus)
    thousandths = round(cpus * 1000) if number else 0
    if thousandths < 1:
        raise LaunchError(f"cpus is {cpus!r}; give a number, such as 64 or 0.5")
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def check_memory(memory: str | None) -> str | None:
    """Memory of each pod, with its unit. Raises LaunchError."""
    if memory is None:
        return None
    if not isinstance(memory, str) or not _MEMORY.fullmatch(memory) or not re.search("[1-9]", memory):
        raise LaunchError(f"memory is {memory!r}; give a size with its unit, such as 512Gi")
    return memory
