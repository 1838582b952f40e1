"""Whether a report is the one its run signed."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from gpu_burnin.api import evidence
from gpu_burnin.api.run_files import EVIDENCE, SIGNATURE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system import host
from gpu_burnin.system.files import read_bytes, read_text


def refuse_changed(report: Path, data: bytes, host_key: Path | None = None) -> None:
    """Raise EvidenceError (exit 1) when the evidence beside a report file is about another, or is not the host's.

    `data` is what the file holds. Without evidence beside it there is nothing to compare it with. `host_key` is this
    host's private key: its public half (.pub) is used where it can be read and the evidence is of this machine.
    """
    directory = report.resolve().parent
    if report.name != REPORT:
        return
    try:
        signed = read_bytes(directory / EVIDENCE, follow=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise evidence.EvidenceError(
            "EVIDENCE_MALFORMED", f"{directory / EVIDENCE}: cannot be read ({error.strerror}); run as root"
        ) from error
    advice = f"do not trust it: fetch it again, or run gpu-burnin run (a copy of {REPORT} alone is shown as it is)"
    try:
        statement = evidence.parse_statement(signed)
    except evidence.EvidenceError as error:
        raise evidence.EvidenceError(error.code, f"{directory / EVIDENCE}: {error}; {advice}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != statement.report_sha256:
        raise evidence.EvidenceError(
            "EVIDENCE_REPORT",
            f"{report}: this is not the report that was signed (its SHA-256 is {found}, {EVIDENCE} says "
            f"{statement.report_sha256}); {advice}",
            statement,
        )
    key = _public_key(host_key, statement)
    if key is not None and not _holds(directory, signed, key):
        raise evidence.EvidenceError(
            "EVIDENCE_SIGNATURE",
            f"{directory / SIGNATURE}: this is not the signature of {host_key}; {advice}",
            statement,
        )


def _public_key(host_key: Path | None, statement: evidence.Statement) -> str | None:
    """The host's public key, where it is at hand and was so when the run was made."""
    if host_key is None or host.read_host().machine_id != statement.machine_id:
        return None
    with contextlib.suppress(OSError, UnicodeDecodeError, GpuBurninError):
        return evidence.public_key(read_text(host_key.with_name(f"{host_key.name}.pub")))
    return None


def _holds(directory: Path, signed: bytes, key: str) -> bool:
    try:
        signature = read_text(directory / SIGNATURE, follow=False)
    except (OSError, UnicodeDecodeError):
        return False
    try:
        return evidence.signature_holds(signed, signature, key)
    except GpuBurninError:
        return True  # without ssh-keygen nothing is known
