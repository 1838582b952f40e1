"""A real etcd of three members restored from a snapshot of its own; each snapshot that does not fit is refused."""

from __future__ import annotations

import getpass
import hashlib
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils import etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from .etcd_cluster import NO_TOOLS, Backups, Cluster, etcd_cluster, set_up, tool, tools

WANTED = etcd_restore.Wanted("lab", "main", 3600.0)
BUMP = 1_000_000_000


@dataclass
class Made:
    """A cluster with a snapshot, and one key that was written after it."""

    backups: Backups
    file: Path
    revision: int


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    if not tools():
        pytest.skip(NO_TOOLS)
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        backups = set_up(cluster, tmp_path_factory.mktemp("places") / "backups")
        done = [backups.run(name) for name in cluster.clients]
        assert [run.returncode for run in done] == [0, 0, 0], done
        for key in ("muster", "late"):
            assert cluster.ctl("etcd-1", "put", key, "after").returncode == 0
        revision = cluster.get("etcd-1", "muster")["header"]["revision"]
        yield Made(backups, backups.bucket / backups.there()[0], revision)


def opened(made: Made, source: Path, target: Path | None = None, **changes: Any) -> dict[str, Any]:
    wanted = etcd_restore.Wanted(**{**vars(WANTED), **changes})
    return etcd_restore.open_snapshot(source, made.backups.identity, wanted, target, time.time())


def resigned(made: Made, folder: Path, **changes: Any) -> Path:
    """The snapshot with another manifest, decrypted."""
    plain = folder / "plain.tar"
    subprocess.run(["age", "-d", "-i", made.backups.identity, "-o", plain, made.file], check=True)
    with tarfile.open(plain) as archive:
        archive.extractall(folder, filter="data")
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(manifest))
    again = folder / "again.tar"
    with tarfile.open(again, "w") as archive:
        archive.add(folder / "manifest.json", "manifest.json")
        archive.add(folder / "snapshot.db", "snapshot.db")
    return again


def test_what_does_not_fit_is_refused_and_nothing_is_left(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "snapshot.db"
    whole = made.file.read_bytes()
    cut = tmp_path / "cut.tar.age"
    damaged = tmp_path / "damaged.tar.age"
    damaged.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    other = tmp_path / "other"
    other.mkdir()
    for length in (100, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(FleetError, match="truncated"):
            opened(made, cut, target)
    with pytest.raises(FleetError, match="cannot be decrypted, or is truncated"):
        opened(made, damaged, target)
    with pytest.raises(FleetError, match=r"is of the cluster lab-main, not of lab-events; take one of that"):
        opened(made, made.file, target, cluster="events")
    with pytest.raises(FleetError, match=r"is of the cluster lab-main, not of prod-main"):
        opened(made, made.file, target, fleet="prod")
    with pytest.raises(FleetError, match=r"was taken at .*, 2 h ago, and 1 h are allowed"):
        etcd_restore.open_snapshot(made.file, made.backups.identity, WANTED, target, time.time() + 7300)
    with pytest.raises(FleetError, match="is not there"):
        opened(made, tmp_path / "nothing.tar.age", target)
    with pytest.raises(FleetError, match="database has not the SHA-256 of its manifest"):
        opened(made, resigned(made, other, sha256="0" * 64), target)
    with pytest.raises(FleetError, match="has the format 2"):
        opened(made, resigned(made, other, format=2), target)
    whole_tar = resigned(made, other)
    short = tmp_path / "short.tar"
    short.write_bytes(whole_tar.read_bytes()[: whole_tar.stat().st_size // 2])
    with pytest.raises(FleetError, match=r"truncated|SHA-256"):
        opened(made, short, target)
    with pytest.raises(FleetError, match="cannot be decrypted"):
        identity = tmp_path / "wrong"
        subprocess.run(["age-keygen", "-o", identity], capture_output=True, check=True)
        etcd_restore.open_snapshot(made.file, identity, WANTED, target, time.time())
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "cut.tar.age", "damaged.tar.age", "short.tar", "wrong",
    ]  # fmt: skip
    assert opened(made, whole_tar)["cluster"] == "main"


def test_two_restores_at_once_are_refused_and_a_killed_one_goes_on(made: Made, tmp_path: Path) -> None:
    manifest = opened(made, made.file)
    assert etcd_restore.operation(tmp_path, manifest, made.file, 0.0, begin=False)["id"] == "19700101T000000Z"
    assert not list(tmp_path.iterdir())
    first = etcd_restore.operation(tmp_path, manifest, made.file, 0.0, begin=True)
    assert etcd_restore.operation(tmp_path, manifest, made.file, time.time(), begin=True) == first
    with pytest.raises(FleetError, match=r"begun at 1970-.* is not finished"):
        etcd_restore.operation(tmp_path, {**manifest, "sha256": "1"}, made.file, time.time(), begin=True)


def places(cluster: Cluster, member: str) -> etcd_restore.Places:
    return etcd_restore.Places(cluster.data_dir(member), "20261123T050000Z")


def prepare(cluster: Cluster, member: str, database: Path, sha256: str) -> None:
    wanted = etcd_restore.Member(
        member, cluster.initial_cluster, "second", cluster.peers[member], BUMP, getpass.getuser()
    )
    etcd_restore.prepare(places(cluster, member), database, sha256, wanted, tool=str(tool("etcdutl")))


def test_all_members_come_back_as_they_were_and_revisions_go_on(made: Made, tmp_path: Path) -> None:
    """Last in this file: the cluster is another one afterwards."""
    cluster = made.backups.cluster
    database = tmp_path / "snapshot.db"
    manifest = opened(made, made.file, database)
    assert database.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FleetError, match="run the playbook again"):
        prepare(cluster, "etcd-1", database, "0" * 64)
    broken = tmp_path / "broken.db"
    broken.write_bytes(database.read_bytes()[:-512])
    with pytest.raises(FleetError, match="etcdutl does not restore"):
        prepare(cluster, "etcd-1", broken, hashlib.sha256(broken.read_bytes()).hexdigest())
    assert [path.name for path in (cluster.directory / "etcd-1").iterdir()] == ["data"]

    old_cluster = cluster.get("etcd-1", "muster")["header"]["cluster_id"]
    for member in cluster.clients:
        prepare(cluster, member, database, manifest["sha256"])
    # Until here etcd went on as before.
    assert cluster.ctl("etcd-2", "get", "late", "--print-value-only").stdout == "after\n"
    cluster.stop()

    # Killed at each point of the exchange, and started by somebody in between: it goes on.
    one, two, three = (places(cluster, member) for member in cluster.clients)
    one.data.rename(one.old)
    assert one.state == "exchanging"
    two.data.rename(two.old)
    two.data.mkdir()
    assert three.state == "prepared"
    for place in (one, two, three):
        etcd_restore.exchange(place)
        assert place.state == "done"
        before = sorted(str(path) for path in place.data.rglob("*"))
        etcd_restore.exchange(place)
        assert sorted(str(path) for path in place.data.rglob("*")) == before
        assert (place.old / "member").is_dir()

    cluster.start()
    for member in cluster.clients:
        answer = cluster.get(member, "muster")
        assert cluster.ctl(member, "get", "muster", "--print-value-only").stdout == "before\n"
        assert cluster.ctl(member, "get", "late", "--print-value-only").stdout == ""
        assert answer["header"]["cluster_id"] != old_cluster
        assert answer["header"]["revision"] == manifest["revision"] + BUMP > made.revision
    # Who watched from before is told that this is compacted, and lists anew instead of waiting for a time that is past.
    watch = cluster.ctl("etcd-1", "watch", "muster", "--rev", str(made.revision))
    assert "compacted" in watch.stdout + watch.stderr
    assert cluster.ctl("etcd-3", "put", "again", "1").returncode == 0


def test_a_member_without_data_gets_it(tmp_path: Path) -> None:
    place = etcd_restore.Places(tmp_path / "data", "1")
    assert place.state == "none"
    place.new.mkdir()
    etcd_restore.exchange(place)
    assert (place.state, place.data.is_dir(), list(place.old.iterdir())) == ("done", True, [])
