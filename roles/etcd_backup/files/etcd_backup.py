#!/usr/bin/env python3
"""Snapshot this member's etcd when it is its turn: verified, encrypted, copied to a second place and read back there.

Every member's timer asks every 5 minutes. The turn is that of the first healthy member that is not the leader, and a
snapshot is due when the newest one at the second place is a period old; so any member may be lost, and what nobody
made is made up for at the next asking. A name without `.partial` at the second place was read back with the right hash.

A snapshot is FLEET-CLUSTER-TIME-MEMBER.tar.age: a tar of manifest.json and snapshot.db, encrypted to the recipients.
Standard library only; etcdctl, etcdutl, age and sftp or rclone do the work.
"""

from __future__ import annotations

import argparse
import datetime as dt
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from second_place import BackupError, Place, connect, last_line, run, sha256_of

MANIFEST_FORMAT = 1
ENDING = ".tar.age"
PARTIAL = ".partial"
STAMP = "%Y%m%dT%H%M%SZ"
# A follower further behind the newest entry than this is not the one to copy.
MAX_LAG_ENTRIES = 1000
# What was begun longer ago than this and never finished is removed.
STALE_S = 86400.0
_CHUNK_BYTES = 1 << 20
_SHA256_BYTES = 32
# The size of a snapshot file is a multiple of this and a SHA-256 (etcd, client/v3/snapshot).
_PAGE_BYTES = 512
# Plain snapshot, encrypted file and the copy that is read back, and some growth.
_ROOM = 3.2


@dataclass(frozen=True)
class Config:
    """The configuration file, as roles/etcd_backup writes it."""

    fleet: str
    cluster: str
    member: str
    endpoints: Mapping[str, str]
    ca: str
    cert: str
    key: str
    period_s: float
    tick_s: float
    recipients: str
    directory: str
    keep_local: int
    keep_count: int
    keep_days: float
    place: Mapping[str, Any]
    textfile: str

    @property
    def prefix(self) -> str:
        """What the names of this cluster's snapshots begin with."""
        return f"{self.fleet}-{self.cluster}-"


@dataclass(frozen=True)
class Status:
    """What one member says of itself."""

    name: str
    leader: bool
    has_leader: bool
    learner: bool
    corrupt: bool
    index: int
    db_size_bytes: int
    version: str
    cluster_id: str


def check_whole(path: Path) -> None:
    """See that a snapshot ends with the SHA-256 of all before it, as etcd writes it.

    etcdutl looks at it only when it restores, and crashes on a truncated file (3.6.16). Raises BackupError.
    """
    size = path.stat().st_size
    digest = hashlib.sha256()
    if size > _SHA256_BYTES and size % _PAGE_BYTES == _SHA256_BYTES:
        with path.open("rb") as stream:
            left = size - _SHA256_BYTES
            while left and (chunk := stream.read(min(_CHUNK_BYTES, left))):
                digest.update(chunk)
                left -= len(chunk)
            if stream.read() == digest.digest():
                return
    raise BackupError(f"the snapshot {path} is truncated or damaged: it does not end with its own SHA-256")


def read_statuses(config: Config) -> list[Status]:
    """Every member that answers."""
    argv = [*etcdctl(config), "--endpoints", ",".join(config.endpoints.values()), "--command-timeout", "5s"]
    # It ends with 1 when one member does not answer, and still prints the others.
    done = subprocess.run([*argv, "endpoint", "status", "-w", "json"], capture_output=True, text=True, check=False)
    try:
        answers = json.loads(done.stdout) or []
    except ValueError:
        raise BackupError(f"etcdctl tells no status: {last_line(done.stderr) or done.returncode}") from None
    names = {url: name for name, url in config.endpoints.items()}
    return [_status(names[answer["Endpoint"]], answer["Status"]) for answer in answers]


def _status(name: str, said: Mapping[str, Any]) -> Status:
    own = int(said["header"]["member_id"])
    errors = said.get("errors") or []
    return Status(
        name=name,
        leader=own == said.get("leader", 0),
        has_leader=bool(said.get("leader", 0)),
        learner=bool(said.get("isLearner", False)),
        corrupt=any("CORRUPT" in error and str(own) in error for error in errors),
        index=int(said.get("raftAppliedIndex", 0)),
        db_size_bytes=int(said.get("dbSize", 0)),
        version=str(said.get("version", "")),
        cluster_id=str(said["header"]["cluster_id"]),
    )


def whose_turn(statuses: Sequence[Status]) -> str:
    """The member that makes the snapshot: the first by name that follows and has caught up, else the leader.

    An alarm for space does not matter here: that is when a snapshot is wanted. Raises BackupError without any.
    """
    newest = max((status.index for status in statuses), default=0)
    well = [
        status
        for status in sorted(statuses, key=lambda status: status.name)
        if status.has_leader and not status.learner and not status.corrupt and newest - status.index <= MAX_LAG_ENTRIES
    ]
    if not well:
        raise BackupError("no member of the cluster is healthy, so there is no snapshot; see `journalctl -u etcd`")
    return next((status.name for status in well if not status.leader), well[0].name)


def etcdctl(config: Config) -> list[str]:
    """The client with its certificate."""
    return ["etcdctl", "--cacert", config.ca, "--cert", config.cert, "--key", config.key]


def taken_at(name: str, config: Config) -> float | None:
    """When a snapshot of this cluster was taken, by its name; None for the name of anything else."""
    found = re.fullmatch(
        re.escape(config.prefix) + r"(\d{8}T\d{6}Z)-.+" + re.escape(ENDING) + rf"(?:{re.escape(PARTIAL)})?", name
    )
    if not found:
        return None
    try:
        return dt.datetime.strptime(found[1], STAMP).replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None


def whole(names: Sequence[str], config: Config) -> list[str]:
    """The finished snapshots of this cluster, newest first."""
    ours = [name for name in names if not name.endswith(PARTIAL) and taken_at(name, config) is not None]
    return sorted(ours, key=lambda name: taken_at(name, config) or 0.0, reverse=True)


def is_due(names: Sequence[str], config: Config, now_s: float) -> bool:
    """Whether the newest snapshot at the second place is a period old, half an asking early."""
    times = [taken_at(name, config) or 0.0 for name in whole(names, config)]
    # A name from the future, of a member whose clock was wrong, must not end all snapshots until then.
    newest = max((time_s for time_s in times if time_s <= now_s + config.tick_s), default=0.0)
    return now_s - newest >= config.period_s - config.tick_s / 2


def expired(names: Sequence[str], config: Config, now_s: float, keep: int, verified: str) -> list[str]:
    """What goes: beyond `keep`, older than `keep_days` (0: no limit), or never finished; but never `verified`."""
    ours = whole(names, config)
    too_many = ours[keep:] if keep else []
    too_old = [n for n in ours if config.keep_days and now_s - (taken_at(n, config) or 0.0) > config.keep_days * 86400]
    unfinished = [n for n in names if n.endswith(PARTIAL) and now_s - (taken_at(n, config) or now_s) > STALE_S]
    return [name for name in names if name in {*too_many, *too_old, *unfinished} and name != verified]


def make(config: Config, place: Place, status: Status, now_s: float) -> tuple[Path, dict[str, Any]]:
    """The encrypted file in the directory, and its manifest. Raises BackupError."""
    directory = Path(config.directory)
    clear(directory)
    needed = int(_ROOM * status.db_size_bytes)
    if (free := shutil.disk_usage(directory).free) < needed:
        raise BackupError(f"{directory} has {free >> 20} MiB free and a snapshot needs {needed >> 20}; make room there")
    stamp = dt.datetime.fromtimestamp(now_s, dt.UTC)
    name = f"{config.prefix}{stamp.strftime(STAMP)}-{config.member}{ENDING}"
    plain, partial = directory / "snapshot.db", directory / (name + PARTIAL)
    try:
        save = [*etcdctl(config), "--endpoints", config.endpoints[config.member], "snapshot", "save", str(plain)]
        run(save, f"{config.member} gives no snapshot")
        check_whole(plain)
        told = json.loads(run(["etcdutl", "snapshot", "status", str(plain), "-w", "json"], f"{plain} is damaged"))
        manifest = {
            "format": MANIFEST_FORMAT, "fleet": config.fleet, "cluster": config.cluster, "member": config.member,
            "taken_at": stamp.strftime("%Y-%m-%dT%H:%M:%SZ"), "cluster_id": status.cluster_id,
            "etcd_version": status.version, "revision": told["revision"], "keys": told["totalKey"],
            "hash": told["hash"], "size_bytes": plain.stat().st_size, "sha256": sha256_of(plain),
        }  # fmt: skip
        encrypt(config.recipients, manifest, plain, partial)
        plain.unlink()
        place.put(partial, name + PARTIAL)
        if (there := place.sha256(name + PARTIAL)) != (here := sha256_of(partial)):
            raise BackupError(
                f"the second place gives {name} back with the SHA-256 {there}, not {here}; look at its disk"
            )
        place.rename(name + PARTIAL, name)
        partial.rename(directory / name)
        flush(directory)
    finally:
        clear(directory)
    return directory / name, manifest


def clear(directory: Path) -> None:
    """Remove what a failed or killed run has left; only the holder of the lock calls it."""
    for left in (*directory.glob("snapshot.db*"), *directory.glob(f"*{PARTIAL}"), *directory.glob("*.read-back")):
        left.unlink(missing_ok=True)


def encrypt(recipients: str, manifest: Mapping[str, Any], plain: Path, target: Path) -> None:
    """Write the tar of manifest and snapshot, encrypted, and flush it to the disk. Raises BackupError."""
    text = json.dumps(manifest, indent=1).encode()
    entry = tarfile.TarInfo("manifest.json")
    entry.size = len(text)
    with target.open("wb") as out:
        os.fchmod(out.fileno(), 0o600)
        with subprocess.Popen(
            ["age", "-R", recipients], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE
        ) as age:
            assert age.stdin is not None and age.stderr is not None
            try:
                with tarfile.open(fileobj=age.stdin, mode="w|") as archive:
                    archive.addfile(entry, io.BytesIO(text))
                    archive.add(plain, "snapshot.db")
                age.stdin.close()
            except BrokenPipeError:
                pass  # Its own words say why.
            said = age.stderr.read().decode(errors="replace")
        if age.returncode != 0:
            raise BackupError(f"the snapshot is not encrypted: {last_line(said) or age.returncode}; see {recipients}")
        os.fsync(out.fileno())


def flush(directory: Path) -> None:
    """Make names in a directory survive a loss of power."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str, mode: int) -> None:
    """Replace a file at once."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with partial.open("w") as out:
        out.write(text)
        out.flush()
        os.fchmod(out.fileno(), mode)
        os.fsync(out.fileno())
    partial.rename(path)


def metrics(config: Config, last: Mapping[str, Any], failed: bool) -> str:
    """The text for node_exporter; the first two only where this member has made a snapshot."""
    label = f'{{cluster="{config.cluster}"}}'
    rows: list[tuple[str, str, float]] = []
    if last:
        rows = [
            (
                "last_success_timestamp_seconds",
                "When this member's last verified snapshot was taken.",
                last["taken_at_s"],
            ),
            ("size_bytes", "Size of that snapshot.", last["size_bytes"]),
        ]
    rows += [
        ("period_seconds", "How often a snapshot is wanted.", config.period_s),
        ("failed", "1 when this member's last attempt failed.", float(failed)),
    ]
    return "".join(
        f"# HELP muster_etcd_backup_{name} {text}\n# TYPE muster_etcd_backup_{name} gauge\n"
        f"muster_etcd_backup_{name}{label} {value:.0f}\n"
        for name, text, value in rows
    )


def write_metrics(config: Config, last: Mapping[str, Any], failed: bool) -> None:
    """Write the metrics where node_exporter reads them, if it is there."""
    path = Path(config.textfile)
    if path.parent.is_dir():
        write_whole(path, metrics(config, last, failed), 0o644)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One run at a time on this host; a second waits."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def back_up(config: Config, place: Place, now: bool, now_s: float) -> str:
    """Make a snapshot if it is this member's turn and due, or asked for `now`. Returns what was done, in words.

    Raises BackupError.
    """
    statuses = read_statuses(config)
    turn = whose_turn(statuses)
    if turn != config.member:
        return f"{turn} makes the snapshots of {config.cluster}"
    names = place.names()
    if not now and not is_due(names, config, now_s):
        return f"the newest snapshot of {config.cluster} is younger than {config.period_s:g} s"
    own = next(status for status in statuses if status.name == config.member)
    path, manifest = make(config, place, own, now_s)
    last = {"taken_at_s": int(now_s), "size_bytes": manifest["size_bytes"], "name": path.name}
    write_whole(Path(config.directory) / "last.json", json.dumps(last), 0o600)
    if gone := expired([*names, path.name], config, now_s, config.keep_count, path.name):
        place.delete(gone)
    here = [entry.name for entry in Path(config.directory).iterdir()]
    for name in expired(here, config, now_s, config.keep_local, path.name):
        (Path(config.directory) / name).unlink()
    return f"made {path.name}: revision {manifest['revision']}, {manifest['keys']} keys, {manifest['size_bytes']} bytes"


def read_last(config: Config) -> dict[str, Any]:
    """The last snapshot that this member made; empty without any."""
    try:
        last: dict[str, Any] = json.loads((Path(config.directory) / "last.json").read_text())
    except (OSError, ValueError):
        return {}
    return last


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 done or not this member's turn, 1 failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="/etc/muster-etcd-backup/config.json", help="the configuration file")
    parser.add_argument("--now", action="store_true", help="make one even when none is due")
    given = parser.parse_args(argv)
    config = Config(**json.loads(Path(given.config).read_text()))
    directory = Path(config.directory)
    place = connect(config.place, directory)
    with alone(directory):
        try:
            said = back_up(config, place, given.now, time.time())
        except (BackupError, OSError) as error:
            write_metrics(config, read_last(config), failed=True)
            print(f"{config.member}: no snapshot of {config.cluster}: {error}", file=sys.stderr)
            return 1
        write_metrics(config, read_last(config), failed=False)
    print(f"{config.member}: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
