"""The node's part in a pod: no systemd, no SSH host key of its own, a driver that stands elsewhere.

What signs is a key that the agent makes in its state directory, on the host, or the host's own SSH key where the pod
mounts it. It tells the cluster of it in its NodeEnrolment; a person decides whether the machine with this key is the
node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from gpu_burnin.api.attached import ENROLLED_BY_AGENT
from gpu_burnin.api.enrolment import SIGNED_FOR, Claim, EnrolmentSpec, enrolment_document
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.api import ApiRefused, NodeApi, NotYet
from gpu_burnin.node.signing import own_public_key, sign
from gpu_burnin.node.store import Store
from gpu_burnin.node.unit import PROGRESS, RUN_DIR, Started, UnitState
from gpu_burnin.node.watch.system import Say, System
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.files import read_text, write_atomic
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.nvml_library import LIBRARY
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT

DRIVER, LINKS = Path("/driver"), "driver"
DRIVER_LOOK_S = 10.0
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64")
_NAMES = ("libcuda.so*", "libnvidia-*.so*", "libnvcuvid.so*")
_KEYGEN_TIMEOUT_S = 30.0
_LOOK_S = 60.0
_FIRST_LOOK_S = 5.0
# A pod that is asked to end has 30 s. A run that is asked ends its workers and leaves a report within these.
_END_S, _KILL_S = 20.0, 5.0
# There is no certificate request: kubelet has its certificate by other ways.
_NO_REQUEST = "0" * 64


def prepare(config: Config, node: str, run_dir: Path = RUN_DIR, driver: Path = DRIVER) -> Config:
    """The configuration of this node in its pod, with key and driver in place. Raises GpuBurninError."""
    config = replace(config, node_name=node)
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        link_driver(driver, run_dir / LINKS)
        if config.host_key.is_relative_to(config.state_dir):
            make_key(config.host_key)
    except OSError as error:
        raise GpuBurninError(
            f"{node}: {error.filename} cannot be made ({error.strerror}); mount it writable"
        ) from error
    return config


def make_key(path: Path) -> None:
    """The key that signs for this machine, once."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In its place only when it is whole.
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "muster", "-f", str(new)]
    try:
        subprocess.run(command, check=True, timeout=_KEYGEN_TIMEOUT_S, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise GpuBurninError(f"{host_name()}: ssh-keygen makes no key ({error}); is it in the image?") from error
    new.with_name(f"{new.name}.pub").unlink()
    new.rename(path)


def link_driver(root: Path, into: Path) -> int:
    """Name the driver's libraries of the host in one folder, without any other library of the host; how many.

    `into` has to be there when a process starts that is to find them: glibc forgets a folder that was not.
    """
    into.mkdir(mode=0o755, parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for folder in _LIBRARIES:
        for pattern in _NAMES:
            for path in sorted((root / folder).glob(pattern)):
                found.setdefault(path.name, path)
    for name, path in found.items():
        link = into / name
        # A link of the host leads to the host's own root; what it names stands in the same folder.
        target = path.parent / path.readlink().name if path.is_symlink() else path
        if not (link.is_symlink() and link.readlink() == target):
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            link.symlink_to(target)
    for old in into.iterdir():
        if old.is_symlink() and old.name not in found:
            old.unlink()
    return len(found)


def nvml_file(into: Path = RUN_DIR / LINKS) -> tuple[int, int] | None:
    """Which file the driver's NVML is, None for none."""
    try:
        found = (into / LIBRARY).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def keep_driver(
    node: str,
    say: Say,
    stop: threading.Event,
    wait: Callable[[float], object] | None = None,
    root: Path = DRIVER,
    into: Path = RUN_DIR / LINKS,
) -> None:
    """Link the driver when it comes, and another one after it, until `stop` is set: one of a container comes late."""
    before, pause = -1, wait or stop.wait
    while not stop.is_set():
        with contextlib.suppress(OSError):  # a driver that is just being changed: the next look finds it whole
            count = link_driver(root, into)
            if before < 0 or (count == 0) != (before == 0):
                said = f"{count} libraries of the driver are" if count else "no library of the driver is yet"
                say(f"{node}: {said} below {root}")
            before = count
        pause(DRIVER_LOOK_S)


class Contained(System):
    """Burn-ins are children of the agent: they end with its pod, and the next agent serves their request once more."""

    ends_with_agent = True

    def __init__(self, config: Config, base: Path | None, run_dir: Path = RUN_DIR, program: Sequence[str] = ()) -> None:
        """`base` is the configuration file of all nodes."""
        self._config, self._base, self._run_dir = config, base, run_dir
        self._program = program or (sys.executable, "-P", "-m", "gpu_burnin")
        self._child: subprocess.Popen[bytes] | None = None
        self._invocation = ""

    def burnin(self) -> UnitState:
        """See System."""
        if self._child is None:
            # One of an agent before this one, which was killed alone.
            return UnitState(running=Store(self._config.state_dir).held())
        code = self._child.poll()
        failed = "" if code in (None, 0, 1, 3) else f"exit code {code}"
        return UnitState(code is None, failed, self._invocation)

    def hindered(self) -> str:
        """The driver comes with a container of its own, or never: no verdict is made of its lack."""
        links = self._run_dir / LINKS
        if links.exists() and not any(links.iterdir()) and ENVIRONMENT not in os.environ:
            return f"{self._config.node_name}: no library of the driver is yet below {DRIVER}"
        return ""

    def start(self, arguments: Sequence[str]) -> Started:
        """See System."""
        if self.burnin().running:
            return Started(False, self._invocation)
        if why := self.hindered():
            raise GpuBurninError(why)
        path = self._run_dir / "config.yaml"
        try:
            write_atomic(path, own_config(self._base, self._config).encode())
            with (self._run_dir / REPORT).open("wb") as report, (self._run_dir / PROGRESS).open("wb") as progress:
                command = [*self._program, "run", "--json", "--config", str(path), *arguments]
                self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=report, stderr=progress)
        except OSError as error:
            raise GpuBurninError(f"{self._config.node_name}: the burn-in does not start ({error})") from error
        self._invocation = uuid.uuid4().hex
        return Started(True, self._invocation)

    def end(self, end_s: float = _END_S, kill_s: float = _KILL_S) -> bool:
        """Have a burn-in end with this agent, with the report of one that was interrupted; whether there was one."""
        child = self._child
        if child is None or child.poll() is not None:
            return False
        for number, wait_s in ((signal.SIGTERM, end_s), (signal.SIGKILL, kill_s)):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(wait_s)
                break
        return True

    def end_part(self) -> bool:
        """An agent in a pod takes no part in tests with other nodes, and has no systemd to ask."""
        return True

    def kubelet_runs(self) -> bool:
        """Nobody here can see or restart it."""
        return False

    def restart_kubelet(self) -> bool:
        """See kubelet_runs()."""
        return False


def own_config(base: Path | None, config: Config) -> str:
    """The configuration file of all nodes, with the name of this one, and where its state is."""
    document = yaml.safe_load(read_text(base)) if base is not None else None
    own = {"node_name": config.node_name, "state_dir": str(config.state_dir), "host_key": str(config.host_key)}
    return yaml.safe_dump({**(document or {}), **own})


def claim_of_here(config: Config, root: Path = Path("/")) -> Claim:
    """Who this machine is. Raises GpuBurninError."""
    here = host.read_host(root)
    return Claim(
        config.node_name,
        ENROLLED_BY_AGENT,
        own_public_key(config.host_key),
        here.machine_id,
        here.boot_id,
        "",
        _NO_REQUEST,
    )


def enrol(config: Config, api: NodeApi, root: Path = Path("/")) -> str:
    """Say who this machine is, unless it stands there; what to tell people. Raises NotYet, ApiRefused, GpuBurninError.

    A claim of a boot before stays: it says the same of key and machine.
    """
    claim, found = claim_of_here(config, root), api.enrolment()
    spec = (found or {}).get("spec") or {}
    decided = spec.get("decision") is not None
    if same_machine(str(spec.get("claim") or ""), claim):
        state = "its key was decided on" if decided else "its key waits for approval"
        return f"{config.node_name}: {state}: {claim.fingerprint} (muster attach approve {config.node_name})"
    if decided:
        return (
            f"{config.node_name}: another key was decided on than this machine has ({claim.fingerprint}): was its "
            f"state directory lost? muster attach forget {config.node_name}"
        )
    signature = sign(claim.canonical(), config.host_key, SIGNED_FOR)
    made = EnrolmentSpec(ENROLLED_BY_AGENT, "", claim.canonical().decode("ascii"), signature)
    api.enrol(enrolment_document(config.node_name, made, config.publish.names), again=found is not None)
    return f"{config.node_name}: says who it is; its key is {claim.fingerprint}"


def same_machine(text: str, claim: Claim) -> bool:
    """Whether a claim that stands there is of this key and machine. Pure."""
    wanted = (f'"host_key":"{claim.host_key}"', f'"machine_id":"{claim.machine_id}"')
    return all(part in text for part in wanted)


def keep_enrolled(
    config: Config, say: Say, stop: threading.Event, wait: Callable[[float], object] | None = None
) -> None:
    """Enrol, and again when the claim was forgotten, until `stop` is set."""
    api, told, pause = NodeApi(config), "", wait or stop.wait
    next_s = _FIRST_LOOK_S
    while not stop.is_set():
        try:
            words, next_s = enrol(config, api), _LOOK_S
        except (NotYet, ApiRefused, GpuBurninError) as error:
            words = f"{config.node_name}: cannot say who it is: {error}"
        if words != told:
            say(words)
            told = words
        pause(next_s)
