"""The slow scenarios of playbooks/upgrade.yml: to other builds and back, and an API server whose new build fails.

Kubernetes, Kueue and JobSet are the lab's own with another patch in their version, put into the binaries; etcd's next
minor is real.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.fleet.mirror.programs import (
    ETCD,
    ETCD_VERSION,
    JOBS_MANIFESTS,
    JOBSET_VERSION,
    KUBERNETES,
    KUBERNETES_VERSION,
    KUEUE_VERSION,
)
from tests.integration.fleet import API_SERVERS, Fleet
from tests.lab.binaries import NEXT_ETCD, NEXT_ETCD_VERSION
from tests.lab.fleet import LAB_INVENTORY, PlaybookResult
from tests.lab.paths import REPOSITORY

from .clients import Clients
from .health import EVENTS, MEMBERS, NODES

# What serves the teams' jobs on the API servers' hosts.
JOBS = {"kueue": KUEUE_VERSION, "jobset": JOBSET_VERSION}


def _other_patch(version: str) -> str:
    return f"{version[:-1]}{(int(version[-1]) + 1) % 10}"


OTHER = _other_patch(KUBERNETES_VERSION)
# It says a version and serves nobody.
BROKEN = f'#!/bin/sh\n[ "$1" = --version ] && echo Kubernetes v{OTHER} && exit 0\nexit 1\n'.encode()
BUILDS = cache_dir() / "bin/current"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_PROGRAMS = ("kubelet", "kube-proxy")


def upgraded(clients: Clients) -> str:
    """etcd and Kubernetes go to other builds, one member and server after the other, and back: the nodes by a roll."""
    fleet = clients.fleet
    with _published(fleet, "upgrade-other", _other()) as other, _published(fleet, "upgrade-today", _today()) as today:
        up = _upgrade(fleet, other, "up")
        expect(fleet, OTHER, NEXT_ETCD_VERSION)
        expect_jobs(fleet, other["kube_binaries_checksums"])
        began_s = time.monotonic()
        for part in ("etcd", "control_plane"):
            _upgrade(fleet, today, f"down-{part}", part=part)
        _roll_nodes(today)
        down_s = time.monotonic() - began_s
        expect(fleet, KUBERNETES_VERSION, ETCD_VERSION)
        expect_jobs(fleet, today["kube_binaries_checksums"])
    what = f"etcd {ETCD_VERSION} to {NEXT_ETCD_VERSION}, Kubernetes, Kueue and JobSet by a patch"
    return f"{what}, in {up.seconds:.0f} s, and back, the nodes by `muster roll`, in {down_s:.0f} s"


def server_fails(clients: Clients) -> str:
    """The new API server does not start: the run stops at the first one, and the build of before mends it."""
    fleet = clients.fleet
    broken = _patched() | {"kube-apiserver": BROKEN}
    with _published(fleet, "upgrade-broken", broken) as new, _published(fleet, "upgrade-today", _today()) as today:
        failed = _upgrade(fleet, new, "fails", part="control_plane", kube_apiserver_health_timeout_s=5, fails=True)
        told = " ".join(failed.failures)
        assert f"{API_SERVERS[0]} failed, and nothing was done after it" in told, told
        clients.write_on(50)
        mended = _upgrade(fleet, today, "mended", part="control_plane")
        expect(fleet, KUBERNETES_VERSION, ETCD_VERSION)
    return f"stopped at {API_SERVERS[0]} after {failed.seconds:.0f} s, mended in {mended.seconds:.0f} s"


def _today() -> dict[str, bytes]:
    manifests = [name for one in JOBS_MANIFESTS for name in one.outputs]
    return {name: (BUILDS / name).read_bytes() for name in (*KUBERNETES, *ETCD, *JOBS, *manifests, "coredns")}


def _patched() -> dict[str, bytes]:
    today = _today()
    versions = {**dict.fromkeys(KUBERNETES, KUBERNETES_VERSION), **JOBS}
    patched = {
        name: today[name].replace(f"v{version}".encode(), f"v{_other_patch(version)}".encode())
        for name, version in versions.items()
    }
    # Another length would move what stands behind it.
    assert all(len(content) == len(today[name]) and content != today[name] for name, content in patched.items())
    return today | patched


def _other() -> dict[str, bytes]:
    return _patched() | {"etcd": (BUILDS / NEXT_ETCD).read_bytes()}


@contextmanager
def _published(fleet: Fleet, name: str, files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """These binaries on the lab's mirror while the block runs: the variables that name them."""
    folder = fleet.lab.state / "hosts/mirror/merged/srv/mirror" / name
    folder.mkdir(exist_ok=True)
    try:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        yield {"kube_binaries_url": f"http://{fleet.lab.mirror_address}/{name}", "kube_binaries_checksums": sums}
    finally:
        shutil.rmtree(folder)


def _upgrade(
    fleet: Fleet, pins: Mapping[str, Any], log: str, *, part: str = "all", fails: bool = False, **more: Any
) -> PlaybookResult:
    # The lab has no second place, so its snapshots are the reader's.
    variables = {**pins, "snapshot": "mine", "part": part, **more}
    result = fleet.playbook("playbooks/upgrade.yml", log=f"bench-upgrade-{log}", **variables)
    assert (result.rc != 0) == fails, f"{log}: {result.failures or 'it did not fail'}, see {result.log}"
    return result


def _roll_nodes(pins: Mapping[str, Any]) -> None:
    """The nodes alone, in shards that run beside each other."""
    given = json.dumps({**pins, "snapshot": "mine"})
    muster = str(Path(sys.executable).with_name("muster"))
    words = [muster, "roll", "playbooks/upgrade.yml", "-i", str(LAB_INVENTORY), "--canary", "2", "--shard", "1"]
    command = [*words, "--again", "--json", "--", "-e", given]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = {host: one["outcome"] for host, one in json.loads(done.stdout)["hosts"].items()}
    # The sick node's gate stays closed.
    assert outcomes == dict.fromkeys(NODES, "done") | {"gpu-3": "held"}, outcomes


def expect(fleet: Fleet, kubernetes: str, etcd: str, others: Mapping[str, str] | None = None) -> None:
    """Each process runs this version, those of the hosts in `others` the version of Kubernetes there: asked of its own
    file."""
    units = {f"{host} etcd": etcd for host in (*MEMBERS, EVENTS)}
    programs = dict.fromkeys(API_SERVERS, CONTROL_PLANE) | dict.fromkeys(NODES, NODE_PROGRAMS)
    for host, names in programs.items():
        units |= {f"{host} {name}": f"v{(others or {}).get(host, kubernetes)}" for name in names}
    ask = "/proc/$(systemctl show -p MainPID --value {})/exe --version | head -1"
    found = {one: fleet.must(one.split()[0], ask.format(one.split()[1])).split()[-1] for one in units}
    others = {one: version for one, version in found.items() if version != units[one]}
    assert not others, f"other versions than asked for run: {others}"


def expect_jobs(fleet: Fleet, checksums: Mapping[str, str]) -> None:
    """Each process of JobSet and Kueue is that of a file with this checksum."""
    ask = "sha256sum /proc/$(systemctl show -p MainPID --value {})/exe"
    found = {(host, name): fleet.must(host, ask.format(name)).split()[0] for host in API_SERVERS for name in JOBS}
    others = {one for one, checksum in found.items() if checksum != checksums[one[1]]}
    assert not others, f"other programs than asked for run: {sorted(others)}"
