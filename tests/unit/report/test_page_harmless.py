"""The page: nothing is loaded from elsewhere, nothing in a report can inject."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import coverage_class
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.telemetry.findings import Counter, GpuEvent, Source
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import JSON, Coverage, Gpu, Measurement, Notice
from tests.support import coverages
from tests.support.clocks import PATIENCE_S
from tests.support.page_reader import Parsed, page_of, problems
from tests.support.sample_nodes import SAMPLES
from tests.support.sample_reports import Sample, healthy_1, sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_page_loads_nothing_and_runs_nothing(name: str) -> None:
    assert problems(page_of(SAMPLES[name]())) == []


@pytest.mark.parametrize(
    "harm",
    [
        "<script>1</script>",
        "<p onclick=x></p>",
        "<p style=x></p>",
        "<a href=http://x.example/>x</a>",
        "<img src=x>",
        "<a href=' JavaScript:x'>x</a>",
        "<link rel=stylesheet href=//x.example/x.css>",
        "<style>@import url(x)</style>",
    ],
)
def test_harm_would_be_found(harm: str) -> None:
    page = page_of(healthy_1())
    place = "<style>" if harm.startswith("<style>") else "<main>"
    assert problems(page.replace(place, f"{harm}{place}", 1))


def test_policy_allows_the_one_style_sheet_and_nothing_else() -> None:
    page = page_of(healthy_1())
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(a["content"] for _, a in Parsed(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


EVIL = "</style></title><script>alert(1)</script><img src=//x.example onerror=1> \" ' onmouseover=1 {{ 7*7 }} ]]> &lt;"


def spoiled(value: Any) -> Any:
    """The same with every text in it replaced, but those by which GPUs find each other."""
    if isinstance(value, dict):
        return {key: spoiled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spoiled(item) for item in value]
    return EVIL if isinstance(value, str) and not value.startswith("GPU-") else value


def _spoiled(check: str, coverage: Coverage) -> Coverage:
    return from_json(coverage_class(check), spoiled(to_json(coverage)))


def hostile() -> Sample:
    """A GPU and a driver that try to write into the page, in every field that holds text."""

    def change(seen: Observations) -> Observations:
        uuid = seen.gpus[0].uuid
        reason = make_reason("SLOW", "gemm", EVIL, gpu=uuid, details={EVIL: EVIL, "list": [EVIL]})
        event = XidEvent(31, seen.gpus[0].pci_bus_id, 1, EVIL, int(5100e6), False)
        results = tuple(
            replace(
                result,
                measurements=(*result.measurements, Measurement(EVIL, 1.0, EVIL, 2.0, EVIL, "derived")),
                errors=({EVIL: EVIL, "offset_bytes": 1, "bit_lanes": [3]},),
                series=tuple(replace(series, name=EVIL, unit=EVIL) for series in result.series),
            )
            for result in seen.results
        )
        return replace(
            seen,
            extra=(reason,),
            results=results,
            selftests=tuple(replace(test, fault=EVIL, scope=EVIL, detected=False) for test in seen.selftests),
            kernel_log=replace(seen.kernel_log, source=EVIL, events=(event,)),
            telemetry=replace(
                seen.telemetry,
                counters=(Counter(uuid, EVIL, EVIL, 1, 2), Counter(uuid, "x", "1", None, None, EVIL)),
                sources=(Source(EVIL, uuid, False, EVIL),),
                events=(GpuEvent(uuid, EVIL, 1, 1, 5001.0),),
            ),
            left_out=(EVIL,),
        )

    def rename(gpu: Gpu) -> Gpu:
        return replace(gpu, name=EVIL, serial=EVIL, vbios=EVIL, sku=EVIL, pci_bus_id=gpu.pci_bus_id)

    report, series = sample(count=2, change=change, rename=rename, notices=(Notice("X", EVIL, EVIL),))
    checks = [replace(check, coverage=_spoiled(check.name, check.coverage)) for check in report.checks]
    ends = [gpu.uuid for gpu in report.gpus]
    blame: dict[str, JSON] = {"kind": "link", "gpus": ends, "problem": EVIL, "transfers": [[*ends, "write"]]}
    tests = [{"name": EVIL, "result": EVIL, "gpus": [EVIL], "message": EVIL}]
    opinion = coverages.coverage("dcgm", release=EVIL, tests=tests)
    spoiled_report = replace(
        report,
        node=EVIL,
        run_id=EVIL,
        host=replace(report.host, hostname=EVIL, kernel=EVIL, dmi={EVIL: EVIL}),
        software={**report.software, EVIL: EVIL},
        warnings=(*report.warnings, Notice("X", "nvlink", EVIL, None, {"attributed": blame})),
        checks=(*checks, replace(checks[0], name="dcgm", coverage=opinion)),
    )
    return spoiled_report, series


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    page = page_of(hostile())
    assert problems(page) == []
    shown = Parsed(page).text
    assert EVIL.replace("&lt;", "<") not in page
    assert EVIL in shown
    assert "{{ 7*7 }}" in shown
    for section in (
        "Between the GPUs",
        "Between host and GPU",
        "All GPUs together",
        "Power and waves",
        "second opinion",
    ):
        assert section in shown


@contextmanager
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port that notes the first bytes of every connection."""
    asked: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(200))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def browse(path: Path, home: Path) -> tuple[str, str, list[bytes]]:
    """The document as Chromium made it, what its console said, and what it asked of x.example."""
    with listener() as (port, asked):
        done = subprocess.run(
            [
                str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}",
                "--disable-background-networking", "--disable-component-update", "--no-first-run",
                f"--host-resolver-rules=MAP x.example:80 127.0.0.1:{port}, MAP * ~NOTFOUND",
                "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )  # fmt: skip
    console = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return done.stdout, console, asked


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_shows_it_without_a_request_or_a_complaint(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(hostile()))
    dom, console, asked = browse(path, tmp_path / "home")
    assert "Why not PASS" in dom
    assert (console, asked) == ("", [])
    # The same look at a page that does load something sees both: the request and the policy's complaint.
    path.write_text("<p>Why not PASS</p><img src='http://x.example/x.png'>")
    assert browse(path, tmp_path / "home")[2]
    path.write_text(page_of(healthy_1()).replace("<main>", "<main><script>1</script>", 1))
    assert "Content Security Policy" in browse(path, tmp_path / "home")[1]
