"""What standing admission costs: `python -m tests.bench.admission [NODES [PHASES]]`, 7,500 where no number is given.

PHASES are some of admission (which all but plane begin with), idle, heartbeats, restart (with power-cut too),
power-cut, watches and plane (certificates, pods, watches and Leases of nodes, by number of nodes; see plane/course.py),
with commas between; all where none is named.

Nodes without machines on one real etcd and API server with the fleet's policies, rights, encryption and audit; kwok
renews their Leases. All run on this one machine, and the benchmark's own threads too: ratios of one run say more than
seconds. Nothing is asserted on the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.heartbeat import RENEW_S
from gpu_burnin.api.names import ADMITTER_USER, PROVISIONER_USER, READY_LABEL
from tests.bench.admission.api import Api
from tests.bench.admission.fleet import NODES, Fleet
from tests.bench.admission.heartbeats import measure_heartbeats
from tests.bench.admission.kwok import STAGE, ensure_kwok
from tests.bench.admission.measure import Admitter, Stopwatch, memory_mib, patches, quantile
from tests.bench.admission.plane import course
from tests.bench.admission.probe import probing
from tests.bench.admission.raw import Rate, patch_all
from tests.bench.admission.watches import measure_watches
from tests.integration.admitter_fleet import Process, admitters
from tests.integration.kube import Server, api_server, apply_ledger

NODES_OF_A_SITE = 7500
WORKERS = AdmitterConfig.workers
# No brake: how fast could it be?
# No tests either: nobody here would do them.
NO_TESTS = {"tests": {"nodes": 0}}
UNLIMITED = {**NO_TESTS, "joins_per_s": 10_000}
SPREAD = {**NO_TESTS, "joins_per_s": 50}
# Each fifth node is let in by bare patches, which gives the raw rate.
RAW_STEP = 5
LEASE_S = 300
STATUS_EVERY_S = 300.0
IDLE_S = 60.0
HEARTBEATS_S = 60.0
REST_S = 30.0
PATIENCE_S = 1800.0
PHASES = ("admission", "idle", "heartbeats", "restart", "power-cut", "watches", "plane")


@dataclass
class Bench:
    """One API server, its fleet, and the admitter that is measured."""

    server: Server
    fleet: Fleet
    process: Process
    port: int

    @property
    def admitter(self) -> Admitter:
        """The one that runs."""
        return Admitter(self.port, self.pid)

    @property
    def pid(self) -> int:
        """The admitter's."""
        assert self.process.running is not None
        return self.process.running.pid

    @property
    def apiserver_pid(self) -> int:
        """The API server's."""
        assert self.server.apiserver.running is not None
        return self.server.apiserver.running.pid


def main() -> None:
    """All phases, each printed when it is over."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else NODES_OF_A_SITE
    phases = sys.argv[2].split(",") if len(sys.argv) > 2 else PHASES
    if unknown := set(phases) - set(PHASES):
        raise SystemExit(f"there is no phase {', '.join(sorted(unknown))}; give some of {', '.join(PHASES)}")
    say(f"{count} nodes; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, one etcd and API server")
    if set(phases) != {"plane"}:
        admission(count, phases)
    if "plane" in phases:
        with tempfile.TemporaryDirectory(prefix="bench-plane-") as folder:
            course.run(Path(folder), course.sizes_up_to(count), say)


def admission(count: int, phases: Sequence[str]) -> None:
    """The phases that have one fleet of so many nodes."""
    kwok = ensure_kwok()
    with tempfile.TemporaryDirectory(prefix="bench-admission-") as folder:
        directory = Path(folder)
        with api_server(directory) as server:
            apply_ledger(server)
            fleet = Fleet(Api.of(server, "root", ["system:masters"]), count)
            with renewing_leases(kwok, server, directory):
                measure(server, fleet, directory, phases)


def measure(server: Server, fleet: Fleet, directory: Path, phases: Sequence[str]) -> None:
    """The phases in their order; each goes on from the one before."""
    began_s = time.monotonic()
    fleet.make(Api.of(server, PROVISIONER_USER))
    say(f"made: {fleet.count} Nodes and NodeAdmissions in {time.monotonic() - began_s:.0f} s")
    fleet.publish()
    rest = Stopwatch(control_plane(server))
    time.sleep(REST_S)
    rest_share = rest.cpu_s / rest.wall_s
    say(f"at rest, with the nodes' Leases: API server and etcd {rest_share:.1%} of a core, taken off from what follows")
    sample = fleet.names[::RAW_STEP]
    raw = patch_all(server.kubeconfig(ADMITTER_USER), sample, WORKERS, control_plane(server), rest_share)
    say(f"raw: {raw}, from {WORKERS} threads, 3 for each of {len(sample)} nodes")
    with admitters(server, directory, ["bench"], workers=WORKERS, **UNLIMITED) as (process,):
        config = yaml.safe_load(process.config.read_text())
        bench = Bench(server, fleet, process, int(config["listen"].rpartition(":")[2]))
        admit_all(bench, raw, rest_share)
        if "idle" in phases:
            idle(bench)
        if "heartbeats" in phases:
            heartbeats(bench)
        if {"restart", "power-cut"} & set(phases):
            process.kill()
            process.config.write_text(yaml.safe_dump({**config, **SPREAD}))
            restart(bench)
        if "power-cut" in phases:
            power_cut(bench)
        if "watches" in phases:
            watches(bench)


def admit_all(bench: Bench, raw: Rate, rest_share: float) -> None:
    """All evidence is there, and no brake: how fast are the others let in, by the measure of the raw rate?"""
    start = Stopwatch([])
    bench.admitter.wait_for("the first lists", PATIENCE_S, steady_seconds=0.001)
    listed_s = start.wall_s
    before, own, servers = patches(bench.fleet.api), Stopwatch([bench.pid]), Stopwatch(control_plane(bench.server))
    bench.admitter.wait_for("the admission of all", PATIENCE_S, ready=bench.fleet.count)
    bench.admitter.wait_idle(PATIENCE_S)
    made = patches(bench.fleet.api) - before
    if not made:
        say(f"admitted: all {bench.fleet.count} before the first look at the admitter; a rate needs more nodes")
        return
    rate, took_s = Rate.of(made, own, servers, rest_share), own.wall_s
    say(
        f"admitted: {labelled(bench.fleet.api)} of {bench.fleet.count} have the label {took_s:.1f} s after the "
        f"first lists, which took {listed_s:.1f} s; {made:.0f} PATCHes: {rate} with everything around them: "
        f"{rate.a_second / raw.a_second:.0%} of the raw rate by the clock, "
        f"{raw.cpu_ms / rate.cpu_ms:.0%} by processor time (goal 90 %); peak {peak_mib(bench)} (goal 300 MiB)"
    )


def idle(bench: Bench) -> None:
    """Nothing happens, and then: nothing but the kubelets' reports."""
    kubeconfig = bench.server.kubeconfig("person", ["muster:admins"])
    with probing(kubeconfig, bench.fleet.names[0]) as latencies:
        watch, events = Stopwatch([bench.pid]), bench.admitter.value("events_waiting")
        time.sleep(IDLE_S)
        quiet, events = watch.cpu_s / watch.wall_s, events - bench.admitter.value("events_waiting")
    names, number, watch = bench.fleet.names, 0, Stopwatch([bench.pid])
    while watch.wall_s < IDLE_S:
        due = int(watch.wall_s * len(names) / STATUS_EVERY_S)
        while number < min(due, len(names)):
            bench.fleet.report_status(names[number])
            number += 1
        time.sleep(0.05)
    say(
        f"idle: {quiet:.1%} of a core over {IDLE_S:.0f} s (goal 3 %), in which {events:.0f} events were "
        f"written, {watch.cpu_s / watch.wall_s:.1%} with "
        f"{number / watch.wall_s:.1f} status reports of kubelets a second; the API's answers: {latencies.text()}"
    )


def heartbeats(bench: Bench) -> None:
    """The agents of a whole site renew their heartbeats, whose nodes these stand for in turn."""
    fleet, a_second = bench.fleet, NODES_OF_A_SITE / RENEW_S
    servers, writes = control_plane(bench.server), round(a_second * HEARTBEATS_S)
    cost = measure_heartbeats(fleet.api, fleet.names, fleet.boot_id, servers, [bench.pid], a_second, writes)
    of_servers, of_admitter = cost.of_nodes(NODES_OF_A_SITE)
    say(
        f"heartbeats: {cost}; {NODES_OF_A_SITE} nodes: {a_second:.0f} a second, {of_servers:.1%} of a core of API "
        f"server and etcd, {of_admitter:.1%} of the admitter"
    )


def restart(bench: Bench) -> None:
    """Killed, and begun again: until it leads, has its lists, and has decided on every node."""
    began_s = time.monotonic()
    bench.process.start()
    bench.admitter.wait_for("leadership", PATIENCE_S, leader=1)
    led_s = time.monotonic() - began_s
    bench.admitter.wait_for("the lists", PATIENCE_S, steady_seconds=0.001)
    listed_s = time.monotonic() - began_s
    bench.admitter.wait_for("a decision on each", PATIENCE_S, decisions_total=bench.fleet.count)
    bench.admitter.wait_idle(PATIENCE_S)
    say(
        f"restart after kill -9: leads after {led_s:.1f} s, lists whole after {listed_s:.1f} s, every node decided "
        f"after {time.monotonic() - began_s:.1f} s (goal 60 s)"
    )


def power_cut(bench: Bench) -> None:
    """All nodes boot at once: how are they let in again, and what does the API server's answer take meanwhile?"""
    kubeconfig, began = bench.server.kubeconfig("person", ["muster:admins"]), datetime.now(UTC).isoformat()
    watch, server_watch = Stopwatch([bench.pid]), Stopwatch(control_plane(bench.server))
    with probing(kubeconfig, bench.fleet.names[0]) as latencies:
        bench.fleet.boot_again()
        noted_s = watch.wall_s
        bench.fleet.report_boots()
        reported_s = watch.wall_s
        bench.admitter.wait_for("the admission of all", PATIENCE_S, ready=bench.fleet.count)
        bench.admitter.wait_idle(PATIENCE_S)
        took_s = watch.wall_s
    joins = Counter(int(at_s) for at_s in join_times_s(bench.process, began))
    by_second = [joins.get(second, 0) for second in range(min(joins), max(joins) + 1)]
    limit = SPREAD["joins_per_s"]
    say(
        f"power cut: {labelled(bench.fleet.api)} of {bench.fleet.count} have the label again after {took_s:.0f} s "
        f"(agents have spoken after {noted_s:.0f} s, kubelets and tests after {reported_s:.0f} s); joins a second "
        f"(limit {limit}): median {quantile(by_second, 0.5)}, p99 {quantile(by_second, 0.99)}, most {max(by_second)}, "
        f"over {len(by_second)} s; the API's answers: {latencies.text()} (goal: p99 under 1,000 ms); processor shares: "
        f"admitter {watch.cpu_s / took_s:.0%}, API server and etcd {server_watch.cpu_s / took_s:.0%}; "
        f"the admitter's peak {peak_mib(bench)}"
    )


def watches(bench: Bench) -> None:
    """A watch of each agent on its own Node."""
    found = measure_watches(bench.fleet.api, bench.apiserver_pid, bench.fleet.names)
    p50, most = (quantile(found.latencies_s, share) * 1000 for share in (0.5, 1.0))
    say(
        f"watches: {found.count} by name, opened in {found.open_s:.0f} s; each costs the API server "
        f"{found.memory_mib / found.count * 1024:.0f} KiB and {found.open_cpu_s / found.count * 1000:.1f} ms of "
        f"processor to open; all of them with everything else {found.idle_cpu_share:.0%} of a core at rest; a change "
        f"is heard after {p50:.0f} ms (median of {len(found.latencies_s)}), {most:.0f} ms at most"
    )


@contextmanager
def renewing_leases(kwok: Path, server: Server, directory: Path) -> Iterator[None]:
    """kwok keeps the Leases of all nodes that have its annotation, until the block ends."""
    stage = directory / "stage.yaml"
    stage.write_text(STAGE)
    command = [
        str(kwok),
        f"--kubeconfig={server.kubeconfig('root', ['system:masters'])}",
        f"--config={stage}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-lease-duration-seconds={LEASE_S}",
    ]
    with (directory / "kwok.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        if process.poll() is not None:
            say(f"kwok had ended with {process.returncode}: the Leases were not renewed, see its log")
            say((directory / "kwok.log").read_text()[-2000:])
        process.terminate()
        process.wait()


def control_plane(server: Server) -> list[int]:
    """The processes of API server and etcd."""
    return [part.running.pid for part in (server.apiserver, server.etcd) if part.running is not None]


def labelled(api: Api) -> int:
    """How many Nodes have the label, asked of the API server."""
    return len(api.request("GET", f"{NODES}?labelSelector={READY_LABEL.replace('/', '%2F')}")["items"])


def join_times_s(process: Process, since: str) -> list[float]:
    """Seconds after `since` at which nodes became ready, as the journal has them."""
    began = datetime.fromisoformat(since)
    return [
        (datetime.fromisoformat(line["at"]) - began).total_seconds()
        for line in map(json.loads, process.log.read_text().splitlines())
        if line.get("to") == "ready" and datetime.fromisoformat(line["at"]) >= began
    ]


def peak_mib(bench: Bench) -> str:
    """The admitter's largest memory so far."""
    return f"{memory_mib(bench.pid, 'VmHWM'):.0f} MiB"


def say(text: str) -> None:
    """One line with the load of the last minute: others may work on this machine."""
    print(f"[load {os.getloadavg()[0]:.1f}] {text}", flush=True)


if __name__ == "__main__":
    main()
