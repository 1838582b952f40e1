"""The CDI specification of a host's GPUs: what containerd gives to a container that asks for one.

Made by nvidia-ctk as JSON, which is YAML too: containerd reads it under either ending, and this needs no YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.nvml import Gpu

KIND = "nvidia.com/gpu"
# Where containerd looks (cdi_spec_dirs). Of two files that define one device that of the later folder wins; in one
# folder the device is gone (container-device-interface, pkg/cdi/cache.go, refresh).
FOLDERS = ("etc/cdi", "var/run/cdi")
_NAMED_DEVICES = 3
_MIG = "MIG-"
# containerd has CDI since 1.7; before, a container that asks for a GPU starts without one, and nobody is told.
_CONTAINERD_SINCE = (1, 7)


def problems(root: Path, path: Path, gpus: Sequence[Gpu]) -> Iterator[str]:
    """What is wrong with the specification at `path` for these GPUs, each one sentence without a full stop.

    A container that asks for a GPU by its UUID gets this one alone, with files that are there.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        named = {str(device["name"]): device["containerEdits"] for device in document["devices"]}
        kind = document["kind"]
    except FileNotFoundError:
        yield f"{path} is missing: containers get no GPU; see `journalctl -u nvidia-cdi-refresh`"
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield f"{path} cannot be read ({type(error).__name__}: {error}): remove it, and run again"
        return
    if kind != KIND:
        yield f"{path} is of kind {kind}, not {KIND}: remove it, and run again"
        return
    yield from _of_gpus(path, named, gpus)
    everything = [document.get("containerEdits") or {}, *named.values()]
    yield from _missing(root, path, everything)
    yield from conflicts(root, path, frozenset(named))


def runtime_problem(version: str) -> str:
    """Why the containerd that runs gives no GPUs, from the output of `ctr version`; empty when it does."""
    server = version.partition("Server:")[2]
    match = re.search(r"Version:\s*v?(\d+)\.(\d+)\S*", server)
    if match is None:
        return "containerd does not answer `ctr version`: see `systemctl status containerd`"
    if (int(match[1]), int(match[2])) >= _CONTAINERD_SINCE:
        return ""
    found = match[0].partition(":")[2].strip()
    return f"containerd {found} knows no CDI: set container_runtime_source to mirror, which brings containerd 2"


def conflicts(root: Path, path: Path, names: frozenset[str]) -> Iterator[str]:
    """What other files that define the same devices do to those of `path`; one that loses against it does nothing."""
    ranks = {file: rank for rank, folder in enumerate(FOLDERS) for file in sorted((root / folder).glob("*"))}
    own = next((rank for file, rank in ranks.items() if file.samefile(path)), len(FOLDERS))
    for file, rank in ranks.items():
        if file.suffix not in (".json", ".yaml") or rank < own or file.samefile(path):
            continue
        try:
            kind, theirs = _devices(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            yield f"whether {file} takes devices from {path} cannot be told ({error}): remove it, or make it of JSON"
            continue
        both = sorted(names & theirs)
        if kind == KIND and both:
            more = len(both) - _NAMED_DEVICES
            which = ", ".join(both[:_NAMED_DEVICES]) + (f" and {more} more" if more > 0 else "")
            does = "and containerd then gives neither" if rank == own else "and containerd gives those instead"
            yield f"{file} defines {which} of {KIND} too, {does}: remove it"


def _devices(text: str) -> tuple[str, frozenset[str]]:
    """Kind and names of the devices of a specification in JSON, or in YAML as nvidia-ctk writes it. Raises ValueError.

    Without a YAML library: the keys that count are at the margin, or those of an item of `devices`.
    """
    if text.lstrip().startswith("{"):
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("it is no mapping")
        try:
            return str(document["kind"]), frozenset(str(device["name"]) for device in document.get("devices") or ())
        except (KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
    kind, section, names, items, margin = "", "", set(), 0, None
    for line in text.splitlines():
        key, found, value = line.lstrip("- ").partition(":")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith((" ", "-")):
            section = key if found else section
            kind = _scalar(value) if key == "kind" else kind
            if key == "devices" and _scalar(value) not in ("", "[]"):
                raise ValueError("its devices are in a form of YAML that is not read here")
            continue
        if section != "devices":
            continue
        dash = len(line) - len(line.lstrip(" "))
        if line[dash : dash + 1] == "-" and margin in (None, dash):
            margin, items = dash, items + 1
        if margin is not None and key == "name" and len(line) - len(line.lstrip("- ")) == margin + 2:
            names.add(_scalar(value))
    if not kind or items != len(names):
        raise ValueError("it is no specification in a form that is read here")
    return kind, frozenset(names)


def _scalar(text: str) -> str:
    return text.strip().strip("\"'")


def _of_gpus(path: Path, named: dict[str, Any], gpus: Sequence[Gpu]) -> Iterator[str]:
    wanted = {gpu.uuid for gpu in gpus if gpu.uuid and gpu.mig != "on"}
    known = {name for name in named if name.startswith("GPU-")}
    for uuid in sorted(wanted - known):
        yield f"{path} has no device for the GPU {uuid}; see `journalctl -u nvidia-cdi-refresh`"
    for uuid in sorted(known - wanted):
        yield f"{path} has a device for {uuid}, which NVML does not show; see `nvidia-smi -L`"
    if any(gpu.mig == "on" for gpu in gpus) and not any(name.startswith(_MIG) for name in named):
        yield f"{path} has no MIG device, and MIG is on: make the instances, then start nvidia-cdi-refresh.service"
    for uuid in sorted(wanted & known):
        nodes = _gpu_nodes(named[uuid])
        if len(nodes) != 1:
            given = ", ".join(nodes) or "no device node"
            yield f"{path} gives {given} for the one GPU {uuid}; see `nvidia-ctk cdi generate`"


def _gpu_nodes(edits: dict[str, Any]) -> list[str]:
    """The device nodes that are of one GPU: /dev/nvidia0."""
    paths = [str(node["path"]) for node in edits.get("deviceNodes") or ()]
    return [path for path in paths if path.removeprefix("/dev/nvidia").isdigit()]


def _missing(root: Path, path: Path, edits: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Files of the host that are named and not there: of a driver that was replaced, or a GPU that is gone."""
    taken: list[Callable[[dict[str, Any]], list[str]]] = [
        lambda edit: [str(node.get("hostPath") or node["path"]) for node in edit.get("deviceNodes") or ()],
        lambda edit: [str(mount["hostPath"]) for mount in edit.get("mounts") or ()],
        lambda edit: [str(hook["path"]) for hook in edit.get("hooks") or ()],
    ]
    files = {file for edit in edits for take in taken for file in take(edit)}
    for file in sorted(files):
        if not (root / file.lstrip("/")).exists():
            yield f"{path} names {file}, which is not there: start nvidia-cdi-refresh.service"
