"""A pod of a launched job as a process here: its volumes as kubelet lays them out, its command as its container has."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass
class PodProcess:
    """The files of a pod below `root`, and what it is started with."""

    root: Path
    command: list[str]
    environment: dict[str, str]

    @property
    def node_leave(self) -> Path:
        """What the node asks: kubelet's file of the annotation, which is empty where there is none."""
        return Path(self.environment["MUSTER_NODE_LEAVE_FILE"])

    @property
    def termination_log(self) -> Path:
        """What it says of its end."""
        return self.root / "termination-log"

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Run it."""
        return subprocess.Popen(
            self.command,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, timeout_s: float = 30, **environment: str) -> tuple[int, str]:
        """Exit code and log."""
        with self.start(**environment) as process:
            out, _ = process.communicate(timeout=timeout_s)
        return process.returncode, out.decode()


def lay_out(
    root: Path, pod: Mapping[str, Any], config_map: Mapping[str, Any], *, python: str = sys.executable
) -> PodProcess:
    """A pod's files. MASTER_ADDR is this machine's."""
    [container] = pod["spec"]["containers"]
    files = {name: text.encode() for name, text in config_map["data"].items()}
    files |= {name: base64.b64decode(text) for name, text in config_map["binaryData"].items()}
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for volume in pod["spec"]["volumes"]:
        place = root / places[volume["name"]].lstrip("/")
        place.mkdir(parents=True)
        for item in volume.get("configMap", {}).get("items", []):
            path = place / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[item["key"]])
        for item in volume.get("downwardAPI", {}).get("items", []):
            (place / item["path"]).write_text(field_of(pod, item["fieldRef"]["fieldPath"]))
    inside = {path for path in places.values() if path.startswith("/run/")}

    def here(text: str) -> str:
        return str(root / text.lstrip("/")) if any(text.startswith(path) for path in inside) else text

    environment = {"PATH": os.environ["PATH"]}
    for one in container["env"]:
        value = one["value"] if "value" in one else field_of(pod, one["valueFrom"]["fieldRef"]["fieldPath"])
        environment[one["name"]] = here(value)
    environment |= {"MASTER_ADDR": "127.0.0.1", "MUSTER_TERMINATION_LOG": str(root / "termination-log")}
    return PodProcess(root, [python if one == "python3" else here(one) for one in container["command"]], environment)


def field_of(pod: Mapping[str, Any], path: str) -> str:
    """What the downward API gives for a field: empty where the pod has no such label or annotation."""
    found = _FIELD.fullmatch(path)
    if found is None:
        return str(pod["spec"].get("nodeName", "")) if path == "spec.nodeName" else ""
    kind, key = found.groups()
    return str((pod["metadata"].get(kind) or {}).get(key, ""))
