"""Virtual machines that boot from an image: a Debian of package sources with a node's files, sealed, in QEMU.

Without NVIDIA's driver and without GPUs, so that the burn-in finds none; kubelet is a stand-in. A machine reaches
nothing but this one's loopback, at 10.0.2.2. What is looked at within goes through QEMU's guest agent, no network.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.commands import WITH_US, run
from gpu_burnin.node.enrol.seal import Sealed, seal
from tests.integration.image_host import ADDRESS, BUILDER, RANGE, write_node
from tests.integration.kube import Part, Server, ended
from tests.integration.kube_files import render
from tests.lab.image import suite
from tests.lab.paths import REPOSITORY

# As QEMU's network for users calls the loopback of this machine.
HOST = "10.0.2.2"
# Emulated, on a busy machine.
BOOT_S = 1800.0
# It asks for an address on each network card, with cloud-init or without.
_NETWORK = "[Match]\nName=en*\n[Network]\nDHCP=yes\n"
# cloud-init of Debian fails at setting one that is not generated.
_LOCALE = "locale: false\n"
_PLACE = "/opt/gpu-burnin/current"
_NEEDED = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "xorriso": "xorriso"}
_FILES = ("user-data", "meta-data")
_DISK = "2G"
_KVM_S = 20.0
_ANSWER_S = 60.0
# A journal is read in this time even where the machine is emulated.
_COMMAND_S = 600.0
_DEAD = ("Kernel panic", "You are in emergency mode")
_TOLD = 6000
_QUESTIONS = (
    "systemctl list-jobs --no-pager; systemctl list-units --failed --no-pager --plain",
    "systemd-analyze time; uptime; free -m; df -h /",
    "systemctl status --no-pager -n 20 'muster*' 'gpu-burnin*' kubelet ssh cloud-init",
    "journalctl -b --no-pager -p warning -o short-monotonic",
    "cat /run/gpu-burnin/progress.log /var/log/cloud-init-output.log",
)
_numbers = itertools.count(1)
_PXE = """\
#!ipxe
kernel tftp://${{next-server}}/vmlinuz {words} initrd=initrd.img
initrd tftp://${{next-server}}/initrd.img
boot
"""


def missing() -> str:
    """Why it cannot run here; "" where it can."""
    if os.geteuid() != 0:
        return "the image's root is made as root: run it with sudo"
    if suite() != "bookworm":
        return "the image is a Debian 12, whose package sources this machine does not have: run it on a Debian 12"
    if wanted := [package for command, package in _NEEDED.items() if not shutil.which(command)]:
        return f"a boot in QEMU needs {', '.join(wanted)}: apt-get install --no-install-recommends {' '.join(wanted)}"
    return ""


@dataclass(frozen=True)
class Image:
    """A disk, and the kernel and initrd that are on it; `accelerator` is how QEMU runs them here."""

    disk: Path
    boot: Path
    sealed: Sealed
    accelerator: str


@dataclass
class Machine:
    """One machine with a disk of its own, copied from the image."""

    image: Image
    directory: Path
    part: Part = field(init=False)
    started: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        # 2 GiB of which a third is written.
        subprocess.run(["cp", "--sparse=always", self.image.disk, self.disk], check=True)

    @property
    def disk(self) -> Path:
        """Its own."""
        return self.directory / "disk"

    @property
    def console(self) -> str:
        """What its serial console has shown since it was switched on."""
        with suppress(FileNotFoundError):
            return (self.directory / "console.log").read_text(errors="replace")
        return ""

    @property
    def spent(self) -> str:
        """Time since its power button, and QEMU's CPU time, which other work on this machine does not change."""
        running, words = self.part.running, ["0"] * 15
        # One that has ended and was waited for has none.
        with suppress(FileNotFoundError):
            words = Path(f"/proc/{running.pid}/stat").read_text().split() if running else words
        user, system = words[13:15]
        cpu_s = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return f"{time.monotonic() - self.started:.0f} s ({cpu_s:.0f} CPU s, {self.image.accelerator})"

    @contextmanager
    def on(self, *, seed: Path | None = None, argument: str | None = None) -> Iterator[None]:
        """Switched on, with the files of a token for cloud-init on a disk of their own, or by PXE with an argument of
        the kernel, for the length of the block."""
        words = f"root=/dev/vda rw console=ttyS0 {argument or ''}".strip()
        network = "user,id=net"
        boot = ["-kernel", f"{self.image.boot}/vmlinuz", "-initrd", f"{self.image.boot}/initrd.img", "-append", words]
        if argument is not None:
            (self.image.boot / "boot.ipxe").write_text(_PXE.format(words=words))
            network, boot = f"{network},tftp={self.image.boot},bootfile=boot.ipxe", ["-boot", "n"]
        disks = ["-drive", f"file={self.disk},if=virtio,format=raw,cache=unsafe"]
        if seed is not None:
            iso = self.directory / "seed.iso"
            words_of = {"gpu-101.iso": str(iso), **{f"tokens/gpu-101/{name}": str(seed / name) for name in _FILES}}
            run([words_of.get(word, word) for word in of_page("xorriso")])
            disks += ["-drive", f"file={iso},if=virtio,format=raw,readonly=on"]
        agent = f"socket,id=agent,path={self.directory / 'agent'},server=on,wait=off"
        self.part = Part(
            [
                *(*WITH_US, "qemu-system-x86_64", *_machine(self.image.accelerator), "-m", "1536", "-smp", "2"),
                *("-nographic", "-monitor", "none", "-serial", f"file:{self.directory / 'console.log'}"),
                *("-netdev", network, "-device", "virtio-net-pci,netdev=net"),
                *("-device", "virtio-rng-pci", "-device", "virtio-serial", "-chardev", agent),
                *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
                *(*disks, *boot),
            ],
            self.directory / "qemu.log",
        )
        # Of the time before, where it was switched on already.
        with suppress(FileNotFoundError):
            (self.directory / "console.log").rename(self.directory / f"console-{next(_numbers)}.log")
        with ended(self.part):
            self.started = time.monotonic()
            self.part.start()
            try:
                yield
            except Exception:
                self._tell()
                raise

    def run(self, command: str) -> str:
        """What a command of the shell prints within, whatever it exits with.

        Raises OSError while nobody answers, and where the command does not end.
        """
        words = {"path": "/bin/sh", "arg": ["-c", command], "capture-output": True}
        end_s = time.monotonic() + _COMMAND_S
        with _Agent(self.directory / "agent") as agent:
            pid = agent.request("guest-exec", **words)["pid"]
            while not (found := agent.request("guest-exec-status", pid=pid))["exited"]:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"{command!r} does not end")
                time.sleep(0.5)
        return base64.b64decode(found.get("out-data", "")).decode(errors="replace").strip()

    def shows(self, command: str, wanted: str) -> bool:
        """Whether the output of a command has this in it; no while the machine does not answer. Raises RuntimeError."""
        self._refuse_dead()
        try:
            return wanted in self.run(command)
        except OSError:
            return False

    def is_up(self) -> bool:
        """Whether its boot has come to its end. Raises RuntimeError."""
        # "inactive" has the other word in it.
        return self.shows("systemctl is-active --quiet multi-user.target && echo up", "up")

    def on_console(self, wanted: str, times: int = 1) -> bool:
        """Whether its console has shown this, so often. Raises RuntimeError where that cannot come any more."""
        self._refuse_dead()
        return self.console.count(wanted) >= times

    def reboot(self) -> None:
        """As its operator does. Its agent may be gone before it has answered."""
        with suppress(OSError):
            self.run("systemctl --no-block reboot")

    def _refuse_dead(self) -> None:
        if self.part.running is None or self.part.running.poll() is not None:
            raise RuntimeError(f"QEMU ended: {(self.directory / 'qemu.log').read_text()[-2000:]}")
        if found := [word for word in _DEAD if word in self.console]:
            raise RuntimeError(f"the machine does not boot: {found[0]}")

    def _tell(self) -> None:
        """What there is to know of a machine with which a test failed: pytest shows it."""
        print(f"{self.directory.name} after {self.spent}; the end of its console:\n{self.console[-_TOLD:]}")
        for command in _QUESTIONS:
            try:
                print(f"$ {command}\n{self.run(command)[-_TOLD:]}")
            except (OSError, RuntimeError) as error:
                # Where it does not answer this, it does not answer the next one either.
                print(f"$ {command}\n{error or type(error).__name__}")
                return


class _Agent:
    """QEMU's guest agent: JSON, a line each way."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_S)
        self._file = self._socket.makefile("rb")
        self._path = path

    def __enter__(self) -> _Agent:
        try:
            self._socket.connect(str(self._path))
            # Behind the mark is the answer to this, whatever was said before.
            number = next(_numbers)
            self._send({"execute": "guest-sync-delimited", "arguments": {"id": number}}, mark=b"\xff")
            while (byte := self._file.read(1)) != b"\xff":
                if not byte:
                    raise ConnectionError("the agent is gone")
            if json.loads(self._file.readline())["return"] != number:
                raise ConnectionError("the agent answered somebody else")
        except (OSError, ValueError) as error:
            self.__exit__()
            raise OSError(str(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        # Both: QEMU serves one at a time, and the next one would wait for as long as the file is open.
        self._file.close()
        self._socket.close()

    def request(self, name: str, **arguments: object) -> dict[str, Any]:
        """One command. Raises OSError."""
        self._send({"execute": name, "arguments": arguments})
        answer = json.loads(self._file.readline() or b"{}")
        if "return" not in answer:
            raise ConnectionError(f"{name}: {answer}")
        found: dict[str, Any] = answer["return"]
        return found

    def _send(self, command: object, mark: bytes = b"") -> None:
        self._socket.sendall(mark + json.dumps(command).encode() + b"\n")


@contextmanager
def image(server: Server, directory: Path) -> Iterator[Image]:
    """Made by the recipe of the page, of the machine that it says; the files are removed at the end."""
    directory.mkdir()
    for name in ("upper", "work", "root", "boot"):
        (directory / name).mkdir()
    root = directory / "root"
    layers = f"lowerdir={_debian()},upperdir={directory / 'upper'},workdir={directory / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    try:
        _install(root, directory / "wheels")
        program = {"ansible_managed": "", "__gpu_burnin_program": "/usr/local/bin/gpu-burnin"}
        boot = render("gpu_burnin", "gpu-burnin-boot.service.j2", {**program, "gpu_burnin_power_waves": "granted"})
        watch = render("gpu_burnin", "gpu-burnin-watch.service.j2", program)
        units = {"gpu-burnin-boot": boot, "gpu-burnin-watch": watch}
        more = {f"etc/systemd/system/{name}.service": text for name, text in units.items()}
        gate = render("kubelet", "10-gpu-burnin.conf.j2", program)
        more |= {"etc/systemd/system/kubelet.service.d/10-gpu-burnin.conf": gate}
        more |= {"etc/systemd/network/80-dhcp.network": _NETWORK, "etc/cloud/cloud.cfg.d/90-locale.cfg": _LOCALE}
        write_node(root, server, f"https://{HOST}:{server.port}", f"exec {_PLACE}/bin/python", more)
        sealed = seal(root, BUILDER, ADDRESS, RANGE)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(next((root / "boot").glob(f"{name}-*")), directory / "boot" / name)
        disk = directory / "disk"
        run(["mke2fs", "-q", "-t", "ext4", "-d", root, disk, _DISK])
    finally:
        subprocess.run(["umount", root], check=True)
    try:
        yield Image(disk, directory / "boot", sealed, _accelerator(directory / "boot/vmlinuz"))
    finally:
        shutil.rmtree(directory)


def of_page(program: str) -> list[str]:
    """The words of the one command with this program on the page."""
    page = REPOSITORY / "docs/operations/machine-image.md"
    [line] = [line for line in page.read_text().splitlines() if line.strip().startswith(f"{program} ")]
    return shlex.split(line)


def _debian() -> Path:
    """The root of a Debian, from the cache, which has it after a minute or two; with QEMU's agent, for the test."""
    *words, root = of_page("mmdebstrap")
    words = [f"{word},qemu-guest-agent" if word.startswith("--include=") else word for word in words]
    place = cache_dir() / "machine" / hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    building = place.with_suffix(".building")
    assert root == "ROOT"
    with locked(cache_dir() / "machine.lock"):
        if not place.exists():
            shutil.rmtree(building, ignore_errors=True)
            building.parent.mkdir(parents=True, exist_ok=True)
            run([*WITH_US, *words, building])
            building.rename(place)
    return place


def _install(root: Path, scratch: Path) -> None:
    """gpu-burnin, of the wheels that role gpu_burnin copies to a node, for the Python of that Debian."""
    python = next(path.name for path in (root / "usr/lib").glob("python3.*"))
    words = [
        "--output",
        str(scratch),
        "--cuda",
        "none",
        "--python",
        python.removeprefix("python"),
        "--machine",
        "x86_64",
    ]
    made = json.loads(run([sys.executable, REPOSITORY / "tools/wheelhouse.py", *words]))
    shutil.unpack_archive(made["path"], scratch / "unpacked")
    run(["chroot", root, "python3", "-m", "venv", "--without-pip", _PLACE])
    for wheel in (scratch / "unpacked").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / _PLACE[1:] / f"lib/{python}/site-packages")
    shutil.rmtree(scratch)


def _machine(accelerator: str) -> Sequence[str]:
    return ["-machine", "q35", "-accel", accelerator, "-cpu", "host" if accelerator == "kvm" else "max"]


def _accelerator(kernel: Path) -> str:
    """kvm where a kernel comes to its end under it: some machines have /dev/kvm, and guests hang under it."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        words = ["qemu-system-x86_64", *_machine("kvm"), "-m", "512", "-nographic", "-no-reboot", "-nic", "none"]
        words += ["-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_KVM_S, check=False)
            if b"Kernel panic" in done.stdout:
                return "kvm"
    return "tcg,thread=multi"
