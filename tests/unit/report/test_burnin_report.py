"""The report: what is built fits the schema, what does not fit is refused, and a person can read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

import jsonschema
import pytest

from gpu_burnin.hardware import load_reasons, make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.judge.verdict import judge
from gpu_burnin.node import reports
from gpu_burnin.report import build, compare, html, model, openmetrics, text
from gpu_burnin.report.memory import memory_rows
from gpu_burnin.report.series import build_series
from gpu_burnin.system.codec import json_fields, to_json
from gpu_burnin.telemetry.findings import Counter, GpuEvent, Source, TelemetryFindings
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import Gpu, Measurement, Notice, Verdict
from tests.support.made_reports import without_check
from tests.support.run_helpers import GPUS, RUN, covered, exchanged, healthy, plan, result, without
from tests.support.sample_nodes import SAMPLES


def report_of(seen: Observations, run: build.RunFacts = RUN) -> model.Report:
    return build.build(run, seen, judge(seen))


def advice(code: str) -> str | None:
    return load_reasons()[code].what_to_do


@pytest.fixture
def faulty() -> model.Report:
    """A lost GPU, an XID, an injected fault, a number that is none, something left out."""
    event = XidEvent(79, "0000:1c:00.0", None, "NVRM: Xid (PCI:0000:1c:00): 79, fallen off", 5, False)
    seen = without(healthy(plan(inject=("gemm:nan",))), "hbm", "GPU-1")
    odd = replace(result("gemm", "GPU-0"), measurements=(Measurement("rate", float("nan"), "B/s"),))
    seen = exchanged(seen, odd)
    lost = make_reason("GPU_LOST", "state", "GPU 1 is lost", gpu="GPU-1", details={"nvml": float("inf")})
    log = replace(seen.kernel_log, events=(event,))
    return report_of(replace(seen, extra=(lost,), kernel_log=log, left_out=("hbm",)))


def test_schema_is_valid_2020_12() -> None:
    schema = json.loads(model.schema_text())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def unlike(kind: Any, form: dict[str, Any], defs: dict[str, Any], place: str) -> Iterator[str]:
    """Where the schema has not the fields of the dataclass that is written and read by it."""
    form = defs[form["$ref"].rpartition("/")[2]] if "$ref" in form else form
    if get_origin(kind) is tuple:
        yield from unlike(get_args(kind)[0], form["items"], defs, f"{place}[]")
    elif is_dataclass(kind) and "properties" in form:
        assert form["additionalProperties"] is False, place
        fields = {field.json_name: field for field in json_fields(kind)}
        always = {name for name, field in fields.items() if not field.omit_default}
        derived = {"delta"} if kind is Counter else set()
        yield from (f"{place}.{name}" for name in (always - form["properties"].keys()))
        yield from (f"{place}.{name}" for name in (form["properties"].keys() - fields.keys() - derived))
        for name in fields.keys() & form["properties"].keys():
            yield from unlike(fields[name].hint, form["properties"][name], defs, f"{place}.{name}")


def test_schema_is_closed_and_has_the_fields_of_the_dataclasses() -> None:
    schema = json.loads(model.schema_text())
    assert [*unlike(model.Report, schema, schema["$defs"], "report")] == []
    del schema["$defs"]["gpu"]["properties"]["vbios"], schema["properties"]["selftest"]["items"]["properties"]["real"]
    schema["properties"]["coverage"]["properties"]["units"]["items"]["properties"]["novelty"] = {}
    assert sorted(unlike(model.Report, schema, schema["$defs"], "report")) == [
        "report.coverage.units[].novelty", "report.gpus[].vbios", "report.selftest[].real",
    ]  # fmt: skip
    # What came with 1.1 may be missing, or reports of 1.0 could not be read.
    assert set(schema["properties"]) - set(schema["required"]) == {"warnings"}


def test_healthy_report_is_valid_and_says_so(tmp_path: Path) -> None:
    report = report_of(healthy())
    path = tmp_path / "report.json"
    path.write_bytes(model.to_bytes(report))
    assert reports.load(path) == report
    assert reports.load(tmp_path) == report
    assert report.verdict == "PASS"
    assert report.software["cupy"] == "14.2.0"
    units = {(unit.check, unit.gpu): unit for unit in report.coverage.units}
    assert units["gemm", "GPU-0"].missed_fault_rate_upper95_per_s == pytest.approx(0.25)
    assert units["state", None].missed_fault_rate_upper95_per_s is None
    assert model.NotRun("dcgm", None, "optional, and not asked for") in report.coverage.not_run


def test_faulty_report_is_valid(faulty: model.Report) -> None:
    model.to_bytes(faulty)
    assert faulty.verdict == "FAIL"
    checks = model.document(faulty)["checks"]
    odd = next(check for check in checks if (check["name"], check["gpu"]) == ("gemm", "GPU-0"))
    assert odd["measurements"][0]["value"] is None
    assert faulty.telemetry.kernel_log.events[0].gpu == "GPU-1"
    gaps = [(gap.check, gap.gpu) for gap in faulty.coverage.not_run][:2]
    assert gaps == [("hbm", "GPU-1"), ("hbm", None)]


def test_gpu_that_was_not_tested_is_listed_without_a_pass() -> None:
    found = replace(RUN.found, gpus=(*GPUS, Gpu(2, "", "", "0000:1d:00.0", "", "", 0, "")))
    report = report_of(healthy(), replace(RUN, found=found))
    model.to_bytes(report)
    assert [gpu.verdict for gpu in report.gpus] == ["PASS", "PASS", "INCONCLUSIVE"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("extra",), 1),
        (("verdict",), "GOOD"),
        (("sequence",), 0),
        (("started_at",), "2026-01-02 03:04:05"),
        (("host", "machine_id"), "x"),
        (("host", "uptime"), 1),
        (("checks", 0, "seconds"), -1),
        (("checks", 0, "note"), "x"),
        (("gpus", 0, "memory_bytes"), "many"),
        (("reasons",), [{"code": "X"}]),
        (("telemetry", "kernel_log", "gaps"), None),
        (("plan_sha256",), "00"),
    ],
)
def test_what_does_not_fit_the_schema_is_not_written(path: tuple[Any, ...], value: object) -> None:
    report = model.document(report_of(healthy()))
    place: Any = report
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(model.ReportError, match="not a valid report"):
        model.validate(report)


def test_warnings_counters_and_sources_are_in_the_report() -> None:
    counters = (Counter("GPU-0", "pcie_replays", "1", 3, 10), Counter("GPU-1", "pcie_replays", "1", None, 4, "late"))
    findings = TelemetryFindings(
        counters=counters,
        sources=(Source("nvml_samples", "GPU-0", False, "ended"),),
        events=(GpuEvent("GPU-1", "xid", 48, 2, 7.5),),
    )
    seen = replace(healthy(), telemetry=findings)
    judged = replace(judge(seen), notices=(Notice("SLOW", "gemm", "a bit slow", "GPU-0", {"x": 1}),))
    report = build.build(RUN, seen, judged)
    model.to_bytes(report)
    told = model.document(report)
    assert told["warnings"] == [
        {"code": "SLOW", "check": "gemm", "message": "a bit slow", "gpu": "GPU-0", "evidence": {"x": 1}}
    ]
    telemetry = told["telemetry"]
    assert [counter["delta"] for counter in telemetry["counters"]] == [7, None]
    assert telemetry["counters"][1]["why"] == "late"
    assert telemetry["sources"] == [{"name": "nvml_samples", "gpu": "GPU-0", "alive": False, "detail": "ended"}]
    assert telemetry["events"] == [{"gpu": "GPU-1", "kind": "xid", "data": 48, "count": 2, "monotonic_us": 7500000}]
    shown = text.render(report, advice)
    assert "SLOW on GPU 0: a bit slow" in shown
    assert "0 of 1 sources answered; silent: nvml_samples on GPU 0" in shown
    assert "Counters: pcie_replays +7 on GPU 0; 1 could not be read" in shown


def test_coverage_is_told_in_words_and_for_each_gpu() -> None:
    report = report_of(healthy())
    covered = {(unit.check, unit.gpu): unit.covered for unit in report.coverage.units}
    assert covered["hbm", "GPU-0"].startswith("149 GiB of 150 GiB (99.3%)")
    per_gpu = report.coverage.gpus
    assert [gpu.gpu for gpu in per_gpu] == ["GPU-0", "GPU-1"]
    seconds = sum(check.seconds for check in report.checks if check.gpu == "GPU-0")
    assert per_gpu[0].seconds == pytest.approx(seconds)
    assert per_gpu[0].missed_fault_rate_upper95_per_s == pytest.approx(3 / seconds)


def test_text_names_a_gpu_once() -> None:
    said_twice = make_reason("SLOW", "gemm", "GPU 0 (0000:1b:00.0 GPU-0): too slow", gpu="GPU-0")
    of_another = make_reason("SLOW", "gemm", "GPU 1 (0000:1c:00.0 GPU-1): its peer", gpu="GPU-0")
    assert "SLOW on GPU 0: too slow" in text.render(report_of(replace(healthy(), extra=(said_twice,))), advice)
    assert "SLOW on GPU 0: GPU 1: its peer" in text.render(report_of(replace(healthy(), extra=(of_another,))), advice)


@pytest.mark.parametrize("change", [{"sms_total": "132"}, {"novelty": 1}, {"verified_parts_s": {"fp32": []}}])
def test_coverage_that_is_not_of_its_check_is_not_written(change: dict[str, Any]) -> None:
    report = model.document(report_of(healthy()))
    check = next(check for check in report["checks"] if check["name"] == "sm")
    model.validate(report)
    check["coverage"] = {}  # it came to no end
    model.validate(report)
    check["coverage"] = {**to_json(covered("sm")), **change}
    with pytest.raises(model.ReportError, match="coverage"):
        model.validate(report)


def as_version_1_0(report: model.Report) -> dict[str, Any]:
    """The report as version 1.0 wrote it."""
    old = model.document(report)
    old["schema"] = "muster-report/v1.0"
    del old["warnings"], old["telemetry"]["sources"], old["telemetry"]["events"], old["coverage"]["gpus"]
    for unit in old["coverage"]["units"]:
        del unit["covered"]
    for check in old["checks"]:
        for item in check["measurements"]:
            item.pop("floor_confidence", None)
    return old


def test_report_of_version_1_0_is_still_read_and_shown(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(as_version_1_0(report_of(healthy()))))
    report = reports.load(tmp_path)
    assert (report.warnings, report.telemetry.sources, report.coverage.gpus) == ((), (), ())
    assert text.render(report, advice).startswith("VERDICT  PASS")


def load_changed(tmp_path: Path, **change: object) -> model.Report:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**model.document(report_of(healthy())), **change}))
    return reports.load(path)


def test_report_of_version_1_1_is_still_read_and_shown(tmp_path: Path) -> None:
    """A kept report of a simulated run, written when the coverage of a check had no form of its own."""
    kept = Path(__file__).parents[2] / "support/recordings/report-1.1.json"
    series = build_series((), TelemetryFindings(), 0.0)
    report = reports.load(kept)
    assert text.render(report, advice).startswith("VERDICT  PASS")
    assert [row.covered for row in memory_rows(report)] == ["64 KiB of host memory, no GPU memory"] * 2
    assert b"gpu_burnin_memory_covered_bytes{" in openmetrics.to_openmetrics(report)
    document = json.loads(kept.read_text())
    for check in document["checks"]:
        check["coverage"].pop("rounds", None)  # what it does not say is left out, not made up
    (tmp_path / "report.json").write_text(json.dumps(document))
    older = reports.load(tmp_path)
    assert [row.covered for row in memory_rows(older)] == ["not said"] * 2
    assert "</html>" in html.render(older, series)
    assert compare.compare(report, older).changes == ()


def test_another_minor_version_is_read_as_far_as_known(tmp_path: Path) -> None:
    assert load_changed(tmp_path, schema="muster-report/v1.9", novelty={"a": 1}).verdict == "PASS"
    with pytest.raises(model.ReportError, match="verdict"):
        load_changed(tmp_path, schema="muster-report/v1.9", verdict=None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "muster-report/v2.0"}, "version 2, and this gpu-burnin reads version 1"),
        ({"schema": "muster-evidence/v1"}, "not a burn-in report"),
        ({"schema": None}, "not a burn-in report"),
        ({"novelty": 1}, "novelty"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(change: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(model.ReportError) as caught:
        load_changed(tmp_path, **change)
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', "\x00", "[" * 100000])
def test_no_report_at_all(content: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(model.ReportError):
        reports.load(tmp_path)
    with pytest.raises(model.ReportError, match="there is no report"):
        reports.load(tmp_path / "none")


def test_state_directory_stands_for_its_newest_report(tmp_path: Path) -> None:
    tmp_path = tmp_path / "state"
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    (tmp_path / "latest").symlink_to("runs/1")
    with pytest.raises(model.ReportError, match=f"{tmp_path}: no run has left a report there; run gpu-burnin run"):
        reports.find(tmp_path)
    (run / "report.json").write_text("{}")
    with pytest.raises(model.ReportError, match=f"the newest below it is that of {tmp_path}: give that folder"):
        reports.find(tmp_path.parent)
    assert reports.find(tmp_path).samefile(run / "report.json")


def unwrapped(shown: str) -> str:
    """The text without its line breaks."""
    return " ".join(shown.split())


def test_text_of_a_pass() -> None:
    shown = text.render(report_of(healthy()), advice)
    assert shown.startswith("VERDICT  PASS\nACTION   Nothing to do\n")
    assert "No fault was seen." in shown
    # The rule of three: 3 / 12 s for one check, 3 / 84 s for all seven.
    assert "Would see a fault coming every 4 s (sm), 4 s (gemm), 4 s (hbm), 4 s (pcie)" in unwrapped(shown)
    assert "28 s (all checks)" in unwrapped(shown)
    assert re.search(r"Self-test: (\d+) of \1 injected", shown)


def test_text_of_a_fail_leads_with_reasons_and_advice(faulty: model.Report) -> None:
    shown = text.render(faulty, advice, width=120)
    lines = shown.splitlines()
    assert lines[0].startswith("VERDICT  FAIL   (faults injected: gemm:nan)")
    order = "Run again without --inject. Only if the fault was not injected: power the machine off and on, then"
    assert f"ACTION {order} `gpu-burnin run`" in unwrapped("\n".join(lines[1:3]))
    assert "GPU_LOST" in shown
    assert "XID 79" in shown
    assert f"To do: {advice('GPU_LOST')}" in unwrapped(shown)
    assert "Not run: hbm on GPU 1 (no result)" in unwrapped(shown)
    assert len(lines) <= 45


def test_text_shows_what_an_interrupted_run_left_out_and_a_log_that_was_not_read(faulty: model.Report) -> None:
    gaps = tuple(model.NotRun("gemm", gpu.uuid, "interrupted") for gpu in faulty.gpus)
    interrupted = replace(without_check(faulty, "gemm"), coverage=replace(faulty.coverage, not_run=gaps))
    event = model.LoggedXid(79, False, "0000:43:00.0", None, None, 5, "word " * 40, own=False)

    def cut(**log: Any) -> model.Report:
        kernel_log = replace(faulty.telemetry.kernel_log, **log)
        return replace(interrupted, telemetry=replace(faulty.telemetry, kernel_log=kernel_log))

    shown = text.render(cut(alive=False, events=(event,) * 5), advice)
    assert re.search(r"GPU  verdict .* gemm", shown)
    assert "NOT readable): 5 XIDs seen, more may be missing" in unwrapped(shown)
    assert "... and 2 more" in shown
    assert shown.count("word") == 3 * 40, "the kernel's words wrap and are not cut"
    assert "NOT readable): unknown, at least 1 message lost" in unwrapped(
        text.render(cut(alive=False, events=(), gaps=1), advice)
    )
    gaping = cut(alive=True, events=(), gaps=3910)
    lost = "no XID seen, at least 3,910 messages lost"
    assert f"): {lost}" in unwrapped(text.render(gaping, advice))
    assert lost in html.render(gaping, build_series((), TelemetryFindings(), 0.0))


def test_text_fits_one_screen_however_much_is_wrong() -> None:
    reasons = tuple(make_reason("SLOW", "gemm", f"slow {i}", gpu="GPU-0") for i in range(50))
    shown = text.render(report_of(replace(healthy(), extra=reasons)), advice)
    assert "FAIL SLOW on GPU 0: slow 0 (and 49 more)" in shown
    assert len(shown.splitlines()) <= 45
    assert shown.count("To do:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_text_keeps_to_its_width_and_says_the_same_in_each(name: str) -> None:
    report = SAMPLES[name]()[0]
    shown = {width: text.render(report, advice, width) for width in (60, 80, 120, 200)}
    for width, told in shown.items():
        assert all(len(line) <= width for line in told.splitlines()), width
    assert len(shown[120].splitlines()) <= 60
    # A narrow table repeats its first column; no word is missing or cut.
    words = {width: set(told.split()) for width, told in shown.items()}
    assert words[60] == words[80] == words[120] == words[200]


def test_columns_that_do_not_fit_follow_below_beside_the_gpus() -> None:
    report = SAMPLES["faulty-8"]()[0]
    headings = [line.split() for line in text.render(report, advice, 80).splitlines() if line.startswith("  GPU  ")]
    assert [heading[0] for heading in headings] == ["GPU", "GPU"]
    assert headings[0][1:] == ["verdict", "state", "sm", "gemm", "hbm", "pcie", "nvlink", "nccl", "power", "telem"]
    assert headings[1][1:] == ["PCI", "serial", "uuid"]
    assert sum(line.startswith("  GPU  ") for line in text.render(report, advice, 120).splitlines()) == 1


def test_text_of_every_verdict_has_no_loose_ends() -> None:
    nothing = replace(healthy(replace(plan(), gpus=(), checks=())), gpus=(), selftests=(), interrupted=True)
    shown = text.render(report_of(nothing, replace(RUN, found=replace(RUN.found, gpus=()))), lambda _: None)
    assert "GPUs: none" in shown
    assert "Checks: none ran" in shown
    assert "Self-test: none" in shown
    assert not re.search(r"None|\{|\}", shown)
    assert Verdict.INCONCLUSIVE in shown
