"""Signing evidence with the host's key, its files, and what keeps a run here from leaving any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_burnin.api.evidence import (
    NAMESPACE,
    EvidenceError,
    Statement,
    encode_annotation,
    public_key,
    ssh_keygen,
    strict_object,
)
from gpu_burnin.api.run_files import EVIDENCE, HARDWARE, SIGNATURE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.config import Config
from gpu_burnin.system import hardware_identity
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.files import parse_json, read_bytes, read_text, write_atomic
from gpu_burnin.system.host import Host
from gpu_burnin.system.own_name import host_name
from gpu_burnin.types import JSON, Notice

CODE = "NO_EVIDENCE"
_KEY_ADVICE = {"No such file or directory": "make it with `ssh-keygen -A`", "Permission denied": "run as root"}
NO_HISTORY = "XIDs since boot cannot be read from a kernel log"


def sign(data: bytes, host_key: Path, namespace: str = NAMESPACE) -> str:
    """An armored SSH signature of `data` by the private key `host_key`; raises GpuBurninError."""
    done = ssh_keygen(["-Y", "sign", "-q", "-n", namespace, "-f", str(host_key)], data)
    if done.returncode != 0 or not done.stdout:
        detail = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GpuBurninError(
            f"{host_name()}: cannot sign with the host key {host_key} "
            f"({detail[-1] if detail else 'no reason given'}); run as root, or set host_key in the configuration"
        )
    return done.stdout.decode("ascii")


def own_public_key(host_key: Path) -> str:
    """The public half of the host's private key, from the private file itself."""
    done = ssh_keygen(["-y", "-P", "", "-f", str(host_key)], b"")
    if done.returncode != 0:
        # ssh-keygen's own words behind the last colon: no such file, permission denied, a passphrase.
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition(": ")[2]
        advice = _KEY_ADVICE.get(reason, "make one without a passphrase")
        raise GpuBurninError(
            f"{host_name()}: cannot read the host key {host_key} ({reason}): {advice}, or set host_key in "
            "the configuration"
        )
    return public_key(done.stdout.decode("utf-8", "replace"))


def write_evidence(directory: Path, statement: Statement, hardware: Mapping[str, JSON], host_key: Path) -> None:
    """Sign, place hardware.json and evidence.json.sig, then evidence.json: no statement without what it needs."""
    data = statement.canonical()
    signature = sign(data, host_key)
    write_atomic(directory / HARDWARE, canonical_json(dict(hardware)))
    write_atomic(directory / SIGNATURE, signature.encode("ascii"))
    write_atomic(directory / EVIDENCE, data)


def annotation_of(directory: Path) -> str:
    """The annotation made of the evidence files in a run's directory; raises EvidenceError."""
    try:
        statement = read_bytes(directory / EVIDENCE, follow=False)
        signature = read_text(directory / SIGNATURE, follow=False)
        hardware = parse_json(read_bytes(directory / HARDWARE, follow=False), strict_object)
        return encode_annotation(statement, signature, hardware_identity.checked(hardware))
    except (OSError, ValueError) as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"{directory}: cannot read the evidence ({error})") from error


def obstacles(config: Config, host: Host) -> tuple[str, ...]:
    """What keeps this host from signing, each with its remedy; none where it can."""
    found = []
    if not host.machine_id:
        found.append("/etc/machine-id holds no machine id (make one with `systemd-machine-id-setup`)")
    if not host.boot_id:
        found.append("/proc gives no boot id (mount /proc)")
    try:
        own_public_key(config.host_key)
    except GpuBurninError as error:
        found.append(str(error).removeprefix(f"{host_name()}: "))
    return tuple(found)


def refuse_unsigned(config: Config, found: tuple[str, ...], *, simulated: bool) -> None:
    """Raise GpuBurninError (exit 2) for obstacles where the configuration asks for evidence of such a run.

    Of a simulated run it does so in a lab alone (allow_simulated): elsewhere no gate opens by one, signed or not.
    """
    if found and config.require_evidence and (config.allow_simulated or not simulated):
        raise GpuBurninError(
            f"{host_name()}: this run could not be signed, and require_evidence is set: {'; '.join(found)}; "
            "to look without consequences, give --state-dir another directory"
        )


def notice(found: tuple[str, ...]) -> Notice:
    """The warning that a run is not signed."""
    message = f"this run is not signed and opens no gate: {'; '.join(found)}"
    return Notice(CODE, "run", message, None, {"obstacles": list(found)})
