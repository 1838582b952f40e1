"""The key that kubelet will have, and the certificate request made with it: both here, and only the request leaves."""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_bytes, write_atomic
from gpu_burnin.system.own_name import host_name

_TIMEOUT_S = 30.0
_KEY = "kubelet.key"


@dataclass(frozen=True)
class Pair:
    """Private key and certificate request, both PEM."""

    key: bytes
    request: bytes

    @property
    def request_sha256(self) -> str:
        """What the machine signs."""
        return hashlib.sha256(self.request).hexdigest()


def pair_of(directory: Path, node: str) -> Pair:
    """The pair of this machine for a node: made once, and the same ever after. Raises GpuBurninError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, request = directory / _KEY, directory / f"{node}.request"
        if not key.exists():
            write_atomic(key, _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))
        if not request.exists():
            subject = f"/O=system:nodes/CN=system:node:{node}"
            write_atomic(request, _openssl("req", "-new", "-key", str(key), "-subj", subject))
        return Pair(read_bytes(key), read_bytes(request))
    except OSError as error:
        raise GpuBurninError(
            f"{host_name()}: cannot keep kubelet's key in {directory} ({error}); make room, and run as root"
        ) from error


def forget(directory: Path) -> None:
    """Remove the key where kubelet has it."""
    with suppress(FileNotFoundError):
        (directory / _KEY).unlink()


def _openssl(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise GpuBurninError(f"{host_name()}: openssl is missing; install it into the image") from error
    except subprocess.TimeoutExpired as error:
        raise GpuBurninError(f"{host_name()}: openssl gave no answer in {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0 or not done.stdout:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise GpuBurninError(f"{host_name()}: openssl {arguments[0]} failed ({' '.join(last) or 'no reason given'})")
    return done.stdout
