"""Processor time by control group: of this machine's real groups where they can be made, and both versions' files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.cpu_group import (
    HOSTS_COUNTER,
    HOSTS_GROUP,
    HOSTS_SHARES,
    CpuGroup,
    Used,
    group_roots,
    hosts_used_s,
    usage_s,
)
from tests.lab.error import LabError
from tools.molecule import group_name

BUSY = "import time\nwhile time.process_time() < 0.3: pass"
# Its child outlives it: nobody waits for it, so that no process' own times have it.
LEFT_BEHIND = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=subprocess.DEVNULL)"
V1 = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def _groups() -> bool:
    return os.geteuid() == 0 and bool(group_roots()) and os.access(group_roots()[0], os.W_OK)


@pytest.mark.skipif(not _groups(), reason="making a control group needs root and a writable mount of them")
def test_what_a_command_and_all_that_it_started_have_used_is_counted_also_when_nobody_waited() -> None:
    name = f"muster-test-{os.getpid()}-one"
    with CpuGroup(name) as group:
        script = f"{LEFT_BEHIND}\n{BUSY}"
        subprocess.run(group.inside([sys.executable, "-c", script]), check=True)
        folder = group_roots()[0] / name / "here"
        while (folder / "cgroup.procs").read_text():
            os.sched_yield()
        used = group.used()
        assert used.here_s >= 0.6
        assert used.hosts_s == 0
    assert not folder.parent.exists()


@pytest.mark.skipif(not _groups(), reason="making a control group needs root and a writable mount of them")
def test_a_process_that_outlives_its_group_leaves_it(tmp_path: Path) -> None:
    name = f"muster-test-{os.getpid()}-left"
    with CpuGroup(name) as group:
        process = subprocess.Popen(group.inside(["sh", "-c", "echo; read _"]), stdin=-1, stdout=-1)
        assert process.stdout and process.stdout.readline() == b"\n"
    assert not (group_roots()[0] / name).exists()
    process.communicate(b"\n")
    assert process.returncode == 0


def test_the_group_of_the_hosts_is_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, other = tmp_path / "cpuacct", tmp_path / "memory"
    with CpuGroup("muster-1-lab", [counter, other]) as group:
        for kind, nanoseconds in (("here", 3_000_000_000), ("hosts", 1_500_000_000)):
            (counter / "muster-1-lab" / kind / "cpuacct.usage").write_text(f"{nanoseconds}\n")
        assert group.used() == Used(3.0, 1.5)
        assert group.used().all_s == 4.5
        told = {HOSTS_GROUP: "/muster-1-lab/hosts", HOSTS_COUNTER: str(counter / "muster-1-lab/hosts")}
        assert group.environment() == told
        monkeypatch.setenv(HOSTS_COUNTER, told[HOSTS_COUNTER])
        assert hosts_used_s() == 1.5
        # As podman leaves it in every hierarchy.
        (other / "muster-1-lab/hosts/conmon").mkdir(parents=True)
        (counter / "muster-1-lab/here/cgroup.procs").touch()
        for path in counter.rglob("*.*"):
            path.unlink() if path.name != "cgroup.procs" else None
    assert not (other / "muster-1-lab").exists()


def test_hosts_weigh_more_than_one_process(tmp_path: Path) -> None:
    """Of the groups that stand beside processes: where a group lies in another one, that one's weight counts."""
    counter, cpu = tmp_path / "cpuacct", tmp_path / "cpu"
    (cpu / "muster-1-lab").mkdir(parents=True)
    for folder in (cpu, cpu / "muster-1-lab"):
        (folder / "cpu.shares").write_text("1024\n")
    with CpuGroup("muster-1-lab", [counter, cpu]):
        (counter / "muster-1-lab/here/cgroup.procs").touch()
        assert (cpu / "muster-1-lab/cpu.shares").read_text() == f"{HOSTS_SHARES}\n"
    assert (cpu / "cpu.shares").read_text() == "1024\n"


def test_nothing_is_counted_where_no_group_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS_COUNTER, raising=False)
    assert hosts_used_s() == 0


def test_both_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    assert usage_s(tmp_path) == 2.5
    (tmp_path / "cpuacct.usage").write_text("4000000000\n")
    assert usage_s(tmp_path) == 4.0


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (V1, ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"]),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", ["/sys/fs/cgroup"]),
        ("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /x cgroup2 rw 0 0\n", []),
        ("", []),
    ],
)
def test_the_hierarchy_that_counts_comes_first(tmp_path: Path, mounts: str, found: list[str]) -> None:
    (tmp_path / "mounts").write_text(mounts)
    assert [str(path) for path in group_roots(tmp_path / "mounts")] == found


def test_a_machine_without_groups_is_told(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="mount cgroup2 or cpuacct"):
        CpuGroup("muster-1-lab", [])
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="run it as root"), CpuGroup("muster-1-lab", [tmp_path / "file"]):
        pass


@pytest.mark.skipif(not _groups(), reason="making a control group needs root and a writable mount of them")
def test_a_role_that_is_tried_alone_leaves_no_group_behind() -> None:
    """Within a stage of `make test` it is below that one's, which removes its own."""
    name = group_name("repair", "")
    with CpuGroup(name):
        assert (group_roots()[0] / name).exists()
    assert not (group_roots()[0] / name.partition("/")[0]).exists()
    assert group_name("repair", "muster-prove-7/molecule") == "muster-prove-7/molecule/repair"
