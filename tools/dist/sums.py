"""SHA256SUMS of a release, its signature by the releaser's SSH key, and their verification."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .error import DistError
from .source import run

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
NAMESPACE = "muster-release"


def sha256(path: Path) -> str:
    """Of a file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(directory: Path) -> list[Path]:
    """The files of a release, relative and sorted; without the sums and their signature."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    return sorted(path for path in found if str(path) not in (SUMS, SIGNATURE))


def write_sums(directory: Path) -> None:
    """Write SHA256SUMS over each file, as sha256sum reads it."""
    lines = [f"{sha256(directory / path)}  {path}\n" for path in files_of(directory)]
    (directory / SUMS).write_text("".join(lines))
    (directory / SIGNATURE).unlink(missing_ok=True)


def sign(directory: Path, key: Path) -> None:
    """Sign SHA256SUMS with a private SSH key, or with a public one whose private one an agent holds."""
    (directory / SIGNATURE).unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, directory / SUMS], f"sign with {key}")


def verify(directory: Path, signers: Path) -> int:
    """How many files are just what one of the `signers` (an allowed_signers file) has signed. Raises DistError."""
    try:
        text, known = (directory / SUMS).read_bytes(), signers.read_text()
    except OSError as error:
        raise DistError(f"{error.filename}: {error.strerror}; fetch it first") from None
    _verify_signature(directory, signers, known, text)
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in text.decode().splitlines())}
    found = {str(path) for path in files_of(directory)}
    for name in sorted(found - wanted.keys()):
        raise DistError(f"{directory / name}: is not in {SUMS}; remove it")
    for name in sorted(wanted.keys() - found):
        raise DistError(f"{directory / name}: is missing; fetch it again")
    for name, digest in sorted(wanted.items()):
        if sha256(directory / name) != digest:
            raise DistError(f"{directory / name}: is not the file that was signed; fetch it again")
    return len(wanted)


def _verify_signature(directory: Path, signers: Path, known: str, text: bytes) -> None:
    people = [line.split()[0] for line in known.splitlines() if line.strip() and not line.startswith("#")]
    signature = directory / SIGNATURE
    if not signature.exists():
        raise DistError(f"{signature}: is missing, so nobody vouches for these files; fetch it")
    if not any(_signed_by(person, signers, signature, text) for person in people):
        raise DistError(f"{signature}: none of {signers} has signed this {SUMS}; do not use these files")


def _signed_by(person: str, signers: Path, signature: Path, text: bytes) -> bool:
    words: Sequence[str] = ("ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", person, "-n", NAMESPACE)
    done = subprocess.run([*words, "-s", str(signature)], input=text, capture_output=True, check=False)
    return done.returncode == 0
