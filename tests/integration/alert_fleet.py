"""A real Prometheus for each lane of the replayed faults, one Alertmanager for all, and the pages that they read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tests.support.monitoring_files import render

from .alert_courses import faster_groups
from .alert_replay import INTERVAL_S, Evaluation, Replay, Seen, page, targets_of
from .kube import Part, ended, free_ports, until
from .monitoring_pair import DISK_MIB, VARIABLES, arguments, program

# Series of each group of rules, one for each host: the time of its last read of which an evaluation knew.
EVALUATED = "replay:evaluated"
# Before all others of this machine: a read has INTERVAL_S for its answer, however busy it is.
_FIRST = -10
# Of the role's reads, what is other here.
_OPTIONS = ("scheme", "tls_config", "file_sd_configs")


@dataclass(frozen=True)
class Fleet:
    """What runs: the port of each lane's Prometheus, and that of the Alertmanager."""

    lanes: Mapping[int, Sequence[Replay]]
    alertmanager: int

    def alerting(self) -> set[int]:
        """The numbers of the replays whose alert Alertmanager has now."""
        labels = [one["labels"] for one in _get(self.alertmanager, "/api/v2/alerts")]
        wanted = [(replay.number, replay.expected() | {"fleet": str(port)}) for port, replay in self.replays()]
        return {number for number, these in wanted if any(these.items() <= one.items() for one in labels)}

    def replays(self) -> list[tuple[int, Replay]]:
        """Each replay with its lane."""
        return [(port, replay) for port, lane in self.lanes.items() for replay in lane]

    def read(self, times: int) -> bool:
        """Whether every target of every lane was read so often."""
        return all(
            len(_get(port, f"/api/v1/query?query={quote(f'count_over_time(up[1h]) >= {times}')}")["data"]["result"])
            == sum(len(replay.hosts()) for replay in lane)
            for port, lane in self.lanes.items()
        )

    def recorded(self) -> dict[int, Seen]:
        """What each replay's Prometheus has of it."""
        found = {}
        for port, lane in self.lanes.items():
            names = ("ALERTS", EVALUATED, "scrape_duration_seconds")
            alerts, evaluated, reads = (_samples(port, name) for name in names)
            for replay in lane:
                expected, hosts = replay.expected().items(), replay.hosts()
                known = [values for labels, values in evaluated if _is_of(labels, replay, hosts)]
                mine = [read for labels, values in reads if _place(labels) in hosts for read in values]
                raised = [(labels["alertstate"], values) for labels, values in alerts if expected <= labels.items()]
                found[replay.number] = Seen(
                    _evaluations(known, len(hosts)),
                    sorted((at, state) for state, values in raised for at, _ in values),
                    sorted(at for at, took_s in mine if took_s >= INTERVAL_S),
                )
        return found


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels["job"], labels["instance"]


def _is_of(labels: Mapping[str, str], replay: Replay, hosts: Container[tuple[str, str]]) -> bool:
    return labels["evaluated"] == replay.alert.group and _place(labels) in hosts


def _evaluations(known: Iterable[Sequence[tuple[float, float]]], hosts: int) -> list[Evaluation]:
    """Those that knew of a read of each of so many hosts; `known` are times of evaluations and of reads, by host."""
    reads: dict[float, list[float]] = {}
    for values in known:
        for at, read in values:
            reads.setdefault(at, []).append(read)
    return [Evaluation(at, min(some)) for at, some in sorted(reads.items()) if len(some) == hosts]


def _samples(port: int, name: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Each series of a name that a Prometheus has, with times and values of the last hour."""
    found = _get(port, f"/api/v1/query?query={quote(f'{name}[1h]')}")["data"]["result"]
    return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in found]


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def written(folder: Path) -> Path:
    """What the role writes for one host that watches."""
    hosts = {"mon-1": {"ansible_host": "127.0.0.1"}}
    # With all that a fleet may have, so that each alert has its job.
    everything = {"fleet_scale": True, "fleet_node_dns": True}
    return render(folder, hosts, {**VARIABLES, "fleet_monitoring_receiver": {}, **everything})["mon-1"]


def kept(configuration: Mapping[str, Any]) -> dict[str, re.Pattern[str]]:
    """The names that each job of a configuration keeps."""
    names = {}
    for job in configuration["scrape_configs"]:
        for rule in job["metric_relabel_configs"]:
            if rule["action"] == "keep" and rule["source_labels"] == ["__name__"]:
                names[job["job_name"]] = re.compile(rule["regex"])
    return names


def _configuration(role: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((role / "prometheus.yml").read_text())
    return read


def aim(role: Path, replays: Iterable[Replay]) -> None:
    """Give each case the targets that show it; `role` is the folder of written().

    Raises ValueError for a series that no job keeps.
    """
    jobs = kept(_configuration(role))
    for replay in replays:
        replay.targets = {
            True: targets_of(replay, replay.case.wrong, jobs),
            False: targets_of(replay, replay.case.fine, jobs),
        }


@contextmanager
def running(
    folder: Path, role: Path, rules: Sequence[Mapping[str, Any]], lanes: Sequence[Sequence[Replay]]
) -> Iterator[Fleet]:
    """All of it for cases with targets, until the block ends; `role` is the folder of written()."""
    configuration = _configuration(role)
    alertmanager, *ports = free_ports(1 + len(lanes))
    by_port = dict(zip(ports, lanes, strict=True))
    everyone = [replay for lane in lanes for replay in lane]
    with _pages({replay.number: replay for replay in everyone}) as pages, ExitStack() as stack:
        parts = [_alertmanager(role, alertmanager)]
        for port, lane in by_port.items():
            place = folder / str(port)
            (place / "rules").mkdir(parents=True)
            (place / "rules" / "all.yml").write_text(json.dumps({"groups": _rules(rules, lane[0].factor)}))
            made = _configured(configuration, lane, port, pages, alertmanager)
            (place / "prometheus.yml").write_text(json.dumps(made))
            parts.append(_prometheus(role, place, port))
        stack.enter_context(ended(*parts))
        for part in parts:
            part.start()
        for port in (alertmanager, *ports):
            until(f"port {port} answers", lambda port=port: _answers(port))  # type: ignore[misc]
        yield Fleet(by_port, alertmanager)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _alertmanager(role: Path, port: int) -> Part:
    own = [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    files = ["--config.file=/mnt/alertmanager.yml", "--storage.path=/mnt/alertmanager"]
    return Part([*program("/usr/bin/prometheus-alertmanager", role), *own, *files], role / "alertmanager.log")


def _prometheus(role: Path, place: Path, port: int) -> Part:
    given = [one for one in arguments(role / "prometheus.default") if not one.startswith("--web.listen-address")]
    (place / "data").mkdir()
    own = [f"--web.listen-address=127.0.0.1:{port}", "--config.file=/mnt/prometheus.yml"]
    # In memory: it waits for no disk that others keep busy.
    command = [
        "nice",
        f"--adjustment={_FIRST}",
        *program("/usr/bin/prometheus", place, DISK_MIB),
        *given,
        *own,
        "--storage.tsdb.path=/mnt/data",
    ]
    return Part(command, place / "log")


def _rules(groups: Sequence[Mapping[str, Any]], factor: float) -> list[dict[str, Any]]:
    """All rules, and before those of each group one that tells what they know: they are evaluated in their order."""
    own = {"record": EVALUATED, "expr": "timestamp(up)"}
    return [
        {**group, "rules": [{**own, "labels": {"evaluated": group["name"]}}, *group["rules"]]}
        for group in faster_groups(groups, factor)
    ]


def _configured(
    role: Mapping[str, Any], lane: Sequence[Replay], port: int, pages: int, alertmanager: int
) -> dict[str, Any]:
    """The role's configuration, without TLS, for the hosts of a lane."""
    interval = f"{INTERVAL_S * 1000:.0f}ms"
    each = {"scrape_interval": interval, "scrape_timeout": interval}
    jobs = []
    for job in role["scrape_configs"]:
        targets = [
            {
                "targets": [f"127.0.0.1:{pages}"],
                "labels": {**labels, "__metrics_path__": f"/{replay.number}/{name}/{host}"},
            }
            for replay in lane
            for (name, host), labels in replay.hosts().items()
            if name == job["job_name"]
        ]
        kept_options = {key: value for key, value in job.items() if key not in _OPTIONS}
        jobs.append({**kept_options, **each, "static_configs": targets})
    told = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
    return {
        "global": {**each, "evaluation_interval": interval, "external_labels": {"fleet": str(port)}},
        "rule_files": ["/mnt/rules/*.yml"],
        "alerting": {"alertmanagers": told},
        "scrape_configs": jobs,
    }


@contextmanager
def _pages(replays: Mapping[int, Replay]) -> Iterator[int]:
    """Answers /CASE/JOB/HOST on a port of loopback; the port."""
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                number, job, host = request.split()[1].decode().strip("/").split("/")
                text = page(replays[int(number)], job, host, time.time())
                body, status = (text or "").encode(), "503 Gone" if text is None else "200 OK"
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024))

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FIRST)
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()
