"""Start and remove the lab's hosts: podman containers with systemd, SSH, their own disks and boot ids.

Everything made carries the lab's name, and removal goes by it: nothing else on the machine is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.fleet.mirror.commands import run, succeeds
from gpu_burnin.fleet.mirror.progress import Progress

from . import gpus, machine, wall
from .cpu_group import hosts_group
from .error import LabError
from .image import ensure_image
from .model import DISK_SIZE_BYTES, Host, Lab
from .packages.build import ensure_repository
from .paths import REPOSITORY
from .preparing import preparing

SSH_DEADLINE_S = 60
REMOVAL_S = 300


def require_root() -> None:
    """Raise LabError for anybody else: better before minutes of building than after."""
    if os.geteuid() != 0:
        raise LabError("the lab starts hosts with mounts and a network of their own and needs root: run it with sudo")


START = "start the hosts"


def up(lab: Lab, progress: Progress | None = None) -> None:
    """Start every host of the lab that does not run yet, then wait until all answer on SSH.

    A lab of which hosts are gone (a run was killed, the machine was started anew) is made anew as a whole: the keys and
    the state of the fleet that it keeps are of those hosts.
    """
    require_root()
    if gone := _gone(lab):
        print(f"lab {lab.name}: gone since an earlier run: {', '.join(gone)}; all is made anew", file=sys.stderr)
        down(lab)
    machine.enter(lab.state)
    with preparing(progress) as shown:
        shown.plan([START])
        rootfs = ensure_image(shown)
        shown.stage(START)
        _start_all(lab, rootfs, shown)


def _start_all(lab: Lab, rootfs: Path, progress: Progress) -> None:
    _ensure_key(lab)
    if any(host.nvidia is not None for host in lab.hosts) and not _repository(lab).exists():
        # The lab stays with it, whatever becomes of the sources meanwhile: hosts trust its key.
        _repository(lab).symlink_to(ensure_repository(cache_dir() / "bin/current"))
    for subnet in lab.subnets:
        if not succeeds(["podman", "network", "exists", _network(lab, subnet)]):
            run(["podman", "network", "create", "--subnet", subnet, "--disable-dns", _network(lab, subnet)])
    if len(lab.subnets) > 1:
        wall.build(lab)
    if lab.mirror_address:
        _start_mirror(lab, rootfs)
    for host in lab.hosts:
        if not _running(_container(lab, host.name)):
            progress.task(host.name)
            _start(lab, host, rootfs)
    for host in lab.hosts:
        progress.task(f"{host.name} to answer on SSH")
        _wait_for_ssh(host.name, host.address)


def _gone(lab: Lab) -> list[str]:
    """The hosts that have a directory here, but no container or no root file system."""
    directories = sorted((lab.state / "hosts").glob("*"))
    return [
        path.name
        for path in directories
        if not os.path.ismount(path / "merged")
        or not succeeds(["podman", "container", "exists", _container(lab, path.name)])
    ]


def down(lab: Lab) -> None:
    """Remove the hosts, network, loop devices, mounts and state of this lab; fine when there are none or only some."""
    # By label: the inventory may have lost a host since.
    label = f"label=muster.lab={lab.name}"
    with machine.power(lab.state):
        for container in run(["podman", "ps", "--all", "--filter", label, "--format", "{{.Names}}"]).split():
            _remove(container)
    for subnet in lab.subnets:
        if succeeds(["podman", "network", "exists", _network(lab, subnet)]):
            run(["podman", "network", "rm", _network(lab, subnet)])
    if len(lab.subnets) > 1:
        wall.remove(lab)
    for host_dir in sorted((lab.state / "hosts").glob("*")):
        _release_disk(host_dir / "disk.img")
        machine.unmount_below(host_dir)
    machine.leave(lab.state)


def _remove(container: str) -> None:
    """Kill a host and remove it. podman gives its processes some seconds to die, and a busy machine needs longer."""
    command = ["podman", "rm", "--force", "--time", "0", container]
    deadline = time.monotonic() + REMOVAL_S
    while not succeeds(command) and time.monotonic() < deadline:
        pass  # the next one waits as long, for what is left of them
    if succeeds(["podman", "container", "exists", container]):
        run(command)


def reboot(lab: Lab, name: str) -> None:
    """Restart one host: a new systemd, a new boot id, an empty kernel log; returns when it answers on SSH."""
    host = next(host for host in lab.hosts if host.name == name)
    run(["podman", "restart", "--time", "5", _container(lab, name)])
    _wait_for_ssh(host.name, host.address)


def cut(lab: Lab, name: str) -> None:
    """Take one host from its network, without a word to anybody. It comes back by `join`, or when it is started."""
    run(["podman", "exec", _container(lab, name), "ip", "link", "set", "eth0", "down"])


def join(lab: Lab, name: str) -> None:
    """Bring a host back that was cut off; returns when it answers on SSH."""
    run(["podman", "exec", _container(lab, name), "ip", "link", "set", "eth0", "up"])
    _wait_for_ssh(name, next(host.address for host in lab.hosts if host.name == name))


def power_off(lab: Lab, name: str) -> None:
    """What a lost power supply does: silence, and nothing that ran is left."""
    cut(lab, name)
    run(["podman", "kill", _container(lab, name)])


def power_on(lab: Lab, name: str) -> None:
    """Start a host that was powered off; returns when it answers on SSH."""
    run(["podman", "start", _container(lab, name)])
    _wait_for_ssh(name, next(host.address for host in lab.hosts if host.name == name))


def install_scenario(lab: Lab, name: str, scenario: str) -> None:
    """Give a host another GPU scenario."""
    gpus.install_scenario(lab.state / "hosts" / name / "merged", name, scenario)


def status(lab: Lab) -> dict[str, str]:
    """The container state of every host ('running', 'exited', 'absent')."""
    listing = json.loads(
        run(["podman", "ps", "--all", "--filter", f"label=muster.lab={lab.name}", "--format", "json"]) or "[]"
    )
    states = {entry["Names"][0]: str(entry["State"]) for entry in listing}
    return {host.name: states.get(_container(lab, host.name), "absent") for host in lab.hosts}


def _container(lab: Lab, name: str) -> str:
    return f"muster-{lab.name}-{name}"


def _network(lab: Lab, subnet: str) -> str:
    return f"muster-{lab.name}{'' if subnet == lab.subnets[0] else '-nodes'}"


def _running(container: str) -> bool:
    return run(["podman", "ps", "--filter", f"name=^{container}$", "--format", "{{.Names}}"]).strip() == container


def _start(lab: Lab, host: Host, rootfs: Path) -> None:
    directory = lab.state / "hosts" / host.name
    container = _container(lab, host.name)
    if succeeds(["podman", "container", "exists", container]):
        run(["podman", "start", container])
        return
    merged = _mount_overlay(directory, rootfs)
    _prepare_files(lab, host, merged, directory)
    # Roles reboot hosts of which they install the driver: what ends by itself starts anew.
    restart = ["--restart=always"] if host.nvidia is not None else []
    run([*_podman_run(lab, container, host.address), *restart, *_privileges(host.node), *_devices(host, directory),
         "--systemd=always", "--entrypoint", "/usr/local/sbin/lab-entry", "--rootfs", merged])  # fmt: skip


def _podman_run(lab: Lab, container: str, address: str) -> list[str | Path]:
    name = container.removeprefix(f"muster-{lab.name}-")
    group = hosts_group()
    # podman's other manager, systemd, has names of its own for groups.
    counted = (["--cgroup-manager", "cgroupfs"], ["--cgroup-parent", group]) if group else ([], [])
    return [
        "podman", *(["--runtime", "runc"] if cgroup_v1() else []), *counted[0], "run", "--detach", *counted[1],
        "--name", container, "--hostname", name,
        "--label", f"muster.lab={lab.name}", "--network", _network(lab, lab.subnet_of(address)), "--ip", address,
        "--pids-limit", "-1",
        "--ulimit", "nofile=8192:8192", "--ulimit", "nproc=4096:4096",
    ]  # fmt: skip


def _privileges(node: bool) -> list[str]:
    """Mounting needs SYS_ADMIN (boot id, local SSD); a host with a kubelet needs all but the clock."""
    version = ["--env", f"LAB_CGROUP_V1={int(node and cgroup_v1())}"]
    if not node:
        return [
            *version,
            "--cap-add",
            "SYS_ADMIN,SYS_PTRACE,SYS_CHROOT,AUDIT_WRITE,NET_ADMIN,NET_RAW",
            "--security-opt",
            "unmask=ALL",
        ]
    return [
        *version, "--cgroupns=private", "--cap-add", "ALL", "--cap-drop", "SYS_TIME", "--security-opt", "unmask=ALL",
        "--device-cgroup-rule", "a *:* rwm",
    ]  # fmt: skip


def _devices(host: Host, directory: Path) -> list[str | Path]:
    options: list[str | Path] = [f"--volume={folder}:{folder}:ro" for folder in host.folders]
    if host.disk_id:
        options += ["--device", f"{_loop_device(directory / 'disk.img')}:/dev/disk/by-id/{host.disk_id}"]
    if host.node:
        for name in ("containerd", "kubelet"):
            (directory / name).mkdir(exist_ok=True)
            options += ["--volume", f"{directory / name}:/var/lib/{name}"]
        (directory / "kmsg").touch()
        options += ["--volume", f"{directory / 'kmsg'}:/dev/kmsg"]
    return options


def _mount_overlay(directory: Path, rootfs: Path) -> Path:
    merged = directory / "merged"
    for part in ("upper", "work", "merged"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(merged):
        layers = f"lowerdir={rootfs},upperdir={directory / 'upper'},workdir={directory / 'work'}"
        run(["mount", "-t", "overlay", "overlay", "-o", layers, merged])
    return merged


def _prepare_files(lab: Lab, host: Host, merged: Path, directory: Path) -> None:
    entry = merged / "usr/local/sbin/lab-entry"
    shutil.copyfile(REPOSITORY / "tests/lab/entry.sh", entry)
    entry.chmod(0o755)
    ssh = merged / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(lab.state / "ssh/id_ed25519.pub", ssh / "authorized_keys")
    if host.nvidia is not None:
        gpus.install_machine(merged, host.nvidia, _repository(lab), lab.mirror_address)
    if host.gpu_scenario:
        gpus.install_scenario(merged, host.name, host.gpu_scenario)


def _start_mirror(lab: Lab, rootfs: Path) -> None:
    """The lab's mirror: what the cache has, over HTTP, as a fleet would have it on a server of its own.

    /current has the binaries of Kubernetes, /wheelhouse what hosts install gpu-burnin from, /nvidia the stand-in of
    NVIDIA's repository in a lab that has use for it.
    """
    container = _container(lab, "mirror")
    binaries, wheelhouse = cache_dir() / "bin", cache_dir() / "wheelhouse"
    for folder in (binaries, wheelhouse):
        folder.mkdir(parents=True, exist_ok=True)
    if _running(container):
        return
    if succeeds(["podman", "container", "exists", container]):
        run(["podman", "start", container])
        return
    merged = _mount_overlay(lab.state / "hosts" / "mirror", rootfs)
    volumes = [f"--volume={binaries}:/srv/bin:ro", f"--volume={wheelhouse}:/srv/wheelhouse:ro"]
    if _repository(lab).exists():
        volumes.append(f"--volume={_repository(lab).resolve()}:/srv/nvidia:ro")
    site = merged / "srv/mirror"
    site.mkdir(parents=True)
    (site / "current").symlink_to("../bin/current")
    (site / "wheelhouse").symlink_to("../wheelhouse")
    (site / "nvidia").symlink_to("../nvidia")
    run([*_podman_run(lab, container, lab.mirror_address), *volumes, "--rootfs", merged,
         "python3", "-m", "http.server", "--directory", "/srv/mirror", "80"])  # fmt: skip


def _repository(lab: Lab) -> Path:
    """Where a lab finds its stand-in of NVIDIA's repository, and inventories its keys."""
    return lab.state / "nvidia"


def _loop_device(image: Path) -> str:
    if not image.exists():
        with image.open("wb") as disk:
            disk.truncate(DISK_SIZE_BYTES)
    present = run(["losetup", "--associated", image, "--noheadings", "--output", "NAME"]).strip()
    return present or run(["losetup", "--find", "--show", image]).strip()


def _release_disk(image: Path) -> None:
    if image.exists():
        for device in run(["losetup", "--associated", image, "--noheadings", "--output", "NAME"]).split():
            run(["losetup", "--detach", device])


def _ensure_key(lab: Lab) -> None:
    key = lab.state / "ssh/id_ed25519"
    if not key.exists():
        key.parent.mkdir(mode=0o700, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"muster-{lab.name}", "-f", key])


def _wait_for_ssh(name: str, address: str) -> None:
    deadline = time.monotonic() + SSH_DEADLINE_S
    while True:
        try:
            with socket.create_connection((address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise LabError(
                f"host {name} ({address}) gave no SSH banner within {SSH_DEADLINE_S} s: see its `podman logs`"
            )
        time.sleep(0.1)


def cgroup_v1() -> bool:
    """Whether this machine has control groups of the first version."""
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()
