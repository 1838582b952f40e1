"""A machine that boots from an image: the lab's root file system with a node's files, sealed, in a container.

kubelet is a stand-in that shows its options. There is no network but a socket to the API server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from gpu_burnin.node.enrol.seal import Sealed, seal
from tests.integration.kube import Part, Server, ended, until
from tests.integration.kube_files import REPOSITORY
from tests.lab.hosts import cgroup_v1
from tests.lab.image import ensure_image

BUILDER, ADDRESS, RANGE = "image-1", "198.18.8.250", "198.18.250.0/24"
CONTAINER = "muster-image-boot"
_START_S = 120.0
_KUBELET = f"""\
[Unit]
Description=Stand-in of kubelet
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5
ExecStart=/bin/sh -c 'echo started with --hostname-override={BUILDER} --node-ip={ADDRESS}; exec sleep infinity'
[Install]
WantedBy=multi-user.target
"""
_LINE = """\
[Unit]
Description=The way to the API server
Before=muster-enrol.service
[Service]
ExecStart=/usr/bin/python3 /srv/line.py {port} /srv/sock/api
[Install]
WantedBy=multi-user.target
"""
_PYTHON = "PYTHONPATH=/srv/code:/srv/packages exec /usr/bin/python3"
# Each end of the line: from a port of loopback, or a socket, to the other.
_LINE_PROGRAM = """\
import asyncio, sys
port, path = int(sys.argv[1]), sys.argv[2]
async def pipe(a, b):
    try:
        while data := await a.read(65536):
            b.write(data)
            await b.drain()
    finally:
        b.close()
async def serve(reader, writer):
    there = asyncio.open_connection("127.0.0.1", port) if outside else asyncio.open_unix_connection(path)
    other = await there
    await asyncio.gather(pipe(reader, other[1]), pipe(other[0], writer), return_exceptions=True)
async def main():
    here = asyncio.start_unix_server(serve, path) if outside else asyncio.start_server(serve, "127.0.0.1", port)
    await (await here).serve_forever()
outside = len(sys.argv) > 3
asyncio.run(main())
"""


def missing() -> str:
    """Why it cannot run here; "" where it can."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("podman", "mmdebstrap")):
        return "a container with systemd needs root, podman and mmdebstrap"
    return ""


@dataclass(frozen=True)
class ImageHost:
    """The machine: `root` is its disk, `sealed` what sealing did."""

    root: Path
    directory: Path
    sealed: Sealed

    def run(self, *command: str) -> str:
        """What a command on it prints, whatever it exits with."""
        done = subprocess.run(["podman", "exec", CONTAINER, *command], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def boot(self) -> None:
        """For the first time, or once more."""
        if subprocess.run(["podman", "container", "exists", CONTAINER], check=False).returncode == 0:
            _podman("restart", "--time", "5", CONTAINER)
            return
        volumes = {self.directory / "sock": "/srv/sock", REPOSITORY: "/srv/code:ro"}
        volumes |= {Path(click.__file__).parents[1]: "/srv/packages:ro"}
        _podman(
            *(["--runtime", "runc"] if cgroup_v1() else []),
            *("run", "--detach", "--name", CONTAINER, "--hostname", BUILDER, "--network", "none", "--pids-limit", "-1"),
            *("--ulimit", "nofile=8192:8192", "--ulimit", "nproc=4096:4096"),
            *("--cap-add", "SYS_ADMIN,SYS_PTRACE,SYS_CHROOT,AUDIT_WRITE", "--security-opt", "unmask=ALL"),
            *(word for place, at in volumes.items() for word in ("--volume", f"{place}:{at}")),
            *("--systemd=always", "--entrypoint", "/usr/local/sbin/entry", "--rootfs", str(self.root)),
        )

    def active(self, unit: str) -> str:
        """active, inactive, failed ..."""
        return self.run("systemctl", "is-active", unit)


@contextmanager
def image_host(server: Server, directory: Path) -> Iterator[ImageHost]:
    """The machine before its first boot. Raises RuntimeError."""
    for name in ("upper", "work", "root", "sock"):
        (directory / name).mkdir(parents=True)
    root = directory / "root"
    layers = f"lowerdir={ensure_image()},upperdir={directory / 'upper'},workdir={directory / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    line = directory / "line.py"
    line.write_text(_LINE_PROGRAM)
    outside = Part(
        [sys.executable, str(line), str(server.port), str(directory / "sock/api"), "outside"], directory / "line.log"
    )
    try:
        _write_files(root, server)
        sealed = seal(root, BUILDER, ADDRESS, RANGE)
        with ended(outside):
            outside.start()
            until("the line to the API server", (directory / "sock/api").exists, 30)
            yield ImageHost(root, directory, sealed)
    finally:
        subprocess.run(
            ["podman", "rm", "--force", "--time", "0", "--ignore", CONTAINER], check=True, capture_output=True
        )
        subprocess.run(["umount", root], check=True)


def _write_files(root: Path, server: Server) -> None:
    boot = "cat /proc/sys/kernel/random/uuid > /run/boot && mount --bind /run/boot /proc/sys/kernel/random/boot_id"
    more = {
        # podman's own /etc/hostname is a mount, which no file can take the place of.
        "usr/local/sbin/entry": f"#!/bin/sh\nset -eu\n{boot}\numount /etc/hostname\nexec /sbin/init\n",
        "srv/line.py": _LINE_PROGRAM,
        "etc/systemd/system/line.service": _LINE.format(port=server.port),
    }
    write_node(root, server, f"https://127.0.0.1:{server.port}", _PYTHON, more)


def write_node(root: Path, server: Server, url: str, python: str, more: Mapping[str, str]) -> None:
    """What the roles have written on the machine that the image is made of, and `more` files by name.

    It reaches the API server at `url`; `python` are words of a shell that run a Python with gpu-burnin's modules.
    """
    texts = {
        "usr/local/bin/gpu-burnin": f'#!/bin/sh\n{python} -m gpu_burnin "$@"\n',
        "etc/systemd/system/kubelet.service": _KUBELET,
        "etc/gpu-burnin/config.yaml": f"node_name: {BUILDER}\npublish:\n  server: {url}\n",
        "etc/pod-network/config.json": f'{{"range": "{RANGE}"}}\n',
        "etc/kubernetes/pki/ca.crt": server.authority.ca.read_text(),
        "etc/kubernetes/pki/kube-proxy.key": "-----BEGIN PRIVATE KEY-----\n",
        "etc/ssh/ssh_host_ed25519_key": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "etc/machine-id": f"{'1' * 32}\n",
        **more,
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if "bin/" in name else 0o644)
        if path.parent == root / "etc/systemd/system":
            wanted = path.parent / "multi-user.target.wants" / path.name
            wanted.parent.mkdir(exist_ok=True)
            wanted.symlink_to(f"../{path.name}")


def _podman(*words: str) -> None:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False, timeout=_START_S)
    if done.returncode != 0:
        raise RuntimeError(f"podman {words[0]}: {done.stderr}")
