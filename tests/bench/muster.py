"""What `muster status`, its page and `muster why` take for 7,500 nodes and a year: `python -m tests.bench.muster`.

One real etcd and kube-apiserver on loopback hold a NodeAdmission for each node, with its 20 transitions; the history
has a year of weekly runs. Each command is a process of its own, as a person starts it. Processor time of the command is
what counts; that of the clock depends on what else runs here, API server and etcd among it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_burnin.admission.client import KubeApi, admissions_path
from gpu_burnin.api.names import ADMITTER_USER, PROVISIONER_USER, Names
from gpu_burnin.api.record import (
    MOST_TRANSITIONS,
    Accepted,
    NodeAdmission,
    State,
    Status,
    Transition,
    document,
    status_document,
)
from gpu_burnin.fleet import history
from tests.bench.browser import CHROMIUM, opened
from tests.integration.kube import api_server, apply_ledger
from tests.support.fake_prometheus import FakePrometheus

NODES = 7500
RUNS, PLAYS = 52, 30
_THREADS = 8
_OPENED = 9
_NAMES = Names()
_NOW = datetime.now(UTC).replace(microsecond=0)
_HARDWARE = {"gpus": [{"uuid": f"GPU-{n:08d}-0000-0000-0000-000000000000", "serial": str(n)} for n in range(8)]}


@dataclass(frozen=True)
class Row:
    """One thing that was measured: seconds of the clock, and of the processor."""

    what: str
    wall_s: float
    cpu_s: float


def name(number: int) -> str:
    """A node's name."""
    return f"gpu-{number:04d}"


def status(number: int) -> Status:
    """What the admitter knows of a node after a year: one in fifty is not ready."""
    at = _text(timedelta(minutes=number % 1000))
    step = Transition(at, "testing", "ready", "", f"{name(number)}: passed standard", ADMITTER_USER)
    out = Transition(at, "ready", "quarantined", "XID_FATAL", f"{name(number)}: XID 79 on GPU 3", ADMITTER_USER)
    bad = number % 50 == 0
    steps = (*(step for _ in range(MOST_TRANSITIONS - 1)), out if bad else step)
    accepted = Accepted(7, "boot", "0" * 64, "0" * 64, "standard", at, at, at, False, _HARDWARE)
    return Status(
        State.QUARANTINED if bad else State.READY, at, out.code if bad else "", out.message if bad else "",
        accepted=accepted, proofs={"standard": at}, transitions=steps,
    )  # fmt: skip


def fill_cluster(provisioner: KubeApi, admitter: KubeApi, nodes: int) -> None:
    """Make the NodeAdmissions and their status."""

    def make(number: int) -> None:
        provisioner.create(admissions_path(_NAMES), document(NodeAdmission(name(number)), _NAMES))
        path = f"{admissions_path(_NAMES, name(number))}/status"
        admitter.patch(path, [{"op": "add", "path": "/status", "value": status_document(status(number))}])

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(make, range(nodes)))


def fill_history(path: Path, nodes: int, runs: int) -> list[Row]:
    """Write a year of runs; what each play took to write, in order."""
    took = []
    for run in range(runs):
        began = timedelta(days=(runs - 1 - run) * 364 / runs)
        times = (_text(began), _text(began - timedelta(minutes=1)))
        for number in range(PLAYS):
            play = history.Play(f"run-{run}", "site.yml", f"Play {number}", "ann", "", False, *times)
            results = {name(node): history.Result(ok=20, changed=int(number == 0)) for node in range(nodes)}
            started, cpu = time.monotonic(), time.process_time()
            history.record(path, play, results, _text(timedelta(days=365)))
            took.append(Row("", time.monotonic() - started, time.process_time() - cpu))
    return took


def mean(what: str, of: Sequence[Row]) -> Row:
    """The mean of several measurements."""
    return Row(what, sum(row.wall_s for row in of) / len(of), sum(row.cpu_s for row in of) / len(of))


def timed(*words: str) -> Row:
    """Run `muster` with these words. Raises CalledProcessError."""
    code = "from gpu_burnin.__main__ import muster; muster()"
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wall_s, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Row(f"muster {' '.join(word for word in words if not word.startswith(('/', '--k', '--s')))}", wall_s, cpu_s)


def page(place: Path, nodes: int, *options: str) -> Iterator[Row]:
    """The fleet as a page with the numbers of a monitoring that answers at once, and how long Chromium needs for it."""
    fake = FakePrometheus()
    try:
        fake.at, fake.hosts = datetime.now(UTC), {name(n): (n % 99 > 0, {"rack": f"r{n // 16}"}) for n in range(nodes)}
        yield timed(
            "status", "--html", str(place), "--prometheus", fake.address, "--alertmanager", fake.address, *options
        )
    finally:
        fake.close()
    if CHROMIUM is None:
        print("no Chromium: how fast the page opens is not measured")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        tries = opened(place, Path(profile), _OPENED)
    size_mib, what = place.stat().st_size / 2**20, f"Chromium opens the page, median of {_OPENED}"
    walls, cpus = sorted(one.painted_s for one in tries), sorted(one.cpu_s for one in tries)
    told = f"{what} ({size_mib:.1f} MiB; {walls[0]:.2f} to {walls[-1]:.2f} s)"
    yield Row(told, walls[_OPENED // 2], cpus[_OPENED // 2])


def rows(folder: Path, nodes: int, runs: int) -> Iterator[Row]:
    """All measurements, as they come."""
    path = folder / history.FILE
    took = fill_history(path, nodes, runs)
    size_mib = path.stat().st_size / 2**20
    what = f"write a play of {nodes:,} hosts, mean of"
    yield mean(f"{what} {len(took):,} ({size_mib:.0f} MiB at the end)", took)
    yield mean(f"{what} the last run", took[-PLAYS:])
    with api_server(folder / "api") as server:
        apply_ledger(server)
        users = (PROVISIONER_USER, ADMITTER_USER)
        provisioner, admitter = (KubeApi(server.kubeconfig(user)) for user in users)
        fill_cluster(provisioner, admitter, nodes)
        options = ("--kubeconfig", str(server.kubeconfig("ann", ["muster:admins"])))
        yield timed("status", *options)
        yield from page(folder / "page.html", nodes, *options)
        yield timed("why", name(0), "--state", str(folder), *options)
        yield timed("why", name(0), "--since", "365d", "--state", str(folder), *options)


def _text(ago: timedelta) -> str:
    return (_NOW - ago).isoformat().replace("+00:00", "Z")


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--runs", type=int, default=RUNS, help="weekly runs of 30 plays in the history")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "api").mkdir()
        print(f"{asked.nodes:,} nodes, {asked.runs * PLAYS:,} plays in the history")
        for row in rows(place, asked.nodes, asked.runs):
            print(f"{row.wall_s:8.2f} s  {row.cpu_s:8.2f} s of a processor  {row.what}", flush=True)


if __name__ == "__main__":
    main()
