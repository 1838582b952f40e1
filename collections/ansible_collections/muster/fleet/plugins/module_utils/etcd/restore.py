"""Restoring etcd: a snapshot opened and verified, a member's new data beside the old, and the exchange of the two.

Standard library only: the part for members runs on the hosts. The format is that of roles/etcd_backup.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

MANIFEST_FORMAT = 1
_CHUNK_BYTES = 1 << 20
# The restored copy of the database, its indexes and the first log files.
_ROOM = 1.3


@dataclass(frozen=True)
class Wanted:
    """What a snapshot must be of, and how old it may be."""

    fleet: str
    cluster: str
    max_age_s: float


def open_snapshot(
    source: Path, identity: Path | None, wanted: Wanted, target: Path | None, now_s: float
) -> dict[str, Any]:
    """The manifest of a whole, fitting snapshot; its database is written to `target`, when one is given.

    Raises FleetError, and leaves no target, for anything else.
    """
    partial = target.with_name(f"{target.name}.partial") if target else None
    try:
        with _plain(source, identity) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            manifest = _manifest(archive, source)
            _fits(manifest, wanted, source, now_s)
            _database(archive, manifest, source, partial)
            # To the end: only there does age know that nothing is missing.
            while stream.read(_CHUNK_BYTES):
                pass
    except tarfile.TarError as error:
        _remove(partial)
        raise FleetError(f"{source} is truncated or no snapshot of Muster ({error}); take another one") from None
    except FleetError:
        _remove(partial)
        raise
    if target and partial:
        partial.rename(target)
    return manifest


def _remove(path: Path | None) -> None:
    if path:
        path.unlink(missing_ok=True)


@contextmanager
def _plain(source: Path, identity: Path | None) -> Iterator[IO[bytes]]:
    """The tar as a stream: decrypted when the name ends with .age. Raises FleetError."""
    if not source.is_file():
        raise FleetError(f"{source} is not there; give the path of a snapshot that you fetched from the second place")
    if source.suffix != ".age":
        with source.open("rb") as stream:
            yield stream
        return
    if identity is None:
        raise FleetError(
            f"{source} is encrypted: give -e identity=PATH, or decrypt it where the key is and give the .tar"
        )
    argv = ["age", "--decrypt", "-i", str(identity), str(source)]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False)
    except OSError as error:
        raise FleetError(f"age cannot be run ({error.strerror}); install the package age on the controller") from None
    with process as age:
        assert age.stdout is not None and age.stderr is not None
        try:
            yield age.stdout
        except (tarfile.TarError, FleetError):
            age.stdout.close()
            said = age.stderr.read().decode(errors="replace")
            # SIGPIPE (-13) is ours: it was still writing, so what it wrote is what is wrong.
            if age.wait() not in (0, -13) and said:
                raise _not_opened(source, said) from None
            raise
        said = age.stderr.read().decode(errors="replace")
    if age.returncode != 0:
        raise _not_opened(source, said)


def _not_opened(source: Path, said: str) -> FleetError:
    lines = (
        [line for line in said.splitlines() if line.startswith("age: error")]
        or said.splitlines()
        or ["no reason given"]
    )
    return FleetError(f"{source} cannot be decrypted, or is truncated ({lines[0].removeprefix('age: error: ')})")


def _manifest(archive: tarfile.TarFile, source: Path) -> dict[str, Any]:
    entry = archive.next()
    stream = archive.extractfile(entry) if entry and entry.name == "manifest.json" else None
    if stream is None:
        raise FleetError(f"{source} does not begin with a manifest; it is no snapshot of Muster")
    try:
        manifest: dict[str, Any] = json.load(stream)
    except ValueError:
        raise FleetError(f"{source} has a damaged manifest; take another snapshot") from None
    if missing := {"fleet", "cluster", "taken_at", "sha256"} - manifest.keys():
        raise FleetError(f"{source} has a manifest without {', '.join(sorted(missing))}; take another snapshot")
    if manifest.get("format") != MANIFEST_FORMAT:
        raise FleetError(f"{source} has the format {manifest.get('format')}; this version reads {MANIFEST_FORMAT}")
    return manifest


def _fits(manifest: dict[str, Any], wanted: Wanted, source: Path, now_s: float) -> None:
    """Refuse what is of another cluster or too old. Raises FleetError."""
    of = (manifest["fleet"], manifest["cluster"])
    if of != (wanted.fleet, wanted.cluster):
        raise FleetError(
            f"{source} is of the cluster {'-'.join(of)}, not of {wanted.fleet}-{wanted.cluster}; take one of that"
        )
    age_s = now_s - dt.datetime.fromisoformat(manifest["taken_at"]).timestamp()
    if age_s > wanted.max_age_s:
        raise FleetError(
            f"{source} was taken at {manifest['taken_at']}, {age_s / 3600:.0f} h ago, and {wanted.max_age_s / 3600:g} "
            "h are allowed; take a newer one, or allow it with -e max_age_hours=HOURS"
        )


def _database(archive: tarfile.TarFile, manifest: dict[str, Any], source: Path, partial: Path | None) -> None:
    """Read the database, compare its SHA-256, and write it where wanted. Raises FleetError."""
    entry = archive.next()
    stream = archive.extractfile(entry) if entry and entry.name == "snapshot.db" else None
    if stream is None:
        raise FleetError(f"{source} holds no snapshot.db; take another snapshot")
    digest = hashlib.sha256()
    with (partial or Path(os.devnull)).open("wb") as out:
        if partial:
            partial.chmod(0o600)
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        if partial:
            os.fsync(out.fileno())
    if digest.hexdigest() != manifest["sha256"]:
        raise FleetError(
            f"{source} is damaged: its database has not the SHA-256 of its manifest; take another snapshot"
        )


def operation(directory: Path, manifest: dict[str, Any], source: Path, now_s: float, *, begin: bool) -> dict[str, Any]:
    """The restore under way, or a new one, kept in the directory: a run that was killed goes on where it was.

    Raises FleetError when another snapshot's restore is not finished.
    """
    path = directory / "operation.json"
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        if known["sha256"] != manifest["sha256"]:
            raise FleetError(
                f"a restore of {known['source']}, begun at {known['begun_at']}, is not finished; run it again with "
                f"that snapshot, or give it up by removing {directory}, and on every member what it left beside the "
                f"data: the folder data.restore-{known['id']}, and data.restore-{known['id']}.db, which is not "
                "encrypted (the next restore removes both)"
            )
        return known
    begun = dt.datetime.fromtimestamp(now_s, dt.UTC)
    new = {
        "id": begun.strftime("%Y%m%dT%H%M%SZ"), "begun_at": begun.isoformat(), "source": str(source),
        "sha256": manifest["sha256"],
    }  # fmt: skip
    if begin:
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(new))
        partial.rename(path)
    return new


@dataclass(frozen=True)
class Places:
    """A member's folders in one restore. Old and new tell how far it is, whatever was killed."""

    data: Path
    id: str

    @property
    def new(self) -> Path:
        """The restored data before the exchange."""
        return self.data.with_name(f"{self.data.name}.restore-{self.id}")

    @property
    def old(self) -> Path:
        """The data of before, kept; empty when there was none."""
        return self.data.with_name(f"{self.data.name}.before-{self.id}")

    @property
    def state(self) -> str:
        """none, prepared, exchanging or done."""
        return {(False, False): "none", (False, True): "prepared", (True, True): "exchanging", (True, False): "done"}[
            self.old.exists(), self.new.exists()
        ]


def left(places: Places) -> list[Path]:
    """What other restores of this data have left beside it, which were given up: never the data of before."""
    of_one = re.compile(rf"{re.escape(places.data.name)}\.restore-(\d{{8}}T\d{{6}}Z)(\.partial|\.db)?")
    found = []
    for path in sorted(places.data.parent.glob(f"{places.data.name}.restore-*")):
        match = of_one.fullmatch(path.name)
        if match and match[1] != places.id:
            found.append(path)
    return found


def clear(places: Places) -> None:
    """Remove what `left` names."""
    for path in left(places):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass(frozen=True)
class Member:
    """What a restored member is to be."""

    name: str
    initial_cluster: str
    token: str
    peer_url: str
    bump_revision: int
    owner: str


def prepare(places: Places, snapshot: Path, sha256: str, member: Member, tool: str = "etcdutl") -> None:
    """Restore the snapshot beside the data, which etcd goes on using. Raises FleetError."""
    with snapshot.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise FleetError(f"{snapshot} has the SHA-256 {found}, not {sha256}; run the playbook again")
    needed = int(_ROOM * snapshot.stat().st_size)
    if (free := shutil.disk_usage(snapshot.parent).free) < needed:
        raise FleetError(
            f"{snapshot.parent} has {free >> 20} MiB free and the restore needs {needed >> 20}; make room there"
        )
    partial = places.new.with_name(f"{places.new.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    argv = [
        tool, "snapshot", "restore", str(snapshot), "--data-dir", str(partial), "--name", member.name,
        "--initial-cluster", member.initial_cluster, "--initial-cluster-token", member.token,
        "--initial-advertise-peer-urls", member.peer_url,
        "--bump-revision", str(member.bump_revision), "--mark-compacted",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise FleetError(
            f"etcdutl does not restore {snapshot}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    _own(partial, member.owner)
    os.sync()
    partial.rename(places.new)


def _own(folder: Path, owner: str) -> None:
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, owner, owner)
    folder.chmod(0o700)


def exchange(places: Places) -> None:
    """Put the old data aside and the new in its place; may be called again after any interruption."""
    if places.state == "prepared":
        if places.data.exists():
            places.data.rename(places.old)
        else:
            places.old.mkdir(mode=0o700)
    if places.state == "exchanging":
        # An etcd that was started in between has made itself an empty folder.
        if places.data.exists():
            places.data.rename(places.data.with_name(f"{places.data.name}.stray-{places.id}"))
        places.new.rename(places.data)
    os.sync()
