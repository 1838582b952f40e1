"""A shard of a roll on a second machine: sshd, network namespaces, keys with from=, lost power and a lost network.

Only here: that a worker reaches the nodes by its own key from its own address, and what becomes of its shard when that
machine is off, or nothing comes to it or from it. The nodes' burn-in is a small playbook.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.worker_hosts import CONTROLLER, NODES, WORKER, Site, WorkerHosts, outcomes
from tests.support.clocks import PATIENCE_S

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorkerHosts, Path]]:
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("podman", "mmdebstrap")):
        pytest.skip("hosts with systemd need root, podman and mmdebstrap")
    playbook = tmp_path_factory.mktemp("playbook")
    hosts = WorkerHosts(playbook)
    hosts.down()
    try:
        hosts.up()
        yield hosts, playbook
    finally:
        hosts.down()


@pytest.fixture
def site(made: tuple[WorkerHosts, Path], tmp_path: Path) -> Iterator[Site]:
    hosts, playbook = made
    found = Site(hosts, tmp_path, playbook)
    yield found
    found.go()


def test_a_worker_reaches_nodes_by_its_own_key_from_its_own_address(site: Site) -> None:
    agent = site.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", agent], stdout=subprocess.DEVNULL)
    try:
        site.wait(agent.exists)
        with_agent = {"SSH_AUTH_SOCK": str(agent)}
        subprocess.run(["ssh-add", "-q", site.fleet_key], env={**os.environ, **with_agent}, check=True)
        site.go()
        out, err = (roll := site.start(environment=with_agent)).communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert roll.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    ended = site.notes("end")
    assert sorted(address for one in ended.values() for address in one) == [CONTROLLER] * 2 + [WORKER] * 2, ended
    assert site.agents() == {f"{os.uname().nodename} [{agent}]", "worker-1 []"}
    assert [(site.state / f"reports/{name}/report.html").read_text() for name in NODES] == list(NODES)
    assert not site.hosts.running() and not site.hosts.left()
    # Stolen, it opens nothing from elsewhere.
    stolen = site.folder / "stolen"
    stolen.write_text(site.hosts.on_worker("cat /root/.ssh/id_ed25519"))
    stolen.chmod(0o600)
    for key, code in ((stolen, 255), (site.fleet_key, 0)):
        command: list[str | Path] = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "IdentityAgent=none", "-i", key]
        command += ["-o", f"UserKnownHostsFile={site.state / 'known_hosts'}", f"root@{NODES['gpu-1']}", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code and ("Permission denied" in done.stderr) == bool(code), done.stderr


def test_a_shard_whose_worker_loses_its_power_runs_here_when_that_machine_has_booted(site: Site) -> None:
    roll = site.start()
    far = site.wait_for_begin()
    site.hosts.power_off_worker()
    lost_s = site.wait_for_loss()
    # While the shard of this machine still runs, in the only place.
    site.wait_for_ending()
    assert site.logins("begin") == 4, "it waits"
    site.hosts.power_on_worker()
    site.go()
    out, err = roll.communicate(timeout=PATIENCE_S)
    assert roll.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    assert len(far) == 2 and site.notes("begin") == {
        name: [WORKER, CONTROLLER] if name in far else [CONTROLLER] for name in NODES
    }
    assert site.notes("end") == {name: [CONTROLLER] for name in NODES}, "nothing was done twice"
    assert f"the worker root@{WORKER} was lost" in " ".join(err.split())
    assert not site.hosts.left()
    print(f"\nwithout power: lost after {lost_s:.0f} s")


def test_a_short_cut_loses_no_shard(site: Site) -> None:
    roll = site.start()
    far = site.wait_for_begin()
    site.hosts.cut_worker()
    # What is tested is a cut of this length: a third of the time after which the shard is lost.
    time.sleep(20)
    site.hosts.join_worker()
    site.go()
    out, err = roll.communicate(timeout=PATIENCE_S)
    assert roll.returncode == 0 and outcomes(out) == dict.fromkeys(NODES, "done"), err
    assert site.notes("end") == {name: [WORKER if name in far else CONTROLLER] for name in NODES}
    assert site.notes("begin") == site.notes("end") and not site.hosts.left()


def test_a_worker_that_is_cut_off_ends_its_shard_and_no_other_machine_begins_it(site: Site) -> None:
    roll = site.start()
    far = site.wait_for_begin()
    assert len(far) == 2 and site.hosts.running()
    begun_s = time.monotonic()
    site.hosts.cut_worker()
    try:
        ended_s = site.wait(lambda: not site.hosts.running())
        site.wait_for_loss()
        lost_s = time.monotonic() - begun_s
        site.go()
        out, err = roll.communicate(timeout=900)
        waited_s = time.monotonic() - begun_s
        assert roll.returncode == 1, err
        assert outcomes(out) == {name: "failed" if name in far else "done" for name in NODES}, err
        assert all(f"may still run on root@{WORKER}" in json.loads(out)["hosts"][name]["why"] for name in far), out
        assert site.notes("end") == {name: [CONTROLLER] for name in NODES if name not in far}
        _, err = (again := site.start()).communicate(timeout=PATIENCE_S)
        assert again.returncode == 2 and f"root@{WORKER} cannot be used" in " ".join(err.split()), err
        _, err = (again := site.start(worker=False)).communicate(timeout=PATIENCE_S)
        assert again.returncode == 2 and f"may still run on root@{WORKER}" in " ".join(err.split()), err
    finally:
        site.hosts.join_worker()
    assert site.logins("begin") == 4, "nothing was begun meanwhile"
    out, err = (again := site.start()).communicate(timeout=PATIENCE_S)
    assert again.returncode == 0 and outcomes(out) == dict.fromkeys(far, "done"), err
    assert {name: len(one) for name, one in site.notes("end").items()} == dict.fromkeys(NODES, 1)
    assert not site.hosts.left()
    print(f"\ncut off: all ended there after {ended_s:.0f} s, lost after {lost_s:.0f} s, failed after {waited_s:.0f} s")
