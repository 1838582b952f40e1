"""A snapshot of etcd as roles/etcd_backup makes it, without an etcd."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import tarfile
from pathlib import Path


def lab_snapshot(
    folder: Path,
    *,
    cluster: str = "main",
    age: dt.timedelta = dt.timedelta(minutes=1),
    database: bytes = b"database" * 100,
) -> Path:
    """A snapshot of the fleet `lab`, decrypted; its database is none where the test does not give one."""
    taken = dt.datetime.now(dt.UTC) - age
    manifest = {
        "format": 1, "fleet": "lab", "cluster": cluster, "taken_at": taken.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": 7, "keys": 3, "sha256": hashlib.sha256(database).hexdigest(),
    }  # fmt: skip
    path = folder / f"lab-{cluster}.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in (("manifest.json", json.dumps(manifest).encode()), ("snapshot.db", database)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
