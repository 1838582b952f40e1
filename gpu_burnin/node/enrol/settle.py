"""What makes the image's machine this node: kubelet's certificate, and its name, address and pod range in the files.

The image's files are those that the roles wrote for the machine that it was made of (seal.py). So what is the node's
own is written as the roles would write it, byte for byte.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_burnin.api.enrolment import EnrolmentError
from gpu_burnin.node.enrol.course import Enrolled
from gpu_burnin.settings.config import PublishConfig
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.files import parse_json, read_bytes, replace_symlink, write_atomic
from gpu_burnin.system.own_name import host_name

MANIFEST = "etc/muster/image.json"
# Units that need the node's name wait for this file.
DONE = "enrolled"
# Begun: the node that the files are being written for. What a cut has left half is no image any more.
_BEGUN = "becomes"
_CERTIFICATE = "kubelet-client-enrolled.pem"
SCHEMA = "muster-image/v1"


@dataclass(frozen=True)
class Manifest:
    """Name, address and pod range of the machine that the image was made of, and where they stand, from the root."""

    schema: str
    node: str
    address: str
    pod_range: str
    files: tuple[str, ...] = field(default=())


def word(value: str) -> re.Pattern[bytes]:
    """A name or address where it stands by itself: 198.18.0.9 is no part of 198.18.0.90, and gpu-1 none of gpu-1-b."""
    return re.compile(rb"(?<![A-Za-z0-9_.-])" + re.escape(value.encode()) + rb"(?![A-Za-z0-9_-]|\.[A-Za-z0-9])")


def read_manifest(root: Path = Path("/")) -> Manifest:
    """The image's. Raises EnrolmentError."""
    path = root / MANIFEST
    try:
        manifest = from_json(Manifest, parse_json(read_bytes(path)))
        if manifest.schema != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        return manifest
    except (OSError, Misfit, ValueError) as error:
        raise EnrolmentError(
            f"{host_name()}: cannot read {path} ({error}); boot a machine that `gpu-burnin seal` has sealed"
        ) from error


def settle(
    enrolled: Enrolled,
    key: bytes,
    publish: PublishConfig,
    state_dir: Path,
    root: Path = Path("/"),
    name_host: Callable[[str], None] = socket.sethostname,
) -> tuple[str, ...]:
    """Write it all; the files that were made this node's. Raises EnrolmentError. The mark of DONE is written last."""
    manifest, decision = read_manifest(root), enrolled.decision
    values = {
        manifest.node: enrolled.node,
        manifest.pod_range: decision.pod_range,
        manifest.address: decision.address,
    }
    try:
        ipaddress.ip_address(decision.address)
        ipaddress.ip_network(decision.pod_range)
    except ValueError as error:
        raise EnrolmentError(
            f"{enrolled.node}: was approved without address or pod range ({error}); run site.yml, which writes "
            "both into the ledger, and approve it again"
        ) from error
    written = []
    try:
        _begin(state_dir / _BEGUN, enrolled)
        for name in manifest.files:
            path = root / name
            before = read_bytes(path)
            after = before
            for placeholder, value in values.items():
                after = word(placeholder).sub(value.encode(), after)
            if after != before:
                write_atomic(path, after, mode=path.stat().st_mode & 0o777)
                written.append(name)
        write_atomic(root / "etc/hostname", f"{enrolled.node}\n".encode(), mode=0o644)
        name_host(enrolled.node)
        current = root / publish.client_cert.relative_to("/")
        current.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(current.with_name(_CERTIFICATE), enrolled.certificate.rstrip() + b"\n" + key)
        replace_symlink(current, _CERTIFICATE)
        write_atomic(state_dir / DONE, f"{enrolled.node}\n".encode(), mode=0o644)
    except OSError as error:
        raise EnrolmentError(
            f"{enrolled.node}: cannot become this node ({error}); mend that, and start muster-enrol.service again"
        ) from error
    return tuple(written)


def _begin(path: Path, enrolled: Enrolled) -> None:
    """Note which node the files are written for. Raises EnrolmentError where a cut has left those of another."""
    decision = enrolled.decision
    wanted = f"{enrolled.node} {decision.address} {decision.pod_range}\n".encode()
    try:
        before = read_bytes(path)
    except FileNotFoundError:
        write_atomic(path, wanted)
        return
    if before != wanted:
        raise EnrolmentError(
            f"{enrolled.node}: this machine was cut while it became {before.decode(errors='replace').strip()}, so its "
            "files are neither's: write the image to its disk anew, or let it in as that one"
        )
