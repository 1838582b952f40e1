"""What the fleet's Prometheus costs, beside the same fleet with default exporters: `python -m tests.bench.monitoring`.

The real Prometheus of the lab's image reads pages on loopback (tests/bench/scrape_pages.py), without TLS. What is
printed as computed is the measured cost of a series and of a sample times the fleet.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.integration.kube import free_ports, until
from tests.lab.image import ensure_image
from tests.support.monitoring_files import ROOT, render

from .scrape_pages import declared, default_gpus, many_processors, targets

FLEET, FLEET_INTERVAL_S = 7500, 30
APPENDED = "prometheus_tsdb_head_samples_appended_total"
DAY_S, BLOCK_S = 86400, 7200
# Of a fleet's millions of series it takes minutes.
SNAPSHOT_S = 900.0
SERIES = ROOT / "roles" / "fleet_monitoring" / "files" / "series.yaml"
VARIABLES = {"fleet_name": "bench", "fleet_state_dir": "/nowhere", "fleet_planned_nodes": FLEET,
             "__fleet_monitoring_capacity": {"retention_mib": 10000}}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Of one Prometheus: nodes, series in memory, and of the window samples a second, share of a core, bytes."""

    nodes: int
    series: float
    samples_per_s: float
    scraped_per_s: float
    cores: float
    memory_bytes: int
    log_bytes_per_sample: float
    chunk_bytes_per_sample: float
    index_bytes_per_series: float

    def disk_of_a_day(self, series: float, interval_s: float) -> float:
        """Bytes: samples, and one index for each block of two hours."""
        samples = series / interval_s * DAY_S
        return samples * self.chunk_bytes_per_sample + series * self.index_bytes_per_series * DAY_S / BLOCK_S


def program(name: str) -> list[str]:
    """A program of the lab's image on this machine, with the image's libraries."""
    root = ensure_image()
    libraries = ":".join(str(root / place) for place in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"))
    return [str(root / "lib64" / "ld-linux-x86-64.so.2"), "--library-path", libraries, str(root / name)]


def get(port: int, path: str, method: str = "GET", timeout_s: float = 60) -> str:
    """What answers on loopback. Raises OSError."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return str(answer.read().decode())


def answers(port: int) -> bool:
    """Whether something answers there that is ready, where it can say so."""
    try:
        get(port, "/metrics")
        get(port, "/-/ready")
    except OSError:
        return False
    return True


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()


def node_page(folder: Path, *arguments: str) -> str:
    """What node_exporter shows on this machine with these arguments."""
    [port] = free_ports(1)
    command = [*program("usr/bin/prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}", *arguments]
    with running(command, folder / "node_exporter.log"):
        until("node_exporter answers", lambda: answers(port))
        return get(port, "/metrics")


def write_pages(folder: Path, ours: bool) -> None:
    """The pages of one node, one file for each job."""
    kept = yaml.safe_load(SERIES.read_text())
    left = [line for line in declared(kept["node"]) if not line.startswith("node_")]
    if ours:
        collectors = ("pressure", "filesystem", "loadavg", "meminfo", "time", "timex", "uname")
        page = node_page(folder, "--collector.disable-defaults", *(f"--collector.{name}" for name in collectors))
        lines = {"node": page.splitlines() + declared(kept["node"]), "gpu": declared(kept["gpu"])}
    else:
        lines = {"node": many_processors(node_page(folder)) + left, "gpu": default_gpus()}
    for job, text in lines.items():
        (folder / f"{job}.page").write_text("\n".join(text) + "\n")


def configuration(folder: Path, ours: bool, nodes: int, interval_s: int, port: int) -> Path:
    """The role's own for the jobs of nodes, without TLS; or the same jobs with nothing dropped and no rules."""
    written: dict[str, Any] = yaml.safe_load((folder / "mon-1" / "prometheus.yml").read_text())
    jobs = []
    for job in written["scrape_configs"]:
        if job["job_name"] not in ("node", "gpu"):
            continue
        (folder / f"{job['job_name']}.json").write_text(json.dumps(targets(job["job_name"], nodes, port)))
        plain = {key: value for key, value in job.items() if key not in ("tls_config", "scheme")}
        plain["file_sd_configs"] = [{"files": [str(folder / f"{job['job_name']}.json")]}]
        mine = ("job_name", "file_sd_configs")
        jobs.append(plain if ours else {key: plain[key] for key in mine})
    rules = [str(SERIES.parent / "rules" / "*.yml")] if ours else []
    times = {"scrape_interval": f"{interval_s}s", "scrape_timeout": f"{min(interval_s, 10)}s"}
    (folder / "bench.yml").write_text(
        json.dumps({
            "global": {**times, "evaluation_interval": f"{interval_s}s"}, "rule_files": rules, "scrape_configs": jobs
        })
    )  # fmt: skip
    return folder / "bench.yml"


def features(folder: Path) -> list[str]:
    """What the role switches on, which costs series of its own."""
    return re.findall(r"--enable-feature=\S+", (folder / "mon-1" / "prometheus.default").read_text())


def number(port: int, expression: str) -> float:
    """One number of Prometheus; 0 for none."""
    found = json.loads(get(port, f"/api/v1/query?query={urllib.parse.quote(expression)}"))["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def metric(port: int, name: str) -> float:
    """One of Prometheus' own numbers, the sum of its series."""
    lines = get(port, "/metrics").splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def used_s(process: int) -> float:
    """Processor time of a process."""
    words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(process: int) -> int:
    """Largest resident memory of a process."""
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(ours: bool, nodes: int, interval_s: int, window_s: int) -> Cost:
    """Run one Prometheus over the pages of `nodes` nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        render(folder, {"mon-1": {"ansible_host": "127.0.0.1"}}, VARIABLES)
        write_pages(folder, ours)
        server, port = free_ports(2)
        path = configuration(folder, ours, nodes, interval_s, server)
        data = folder / "data"
        prometheus = [
            *program("usr/bin/prometheus"), f"--config.file={path}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-admin-api", "--log.level=warn",
            *(features(folder) if ours else ()),
        ]  # fmt: skip
        pages = [sys.executable, "-m", "tests.bench.scrape_pages", str(folder), str(server)]
        with running(pages, folder / "pages.log"), running(prometheus, folder / "prometheus.log") as process:
            until("Prometheus answers", lambda: answers(port), 60)
            until("each target was read", lambda: number(port, "count(up == 1)") == 2 * nodes, 10 * interval_s + 60)
            appended, cpu_s, log = (
                metric(port, APPENDED),
                used_s(process.pid),
                size_of(data / "wal"),
            )
            began = time.monotonic()
            time.sleep(window_s)
            passed_s = time.monotonic() - began
            samples = metric(port, APPENDED) - appended
            cores = (used_s(process.pid) - cpu_s) / passed_s
            log_bytes = size_of(data / "wal") - log
            if number(port, "count(up == 1)") != 2 * nodes:
                raise RuntimeError(f"{nodes} nodes were too many: not every target was read to the end")
            scraped = number(port, "sum(scrape_samples_scraped)") / interval_s
            series, memory = metric(port, "prometheus_tsdb_head_series"), peak_bytes(process.pid)
            total = metric(port, APPENDED)
            get(port, "/api/v1/admin/tsdb/snapshot", "POST", SNAPSHOT_S)
            chunks = sum(size_of(found) for found in (data / "snapshots").rglob("chunks"))
            index = sum(found.stat().st_size for found in (data / "snapshots").rglob("index"))
        return Cost(
            nodes,
            series,
            samples / passed_s,
            scraped,
            cores,
            memory,
            log_bytes / samples,
            chunks / total,
            index / series,
        )


def show(what: str, cost: Cost, interval_s: int) -> None:
    """What was measured, and computed from it for the fleet."""
    series = cost.series / cost.nodes * FLEET
    samples = series / FLEET_INTERVAL_S
    cores, memory = cost.cores * samples / cost.samples_per_s, cost.memory_bytes / cost.series * series
    print(
        f"{what}: {cost.nodes:,} nodes each {interval_s} s, load {os.getloadavg()[0]:.0f}",
        f"  measured  {cost.series / cost.nodes:,.0f} series a node, {cost.samples_per_s:,.0f} samples a second kept of"
        f" {cost.scraped_per_s:,.0f} shown, {cost.cores:.2f} cores, {cost.memory_bytes / 2**20:,.0f} MiB"
        f" ({cost.memory_bytes / cost.series:,.0f} bytes a series)",
        f"            a sample: {cost.log_bytes_per_sample:.1f} bytes of log,"
        f" {cost.chunk_bytes_per_sample:.2f} of chunks; a series: {cost.index_bytes_per_series:,.0f} of index",
        f"  computed  {FLEET:,} nodes each {FLEET_INTERVAL_S} s: {series:,.0f} series, {samples:,.0f} samples a second,"
        f" {cores:.1f} cores, {memory / 2**30:,.0f} GiB of memory,"
        f" {cost.disk_of_a_day(series, FLEET_INTERVAL_S) / 2**30:,.1f} GiB of disk a day",
        sep="\n",
        flush=True,
    )


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[250, 500, 1000])
    parser.add_argument("--interval", type=int, default=15, help="seconds between two readings of a target")
    parser.add_argument("--window", type=int, default=120, help="seconds that are measured")
    parser.add_argument("--only-muster", action="store_true", help="no default exporters: they need ten times as much")
    asked = parser.parse_args()
    shortest = 2 * asked.interval
    if asked.window < shortest:
        parser.error(
            f"--window {asked.window} is shorter than two readings of a target, and says nothing: take {shortest}"
        )
    for nodes in asked.nodes:
        if asked.only_muster:
            show("Muster", measure(True, nodes, asked.interval, asked.window), asked.interval)
            continue
        costs = {ours: measure(ours, nodes, asked.interval, asked.window) for ours in (True, False)}
        show("Muster", costs[True], asked.interval)
        show("default exporters, unfiltered", costs[False], asked.interval)
        mine, other = costs[True], costs[False]
        print(
            f"  ratio     default to Muster: {other.series / mine.series:.1f} series,"
            f" {other.cores / mine.cores:.1f} cores, {other.memory_bytes / mine.memory_bytes:.1f} memory\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
