"""Snapshots of a real etcd: one of its members makes them, and no other; what goes wrong is told and leaves nothing.

Only here: whose turn it is follows the real leader, and what is kept opens with the key that no host has.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .etcd_cluster import NO_TOOLS, Backups, Cluster, etcd_cluster, set_up, tool, tools


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not tools():
        pytest.skip(NO_TOOLS)
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def backups(cluster: Cluster, tmp_path: Path) -> Backups:
    return set_up(cluster, tmp_path / "backups")


def turn(cluster: Cluster) -> str:
    """The member that is to make it."""
    return min(name for name in cluster.clients if name != cluster.leader())


def test_every_member_asks_and_one_makes_it(backups: Backups, tmp_path: Path) -> None:
    own = turn(backups.cluster)
    said = {name: backups.run(name) for name in backups.cluster.clients}
    assert {name: done.returncode for name, done in said.items()} == dict.fromkeys(said, 0), said
    assert [name for name, done in said.items() if ": made lab-main-" in done.stdout] == [own]
    (made,) = backups.there()
    assert made.endswith(f"-{own}.tar.age")
    again = backups.run(own)
    assert (again.returncode, "is younger than 3600 s" in again.stdout) == (0, True)
    assert backups.there() == [made]
    assert backups.metrics(own)["failed"] == 0
    assert backups.metrics(own)["last_success_timestamp_seconds"] > 0

    # Only the key that is on none of these hosts opens it, and what is in it is what etcd had.
    opened = tmp_path / "opened.tar"
    subprocess.run(
        ["age", "-d", "-i", str(backups.identity), "-o", str(opened), str(backups.bucket / made)], check=True
    )
    with tarfile.open(opened) as archive:
        assert archive.getnames() == ["manifest.json", "snapshot.db"]
        # Debian 12's Python has no filter for extractall.
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            (tmp_path / member.name).write_bytes(content.read())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["fleet"], manifest["cluster"], manifest["member"]) == ("lab", "main", own)
    status = subprocess.run(
        [tool("etcdutl"), "snapshot", "status", tmp_path / "snapshot.db", "-w", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(status.stdout)["revision"] == manifest["revision"]
    # Beside the program's own files there is the encrypted copy alone, for nobody else to read.
    left = {path.name for path in (backups.directory / own).iterdir()} - {"config.json", "textfiles", ".lock"}
    assert left == {made, "last.json"}
    assert (backups.directory / own / made).stat().st_mode & 0o077 == 0


def test_asked_now_makes_one_more_and_the_oldest_goes(backups: Backups) -> None:
    own = turn(backups.cluster)
    others = ["lab-events-20200101T000000Z-etcd-9.tar.age", "lab-main-20200101T000000Z-etcd-1.tar.age.partial"]
    for name in (*others, "lab-main-20200101T000000Z-etcd-1.tar.age", "lab-main-20200102T000000Z-etcd-1.tar.age"):
        (backups.bucket / name).write_bytes(b"old")
    done = backups.run(own, "--now", keep_days=0)
    assert done.returncode == 0, done.stderr
    made = done.stdout.split(": made ")[1].split(":")[0]
    assert backups.there() == sorted([others[0], "lab-main-20200102T000000Z-etcd-1.tar.age", made])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("recipients", "the snapshot is not encrypted"),
        ("bucket", "the second place"),
        ("rclone", "gives lab-main-"),
        ("etcdctl", "truncated or damaged"),
        ("space", "make room there"),
    ],
)
def test_a_failure_is_one_sentence_a_metric_and_leaves_nothing(backups: Backups, spoil: str, why: str) -> None:
    own = turn(backups.cluster)
    fakes = backups.directory / "fakes"
    fakes.mkdir()
    if spoil == "recipients":
        (backups.directory / "recipients").write_text("age1nobody\n")
    elif spoil == "bucket":
        backups.bucket.rmdir()
        backups.bucket.write_text("a file where the folder was")
    elif spoil == "rclone":
        # Damage on the way: what is read back is not what was sent.
        (fakes / "rclone").write_text(
            '#!/bin/sh\ncase "$*" in *" cat "*) echo damaged;; *) exec /usr/bin/rclone "$@";; esac\n'
        )
    elif spoil == "etcdctl":
        real = tool("etcdctl")
        (fakes / "etcdctl").write_text(
            f'#!/bin/bash\n{real} "$@" || exit\n[[ "$*" != *snapshot* ]] || truncate --size=9000 "${{@: -1}}"\n'
        )
    else:
        (fakes / "etcdctl").write_text(
            f'#!/bin/sh\n{tool("etcdctl")} "$@" | sed \'s/"dbSize":[0-9]*/"dbSize":9000000000000000/g\'\n'
        )
    for path in fakes.iterdir():
        path.chmod(0o755)
    environment = backups.environment()
    environment["PATH"] = f"{fakes}:{environment['PATH']}"
    backups.environment = lambda: environment  # type: ignore[method-assign]
    done = backups.run(own, "--now")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{own}: no snapshot of main: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert backups.metrics(own)["failed"] == 1
    assert "last_success_timestamp_seconds" not in backups.metrics(own)
    assert not list((backups.directory / own).glob("*snapshot*")) + list((backups.directory / own).glob("*.tar.age*"))
    assert spoil == "bucket" or not [name for name in backups.there() if not name.endswith(".partial")]


def test_a_lost_member_changes_whose_turn_it_is(backups: Backups) -> None:
    cluster = backups.cluster
    lost = turn(cluster)
    cluster.parts[lost].kill()
    try:
        (next_one,) = set(cluster.clients) - {lost, cluster_leader := leader_without(cluster, lost)}
        assert cluster_leader != next_one
        done = backups.run(next_one)
        assert ": made " in done.stdout, done.stderr
    finally:
        cluster.parts[lost].start()


def leader_without(cluster: Cluster, lost: str) -> str:
    """The leader among the others."""
    rest = {name: url for name, url in cluster.clients.items() if name != lost}
    return Cluster(cluster.directory, cluster.credentials, rest, cluster.peers, cluster.options).leader()
