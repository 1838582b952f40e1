"""The OpenPGP keys of the stand-in repository: the right one, another one, and one that has expired."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.fleet.mirror.commands import run

# A day in the past, and how long the expired key was good: signatures of today are after its end.
_PAST = "20200101T000000"
KINDS: dict[str, tuple[str, ...]] = {"good": (), "wrong": (), "expired": ("--faked-system-time", _PAST)}


@dataclass(frozen=True)
class Key:
    """A signing key: the folder of gpg's that holds it, its fingerprint (40 hex digits), its public half as text."""

    home: Path
    fingerprint: str
    public: str


@contextmanager
def keys() -> Iterator[dict[str, Key]]:
    """One key of each kind, of use within the block alone. Raises LabError without gpg."""
    # gpg's agent has a socket in its folder, whose path may have 107 characters: never in a deep folder.
    with tempfile.TemporaryDirectory(prefix="muster-keys-", dir="/tmp") as top:
        homes = {kind: Path(top, kind) for kind in KINDS}
        try:
            yield {kind: _make(home, kind) for kind, home in homes.items()}
        finally:
            for home in homes.values():
                run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def sign(key: Key, release: Path, kind: str) -> None:
    """Write InRelease (with the signature inside) and Release.gpg (apart) beside a Release file."""
    gpg: list[str | Path] = [
        "gpg",
        "--batch",
        "--yes",
        "--quiet",
        "--homedir",
        key.home,
        *KINDS[kind],
        "--digest-algo",
        "SHA512",
    ]
    run([*gpg, "--clearsign", "--output", release.with_name("InRelease"), release])
    run([*gpg, "--armor", "--detach-sign", "--output", release.with_name("Release.gpg"), release])


def _make(home: Path, kind: str) -> Key:
    home.mkdir(mode=0o700)
    gpg: list[str | Path] = ["gpg", "--batch", "--quiet", "--homedir", home]
    expires = "1d" if kind == "expired" else "never"
    user = f"Muster lab ({kind} key) <lab@muster.dev>"
    run([*gpg, *KINDS[kind], "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", expires])
    listing = run([*gpg, "--with-colons", "--fingerprint", "--list-keys"])
    fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
    return Key(home, fingerprint, run([*gpg, "--armor", "--export", fingerprint]))
