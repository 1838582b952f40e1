"""The pod of the DaemonSet muster-node on one node, without a kubelet: its container as a process.

Command, arguments, environment, volumes and mounts are those of the DaemonSet in the cluster; the process has them in a
mount namespace and a root of its own, which is read-only. What is not as in a real pod: this machine's /usr and Python
environment stand in the place of the image, network and resources are this machine's, and the configuration has the
address of the test's API server, GPUs that are simulated, and small shapes.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.attached import AGENT_ACCOUNT
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.system import host
from gpu_burnin.system.files import write_atomic
from tests.integration.attach_cluster import Cluster, Machine
from tests.integration.kube_files import REPOSITORY
from tests.lab.nvml import fake_nvml
from tests.support.clocks import PATIENCE_S

_SCENARIO = "etc/fake-nvml/scenario"
KERNEL_LOG = "/var/lib/gpu-burnin/kmsg"
_SHAPES = ("gemm_m", "gemm_n", "gemm_k")
_BYTES = ("hbm_bytes", "transfer_bytes", "collective_bytes")
# What a kubelet's GPUs, and those of a real host, would be.
SIMULATED: dict[str, Any] = {
    "backend": "cpu",
    "allow_simulated": True,
    "kernel_log": KERNEL_LOG,
    "checks": ["state", "hbm"],
    "shapes": {**dict.fromkeys(_SHAPES, 32), **dict.fromkeys(_BYTES, 65536)},
}


@dataclass
class AgentPod:
    """Of a machine whose Node is there. `host` is the root of its host, which outlives the pod."""

    cluster: Cluster
    machine: Machine
    scenario: str = "healthy-2gpu"
    running: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        folder = self.cluster.directory / f"pod-{self.machine.name}"
        self.host, self._pod, self.log = folder / "host", folder / "volumes", folder / "agent.log"
        libraries = self.host / "usr/lib/x86_64-linux-gnu"
        for one in (libraries, self._pod, self.state, self.host / "etc/fake-nvml", folder / "root"):
            one.mkdir(parents=True)
        # As a driver has it: a name of its version, and the link of the one that is used.
        (libraries / "libnvidia-ml.so.580.65.06").write_bytes(fake_nvml().read_bytes())
        (libraries / "libnvidia-ml.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65.06")
        (self.host / host.MACHINE_ID).write_text(f"{self.machine.machine_id}\n")
        (self.host / _SCENARIO).write_text(
            f"identity = {self.machine.name}\n"
            + (REPOSITORY / f"tests/lab/scenarios/{self.scenario}.scenario").read_text()
        )
        self.kernel("6,0,0,-;Linux version")

    @property
    def state(self) -> Path:
        """The node's state directory."""
        return self.host / "var/lib/gpu-burnin"

    def kernel(self, line: str) -> None:
        """What the kernel writes into its log."""
        with (self.state / "kmsg").open("a") as log:
            log.write(f"{line}\n")

    def start(self) -> None:
        """The container, as the runtime starts it; again where it has ended."""
        assert self.running is None or self.running.poll() is not None
        spec = self.cluster.daemon_set_of_agents()["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] and spec["hostPID"]
        environment = {one["name"]: self._value(one) for one in container["env"]}
        words = [self._expanded(one, environment) for one in (*container["command"], *container["args"])]
        script = self._script(spec["volumes"], container["volumeMounts"], words)
        # The image brings the first two.
        of_image = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin", "PYTHONPATH": str(REPOSITORY)}
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                ["unshare", "--mount", "--propagation=private", "sh", "-ec", script],
                env={**of_image, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def terminate(self) -> int:
        """SIGTERM to the container's first process, as kubelet sends it; its exit code."""
        assert self.running is not None
        self.running.terminate()
        return self.running.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL to all that runs in the container, as the runtime ends one."""
        if self.running is not None and self.running.poll() is None:
            for one in (self.running.pid, *descendants(self.running.pid)):
                try:
                    os.kill(one, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.running.wait(PATIENCE_S)

    def volume(self, name: str) -> Path:
        """Where one of its own is."""
        return self._pod / name

    def words(self) -> str:
        """What the agent has written."""
        return self.log.read_text()

    def fingerprint(self) -> str:
        """Of its key, as its log has it."""
        return next(word.strip("();") for word in self.words().split() if word.startswith("SHA256:"))

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
        return self.machine.name

    def _expanded(self, word: str, environment: dict[str, str]) -> str:
        for name, value in environment.items():
            word = word.replace(f"$({name})", value)
        return word

    def _script(self, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]], words: list[str]) -> str:
        root = self._pod.parent / "root"
        sources = {one["name"]: self._source(one) for one in volumes}
        lines = [f"mount -t tmpfs -o mode=755 image {root}", f"mkdir -p {root}/etc/fake-nvml {root}/proc {root}/sys"]

        def bind(source: Path, place: str, *, read_only: bool) -> None:
            target = f"{root}{place}"
            make = f"mkdir -p {target}" if source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
            lines.append(f"{make}; mount --bind {shlex.quote(str(source))} {target}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {target}")

        for one in sorted(mounts, key=lambda one: str(one["mountPath"])):
            bind(sources[one["name"]], one["mountPath"], read_only=bool(one.get("readOnly")))
        for place in dict.fromkeys(("/usr", sys.prefix, sys.base_prefix, str(REPOSITORY))):
            bind(Path(place), place, read_only=True)
        lines += [f"ln -s usr/{name} {root}/{name}" for name in ("bin", "lib", "lib64")]
        lines += ["echo root:x:0:0:root:/root:/bin/sh >" + f"{root}/etc/passwd"]
        lines += [f"mount --rbind /{name} {root}/{name}" for name in ("proc", "sys")]
        boot = self._pod / "boot-id"
        boot.write_text(f"{self.machine.boot}\n")
        lines += [f"mount --bind {boot} {root}/{host.BOOT_ID}"]
        # The library of the simulated GPUs reads it there.
        bind(self.host / _SCENARIO, f"/{_SCENARIO}", read_only=True)
        lines += [f"mount -o remount,ro {root}", f"exec chroot {root} {shlex.join(words)}"]
        return "\n".join(lines)

    def _source(self, volume: dict[str, Any]) -> Path:
        """Where a volume is, as kubelet would have it; what a hostPath asks for has to be there."""
        made = self.volume(str(volume["name"]))
        if "hostPath" in volume:
            path, kind = str(volume["hostPath"]["path"]), volume["hostPath"].get("type", "")
            place = Path(path) if path == "/dev" else self.host / path.lstrip("/")
            if kind == "DirectoryOrCreate":
                place.mkdir(parents=True, exist_ok=True)
            assert place.is_file() if kind == "File" else place.is_dir(), volume
            return place
        made.mkdir(exist_ok=True)
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            data = self.cluster.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{name}")["data"]
            for key, text in data.items():
                (made / key).write_text(self._configured(text) if key == "agent.yaml" else text)
        if "projected" in volume:
            for source in volume["projected"]["sources"]:
                if "serviceAccountToken" in source:
                    token = self.cluster.token(AGENT_ACCOUNT, f"agent-{self.machine.name}", self.machine.name)
                    (made / source["serviceAccountToken"]["path"]).write_text(token)
                else:
                    assert source["configMap"]["name"] == "kube-root-ca.crt"
                    [item] = source["configMap"]["items"]
                    (made / item["path"]).write_bytes(self.cluster.server.authority.ca.read_bytes())
        return made

    def configure(self, *, hbm_bytes: int) -> None:
        """Have its burn-ins test so much of each GPU from now on, as when its ConfigMap was changed."""
        path = self.volume("config") / "agent.yaml"
        found = yaml.safe_load(path.read_text())
        changed = {**found, "shapes": {**found["shapes"], "hbm_bytes": hbm_bytes}}
        write_atomic(path, yaml.safe_dump(changed).encode())

    def _configured(self, text: str) -> str:
        found = yaml.safe_load(text)
        found["publish"]["server"] = f"https://127.0.0.1:{self.cluster.server.port}"
        return str(yaml.safe_dump({**found, **SIMULATED}))

    def report(self) -> dict[str, Any]:
        """Of the newest run that has one."""
        loaded: dict[str, Any] = json.loads((self.state / "latest/report.json").read_text())
        return loaded


def descendants(process: int) -> list[int]:
    """Processes that a process has started, and these."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, parent = int(place.parent.name), int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(pid)
    found, look = list[int](), [process]
    while look:
        of = parents.get(look.pop(), [])
        found += of
        look += of
    return found


def alive(process: int) -> bool:
    """Whether it runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
