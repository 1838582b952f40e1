"""`gpu-burnin report` for a folder of many hosts: who is held, and why; what cannot be believed hides nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.api.evidence import Statement
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.held import is_fleet, read_fleet
from gpu_burnin.node import report_head, reports
from gpu_burnin.node.signing import write_evidence
from gpu_burnin.node.store import Store
from gpu_burnin.report import model
from gpu_burnin.report.file_names import REPORT, REPORT_HTML
from tests.support.report_helpers import HARDWARE
from tests.support.sample_reports import doubtful_8, faulty_8, healthy_1

Put = Callable[..., Path]


def data(report: model.Report, **changes: Any) -> bytes:
    """A report file as a run writes it, unchecked: the schema takes its time."""
    return (json.dumps({**model.document(report), **changes}, indent=1) + "\n").encode()


@pytest.fixture(scope="module")
def written() -> dict[str, bytes]:
    """A report file of each verdict."""
    samples = {"PASS": healthy_1, "FAIL": faulty_8, "INCONCLUSIVE": doubtful_8}
    return {verdict: data(make()[0]) for verdict, make in samples.items()}


@pytest.fixture
def put(tmp_path: Path, written: dict[str, bytes]) -> Put:
    """Keeps the report of a host as site.yml does."""

    def keep(host: str, verdict: str = "PASS", name: str = REPORT) -> Path:
        path = tmp_path / "reports" / host / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written[verdict])
        return path

    return keep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the hosts' folders are."""
    return tmp_path / "reports"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], env={"COLUMNS": "100"})


def test_the_worst_comes_first_and_each_reason_names_its_hosts(put: Put, folder: Path) -> None:
    for host, verdict in (("gpu-2", "INCONCLUSIVE"), ("gpu-10", "FAIL"), ("gpu-9", "FAIL"), ("gpu-1", "PASS")):
        put(host, verdict)
    fleet = read_fleet(folder)
    assert [host.host for host in fleet.hosts] == ["gpu-9", "gpu-10", "gpu-2", "gpu-1"]
    assert fleet.verdicts == {"FAIL": 2, "INCONCLUSIVE": 1, "PASS": 1}
    assert fleet.reasons["FAIL", "XID_FATAL"] == ("gpu-9", "gpu-10")
    assert ("FAIL", "GPU_BUSY") not in fleet.reasons
    shown = call(folder)
    assert shown.exit_code == 1
    assert shown.stdout.startswith(
        "4 hosts: 2 FAIL, 1 INCONCLUSIVE, 1 PASS; tested 2026-01-02 03:04 to 2026-01-02 03:08"
    )
    assert "1 on simulated hardware" in " ".join(shown.stdout.split())
    assert re.search(r"XID_FATAL +FAIL +2 +gpu-9, gpu-10\n", shown.stdout)
    assert re.search(r"gpu-2 +INCONCLUSIVE \(simulated\) +2026-01-02 03:04 +quick +retest\n", shown.stdout)
    assert "SLOW on GPU 2: gemm_fp8_throughput is 1015 TFLOP/s" in shown.stdout
    assert "gpu-1 " not in shown.stdout, "who passed is counted"
    lines = [line for line in shown.stdout.splitlines() if str(folder) not in line]
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize(
    ("verdicts", "exit_code"),
    [(["PASS"], 0), (["PASS", "INCONCLUSIVE"], 3), (["PASS", "FAIL"], 1), (["FAIL", "INCONCLUSIVE"], 1)],
)
def test_the_exit_code_is_that_of_the_worst(verdicts: list[str], exit_code: int, put: Put, folder: Path) -> None:
    for number, verdict in enumerate(verdicts):
        put(f"gpu-{number}", verdict)
    assert call(folder).exit_code == exit_code


def test_passes_on_simulated_hardware_are_no_fleet_that_passed(put: Put, folder: Path) -> None:
    report = put("gpu-1")
    data = report.read_bytes()
    assert b'"simulated": false' in data
    report.write_bytes(data.replace(b'"simulated": false', b'"simulated": true'))
    assert call(folder).exit_code == 3


def test_a_fleet_that_passed_has_nobody_to_name(put: Put, folder: Path) -> None:
    put("gpu-1")
    assert call(folder).stdout.splitlines()[1:] == []


def changed(path: Path, statement: Statement, host_key: Path) -> str:
    signed = replace(statement, report_sha256=hashlib.sha256(b"another").hexdigest())
    write_evidence(path.parent, signed, HARDWARE, host_key)
    return "this is not the report that was signed"


def cut(path: Path, *_: object) -> str:
    path.write_bytes(path.read_bytes()[:-200])
    return "this is not a whole report"


def cut_in_its_head(path: Path, *_: object) -> str:
    path.write_bytes(path.read_bytes()[:100])
    return "this is not a whole report"


def of_another_version(path: Path, *_: object) -> str:
    path.write_bytes(path.read_bytes().replace(b"muster-report/v1.", b"muster-report/v2.", 1))
    return "this is a report of version 2"


def without_a_verdict(path: Path, *_: object) -> str:
    path.write_bytes(path.read_bytes().replace(b'"verdict": "PASS"', b'"verdict": "GOOD"', 1))
    return "not a valid report: verdict: none of 'PASS', 'FAIL', 'INCONCLUSIVE': 'GOOD'"


def a_folder(path: Path, *_: object) -> str:
    path.unlink()
    path.mkdir()
    return "cannot be read as a report (Is a directory)"


def gone(path: Path, *_: object) -> str:
    path.unlink()
    return "there is no report; test the host"


@pytest.mark.parametrize(
    "spoil", [changed, cut, cut_in_its_head, of_another_version, without_a_verdict, a_folder, gone]
)
def test_a_report_that_cannot_be_believed_is_told_and_hides_no_other(
    spoil: Callable[[Path, Statement, Path], str], put: Put, folder: Path, statement: Statement, host_key: Path
) -> None:
    put("gpu-1")
    says = spoil(put("gpu-2"), statement, host_key)
    spoiled, good = read_fleet(folder).hosts
    assert (spoiled.host, spoiled.verdict, good.verdict) == ("gpu-2", "UNREADABLE", "PASS")
    assert says in spoiled.problem and "gpu-2" in spoiled.problem
    shown = call(folder)
    assert shown.exit_code == 3
    assert says in " ".join(shown.stdout.split())


def test_a_signed_report_of_a_host_is_believed(
    put: Put, folder: Path, written: dict[str, bytes], statement: Statement, host_key: Path
) -> None:
    path = put("gpu-1")
    signed = replace(statement, report_sha256=hashlib.sha256(written["PASS"]).hexdigest())
    write_evidence(path.parent, signed, HARDWARE, host_key)
    assert read_fleet(folder).verdicts == {"PASS": 1}


def test_a_held_host_whose_report_does_not_fit_says_where(put: Put, folder: Path) -> None:
    path = put("gpu-1", "FAIL")
    path.write_bytes(path.read_bytes().replace(b'"severity": "FAIL"', b'"severity": "BAD"'))
    (host,) = read_fleet(folder).hosts
    assert host.verdict == "UNREADABLE"
    assert host.problem.startswith(f"{path}: not a valid report: reasons[0].severity: none of")
    assert isinstance(call(path).exception, model.ReportError)


def test_runs_that_gpu_burnin_host_kept_count_by_the_newest(put: Put, folder: Path) -> None:
    put("198.51.100.7", "PASS", "20260102T030405Z-000001.json")
    newest = put("198.51.100.7", "FAIL", "20260103T030405Z-000002.json")
    (newest.parent / "20260103T030405Z-000002.html").write_text("page")
    (newest.parent / "notes.json").write_text("{}")
    (host,) = read_fleet(folder).hosts
    assert (host.verdict, host.path, host.page) == ("FAIL", str(newest), str(newest.with_suffix(".html")))
    assert reports.find(newest.parent) == newest, "report HOST shows the same"


@pytest.mark.parametrize(("finished", "newest"), [("2027", REPORT), ("2025", "20260102T030405Z-000001.json")])
def test_where_both_keep_reports_the_one_that_ended_last_counts(
    finished: str, newest: str, put: Put, folder: Path, written: dict[str, bytes]
) -> None:
    put("gpu-1", "PASS", "20260102T030405Z-000001.json")
    path = put("gpu-1")
    path.write_bytes(written["PASS"].replace(b'"finished_at": "2026', f'"finished_at": "{finished}'.encode(), 1))
    assert [Path(host.path).name for host in read_fleet(folder).hosts] == [newest]


def test_a_folder_of_hosts_is_told_from_a_run_and_from_a_nodes_state(put: Put, folder: Path, tmp_path: Path) -> None:
    run_dir = put("gpu-1").parent
    assert is_fleet(folder)
    assert not is_fleet(run_dir)
    assert not is_fleet(tmp_path), "no reports one folder down"
    assert not is_fleet(folder / "none")
    store = Store(tmp_path / "state")
    kept = store.runs_dir / "20260102T030405Z-000001"
    kept.mkdir(parents=True)
    (kept / REPORT).write_bytes((run_dir / REPORT).read_bytes())
    assert not is_fleet(store.root)
    assert not is_fleet(store.runs_dir), "runs of one node are no hosts"


def test_only_a_folder_of_hosts_has_a_page(put: Put, tmp_path: Path) -> None:
    shown = call(put("gpu-1"), "--html", tmp_path / "page.html")
    assert (shown.exit_code, (tmp_path / "page.html").exists()) == (2, False)
    assert "--html is for a folder of many hosts" in shown.stderr


def test_json_has_every_host_and_nothing_else_is_printed(put: Put, folder: Path) -> None:
    put("gpu-1")
    put("gpu-2", "FAIL")
    shown = call(folder, "--json")
    told = json.loads(shown.stdout)
    assert told["schema"] == "muster-held/v1"
    assert told["verdicts"] == {"FAIL": 1, "UNREADABLE": 0, "INCONCLUSIVE": 0, "PASS": 1}
    assert [host["host"] for host in told["hosts"]] == ["gpu-2", "gpu-1"]
    held = told["hosts"][0]
    assert held["order"]["sentence"] == "Keep the node out until a person has looked at it"
    assert held["reasons"][0]["units"] == ["GPU 2"]
    assert {"severity": "FAIL", "code": "XID_FATAL", "hosts": ["gpu-2"]} in told["reasons"]


def test_of_many_held_hosts_those_alike_are_one_row(put: Put, folder: Path) -> None:
    for number in range(1, 46):
        put(f"gpu-{number:02}", "INCONCLUSIVE")
    put("gpu-46", "FAIL")
    text = " ".join(call(folder).stdout.split())
    assert "hosts verdict action reasons, and which hosts 1 FAIL hold" in text
    assert "45 INCONCLUSIVE (simulated) retest INTERRUPTED, XID_SOURCE_MISSING, SIMULATED: gpu-01 to gpu-45" in text


def test_the_page_leads_to_the_pages_beside_it_and_runs_nothing(put: Put, folder: Path) -> None:
    odd = "x<b>&'\"javascript:"
    for host in ("gpu-1", odd):
        put(host, "FAIL").with_name(REPORT_HTML).write_text("page")
    put("gpu-3", "INCONCLUSIVE")
    put("gpu-4")
    page = folder / "held.html"
    shown = call(folder, "--html", page)
    assert (shown.exit_code, shown.stderr) == (1, f"page: {page}\n")
    text = page.read_text()
    assert '<a href="gpu-1/report.html">gpu-1</a>' in text
    assert "x%3Cb%3E%26%27%22javascript%3A/report.html" in text
    assert "<b>&" not in text and "<script" not in text
    assert "default-src 'none'" in text
    assert "<b>gpu-3</b>" in text, "no page lies beside it"
    assert "simulated</span>" in text
    assert re.search(r"Next:</b> Keep the node out until a person has looked at it\.", text)
    elsewhere = folder.parent / "held.html"
    call(folder, "--html", elsewhere)
    assert 'href="reports/gpu-1/report.html"' in elsewhere.read_text()


def test_a_page_that_cannot_be_written_is_said(put: Put, folder: Path) -> None:
    put("gpu-1")
    shown = call(folder, "--html", folder / "none" / "held.html")
    assert isinstance(shown.exception, GpuBurninError)
    assert "give --html another place" in str(shown.exception)


def test_of_a_pass_only_the_head_is_read(put: Put, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("gpu-1")
    monkeypatch.setattr(reports, "read", lambda path: pytest.fail(f"{path} was read whole"))
    assert read_fleet(folder).verdicts == {"PASS": 1}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_report_that_was_written_anew_says_the_same(
    indent: int | None, put: Put, folder: Path, written: dict[str, bytes]
) -> None:
    for host, verdict in (("gpu-1", "FAIL"), ("gpu-2", "PASS")):
        put(host, verdict)
    before = read_fleet(folder).hosts
    for host, verdict in (("gpu-1", "FAIL"), ("gpu-2", "PASS")):
        put(host).write_text(json.dumps(json.loads(written[verdict]), indent=indent))
    assert read_fleet(folder).hosts == before


def test_a_held_host_is_read_without_what_nobody_asks_for(
    put: Put, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("gpu-1", "FAIL")
    monkeypatch.setattr(report_head, "parse_json", lambda _: pytest.fail("all of it was parsed"))
    assert read_fleet(folder).hosts[0].order is not None


def test_letters_of_several_bytes_may_end_the_part_that_is_read(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put("gpu-1")
    content = path.read_bytes().replace(b'"node": "', '"node": "\N{LATIN SMALL LETTER U WITH DIAERESIS}'.encode(), 1)
    path.write_bytes(content)
    before = report_head.read_head(path)
    inside = content.index(b'"reasons"') + 400
    path.write_bytes(content[:inside] + b'"\xc3\xbc"' + content[inside:])
    monkeypatch.setattr(report_head, "_HEAD_BYTES", inside + 2)
    assert report_head.read_head(path) == before
