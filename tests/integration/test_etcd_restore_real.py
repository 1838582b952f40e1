"""A real etcd of three members restored from a snapshot of its own; each snapshot that does not fit is refused.

Only here: etcd itself reads what was restored, on other hosts too, and tells those who watch.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd import database as etcd_database
from ansible_collections.muster.fleet.plugins.module_utils.etcd import ledger as etcd_ledger
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from .etcd_cluster import NO_TOOLS, Backups, Cluster, etcd_cluster, set_up, tool, tools

WANTED = etcd_restore.Wanted("lab", "main", 3600.0)
BUMP = 1_000_000_000


# As a fleet has them: kinds of the cluster and of namespaces, a value of every byte, one near etcd's limit of 1.5 MiB.
KINDS = ("secrets/ml", "configmaps/default", "minions", "muster.dev/nodeadmissions", "leases/kube-system", "pods/ml")
VALUES = {f"/registry/{kind}/{number}": f"{kind} {number}" for kind in KINDS for number in range(50)}
LONG = {"/registry/configmaps/ml/long": b"long" * 250_000, "/registry/secrets/ml/bytes": bytes(range(256))}

LEASED = "/registry/masterleases/198.51.100.1"


@dataclass
class Made:
    """A cluster with a snapshot, every key that was there then, and what was written after it."""

    backups: Backups
    file: Path
    revision: int
    kept: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    if not tools():
        pytest.skip(NO_TOOLS)
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        backups = set_up(cluster, tmp_path_factory.mktemp("places") / "backups")
        fill(cluster)
        kept = cluster.everything("etcd-2")
        assert len(kept) == len({"muster", LEASED, *VALUES, *LONG})
        done = [backups.run(name) for name in cluster.clients]
        assert [run.returncode for run in done] == [0, 0, 0], done
        for key in ("muster", "late", *list(VALUES)[:5]):
            assert cluster.ctl("etcd-1", "put", key, "after").returncode == 0
        assert cluster.ctl("etcd-1", "del", "/registry/pods", "--prefix").stdout == "50\n"
        revision = cluster.get("etcd-1", "muster")["header"]["revision"]
        yield Made(backups, backups.bucket / backups.there()[0], revision, kept)


def fill(cluster: Cluster) -> None:
    """Write all of these, some of them twice, and one that is removed again."""
    for written in ({"/registry/pods/ml/gone": "gone"}, VALUES, dict(list(VALUES.items())[::7])):
        for part in batched(written.items(), 100):
            puts = "".join(f'put "{key}" "{value}"\n' for key, value in part)
            assert cluster.ctl("etcd-1", "txn", stdin=f"\n{puts}\n\n".encode()).stdout.startswith("SUCCESS")
    for key, value in LONG.items():
        assert cluster.ctl("etcd-1", "put", key, stdin=value).returncode == 0
    lease = cluster.ctl("etcd-1", "lease", "grant", "3600").stdout.split()[1]
    assert cluster.ctl("etcd-1", "put", LEASED, "1", f"--lease={lease}").returncode == 0
    assert cluster.ctl("etcd-1", "del", "/registry/pods/ml/gone").stdout == "1\n"


def batched(items: Iterable[tuple[str, str]], size: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """In parts of so many: etcd takes 128 in one transaction."""
    rest = iter(items)
    while part := tuple(islice(rest, size)):
        yield part


def opened(made: Made, source: Path, target: Path | None = None, **changes: Any) -> dict[str, Any]:
    wanted = etcd_restore.Wanted(**{**vars(WANTED), **changes})
    found: dict[str, Any] = etcd_restore.open_snapshot(source, made.backups.identity, wanted, target, time.time())
    return found


def resigned(made: Made, folder: Path, **changes: Any) -> Path:
    """The snapshot with another manifest, decrypted."""
    plain = folder / "plain.tar"
    subprocess.run(["age", "-d", "-i", made.backups.identity, "-o", plain, made.file], check=True)
    with tarfile.open(plain) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None and "/" not in member.name
            (folder / member.name).write_bytes(content.read())
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


def test_a_snapshot_and_a_member_are_read_as_etcd_itself_reads_them(made: Made, tmp_path: Path) -> None:
    """Without an etcd; of a member without the others, which are down."""
    database = tmp_path / "snapshot.db"
    opened(made, made.file, database)
    kept = {base64.b64decode(key): base64.b64decode(entry.get("value", "")) for key, entry in made.kept.items()}
    assert etcd_database.newest_values(database, b"") == kept
    cluster = made.backups.cluster
    ledger = "/registry/other.dev/nodeadmissions/"
    for number in range(3):
        assert cluster.ctl("etcd-1", "put", f"{ledger}gpu-{number}", f'{{"spec": {{"n": {number}}}}}').returncode == 0
    _, ca, _, certificate, _, key = cluster.credentials
    assert cluster.ctl("etcd-3", "get", "muster").returncode == 0
    for away in ("etcd-1", "etcd-2"):
        cluster.parts[away].kill()
    try:
        assert cluster.ctl("etcd-3", "get", "muster").returncode != 0, "it has no majority"
        api = etcd_api.connect(cluster.clients["etcd-3"], etcd_api.Credentials(ca, certificate, key), 5.0)
        revision, found = etcd_ledger.of_member(api, "other.dev")
    finally:
        cluster.stop()
        cluster.start()
    assert revision > made.revision and [one["spec"]["n"] for one in found] == [0, 1, 2]
    assert cluster.ctl("etcd-1", "del", ledger, "--prefix").returncode == 0


def places(cluster: Cluster, member: str) -> etcd_restore.Places:
    return etcd_restore.Places(cluster.data_dir(member), "20261123T050000Z")


def prepare(cluster: Cluster, member: str, database: Path, sha256: str) -> None:
    wanted = etcd_restore.Member(
        member, cluster.initial_cluster, "second", cluster.peers[member], BUMP, getpass.getuser()
    )
    etcd_restore.prepare(places(cluster, member), database, sha256, wanted, tool=str(tool("etcdutl")))


def test_every_key_comes_back_on_other_hosts(made: Made, tmp_path: Path) -> None:
    """Members with other names, addresses and folders, which have served an empty etcd, as the page says."""
    source = made.backups.cluster
    database = tmp_path / "snapshot.db"
    manifest = opened(made, made.file, database)
    (tmp_path / "new").mkdir()
    with etcd_cluster(tmp_path / "new", ("new-1", "new-2", "new-3")) as new:
        assert new.ctl("new-1", "put", "of the empty fleet", "1").returncode == 0
        for member in new.clients:
            prepare(new, member, database, manifest["sha256"])
        new.stop()
        for member in new.clients:
            etcd_restore.exchange(places(new, member))
        new.start()
        for member in new.clients:
            assert new.everything(member) == made.kept
        listed = json.loads(new.ctl("new-2", "member", "list", "-w", "json").stdout)
        assert {one["name"]: one["peerURLs"] for one in listed["members"]} == {k: [v] for k, v in new.peers.items()}
        answers = source.get("etcd-1", "muster"), new.get("new-1", "muster")
        assert len({answer["header"]["cluster_id"] for answer in answers}) == 2
        assert new.ctl("new-3", "put", "again", "1").returncode == 0


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
        assert cluster.everything(member) == made.kept
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
