"""Metrics: the text is what the collector accepts, and it says what the report says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpu_burnin.report.openmetrics import to_openmetrics
from gpu_burnin.types import Measurement, Verdict
from tests.support.made_reports import with_gpu
from tests.support.sample_nodes import SAMPLES, dead_and_wrong_links, healthy_16, one_slow_link, power_brake_8
from tests.support.sample_reports import faulty_8, healthy_8

Labels = frozenset[tuple[str, str]]
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
# One label as both formats have it (prometheus.io/docs/instrumenting/exposition_formats): backslash escapes
# backslash, quote and n only.
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")


def parse(data: bytes) -> dict[str, dict[Labels, float]]:
    """Samples by name and labels. Raises ValueError where the collector would refuse the file."""
    text = data.decode()
    if not text.endswith("# EOF\n"):
        raise ValueError("no end")
    found: dict[str, dict[Labels, float]] = {}
    typed, closed, current = set(), set(), ""
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("# "):
            keyword, name, rest = line[2:].split(" ", 2)
            if keyword == "TYPE" and (rest != "gauge" or name in typed):
                raise ValueError(line)
            if name != current:
                closed.add(current)
                current = name
            if keyword == "TYPE":
                typed.add(name)
            continue
        match = _SAMPLE.fullmatch(line)
        if not match or match[1] != current or current in closed or current not in typed:
            raise ValueError(line)
        labels = frozenset(unescaped(match[2] or ""))
        samples = found.setdefault(match[1], {})
        if labels in samples:
            raise ValueError(f"twice: {line}")
        samples[labels] = float(match[3])
    return found


def unescaped(text: str) -> list[tuple[str, str]]:
    """The labels between the braces."""
    found, position = [], 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if not match:
            raise ValueError(text)
        value = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], match[2])
        found.append((match[1], value))
        position = match.end()
    return found


def value(samples: dict[Labels, float], **labels: str) -> float:
    """The one sample that has these labels."""
    (found,) = [number for known, number in samples.items() if labels.items() <= dict(known).items()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_text_is_valid(name: str) -> None:
    assert parse(to_openmetrics(SAMPLES[name]()[0]))["gpu_burnin_info"]


@pytest.mark.parametrize(
    "broken",
    [
        b"gpu_burnin_x 1\n# EOF\n",
        b"# TYPE gpu_burnin_x gauge\ngpu_burnin_x 1\ngpu_burnin_x 2\n# EOF\n",
        b'# TYPE gpu_burnin_x gauge\ngpu_burnin_x{a="b\\c"} 1\n# EOF\n',
        b'# TYPE gpu_burnin_x gauge\ngpu_burnin_x{a="b"c"} 1\n# EOF\n',
        b"# TYPE gpu_burnin_x gauge\ngpu_burnin_x one\n# EOF\n",
        b"# TYPE gpu_burnin_x gauge\ngpu_burnin_x 1\n",
    ],
)
def test_parser_refuses_what_the_collector_refuses(broken: bytes) -> None:
    with pytest.raises(ValueError):
        parse(broken)


def test_what_the_node_measured_of_one_gpu_has_the_labels_of_that_gpu() -> None:
    report, _ = healthy_8()
    measured = (Measurement("gpu3_temperature_c", 31.0, "degC"), Measurement("links", 5.0, "1"))
    checks = (replace(check, measurements=measured) if check.name == "state" else check for check in report.checks)
    report = replace(report, checks=tuple(checks))
    found = parse(to_openmetrics(report))["gpu_burnin_measurement"]
    assert value(found, name="temperature_c", index="3", gpu=report.gpus[3].uuid) == 31
    assert value(found, name="links", index="", gpu="") == 5


def test_metrics_of_a_healthy_node() -> None:
    found = parse(to_openmetrics(healthy_8()[0]))
    assert value(found["gpu_burnin_verdict"], verdict="PASS") == 1
    assert value(found["gpu_burnin_verdict"], verdict="FAIL") == 0
    assert value(found["gpu_burnin_simulated"]) == 0
    finished = datetime(2026, 1, 2, 3, 8, 57, tzinfo=UTC)
    assert value(found["gpu_burnin_finished_timestamp_seconds"]) == finished.timestamp()
    assert value(found["gpu_burnin_check_seconds"], check="gemm", index="3") == pytest.approx(150.8)
    assert value(found["gpu_burnin_measurement"], name="hbm_rate", index="0", unit="B/s") == 4.1e12
    assert value(found["gpu_burnin_measurement_floor"], name="hbm_rate", index="0") == 3.4e12
    # Half of it was verified, in equal parts for seven precisions.
    assert value(found["gpu_burnin_verified_seconds"], check="gemm", index="0") == pytest.approx(75.4)
    bound = value(found["gpu_burnin_missed_fault_rate_upper95"], check="gemm", index="0")
    assert bound == pytest.approx(3 * 7 / 75.4)
    assert value(found["gpu_burnin_selftest_faults"], check="gemm", index="0", result="missed") == 0
    assert "gpu_burnin_reasons" not in found


def test_metrics_of_a_sick_node() -> None:
    report, _ = faulty_8()
    found = parse(to_openmetrics(report))
    assert value(found["gpu_burnin_verdict"], verdict="FAIL") == 1
    assert value(found["gpu_burnin_gpu_verdict"], index="3", verdict="FAIL") == 1
    assert value(found["gpu_burnin_gpu_verdict"], index="4", verdict="PASS") == 1
    assert value(found["gpu_burnin_reasons"], code="GEMM_MISMATCH", index="3", severity="FAIL") == 1
    assert value(found["gpu_burnin_warnings"], code="THROTTLED", index="1") == 1
    assert value(found["gpu_burnin_selftest_faults"], check="gemm", index="0", result="missed") == 1
    assert value(found["gpu_burnin_xid_events"], code="79", kind="XID") == 1
    assert value(found["gpu_burnin_counter_delta"], name="total_energy", index="0") > 0
    # What could not be read has no sample: 0 would be a lie.
    assert not [labels for labels in found["gpu_burnin_counter_delta"] if ("name", "nvlink_recovery_failed") in labels]
    # GPU 5 has a fault, so there is no bound for its check of memory.
    bounds = [dict(labels) for labels in found["gpu_burnin_missed_fault_rate_upper95"]]
    assert not [labels for labels in bounds if (labels["check"], labels["index"]) == ("hbm", "5")]


def test_any_text_is_escaped() -> None:
    evil = 'a"b\\c\nd}\n# EOF\ngpu_burnin_verdict{verdict="PASS"} 1'
    found = parse(to_openmetrics(with_gpu(replace(healthy_8()[0], node=evil), 0, name=evil)))
    assert value(found["gpu_burnin_info"], node=evil) == 1
    assert value(found["gpu_burnin_gpu_info"], name=evil) == 1


def test_two_lost_gpus_do_not_become_one_sample_or_a_duplicate() -> None:
    report, _ = healthy_8()
    for index in (0, 1):
        report = with_gpu(report, index, uuid="", verdict=Verdict.FAIL)
    found = parse(to_openmetrics(report))
    lost = [
        labels for labels in found["gpu_burnin_gpu_verdict"] if ("gpu", "") in labels and ("verdict", "FAIL") in labels
    ]
    assert len(lost) == 2


def test_pairs_of_gpus_have_a_sample_for_each_direction() -> None:
    report, _ = one_slow_link()
    found = parse(to_openmetrics(report))
    rates = found["gpu_burnin_p2p_bytes_per_second"]
    assert len(rates) == 8 * 7 * 2
    one, other = (report.gpus[index].uuid for index in (2, 5))
    slow = value(rates, gpu=one, peer=other, index="2", peer_index="5", direction="write", path="nvswitch")
    assert slow == pytest.approx(40.7e9, rel=0.01)
    assert value(rates, index="2", peer_index="4", direction="write") > 380e9
    wrong = parse(to_openmetrics(dead_and_wrong_links()[0]))
    assert value(wrong["gpu_burnin_p2p_wrong_transfers"], index="3", peer_index="0", direction="write") == 2
    # What moved nothing, and what nobody looked at, has no sample.
    dead = [
        dict(labels)
        for labels in wrong["gpu_burnin_p2p_bytes_per_second"]
        if {("index", "1"), ("peer_index", "6")} <= labels
    ]
    assert dead == []
    unseen = {("index", "2"), ("peer_index", "7"), ("direction", "write")}
    assert [labels for labels in wrong["gpu_burnin_p2p_wrong_transfers"] if unseen <= labels] == []


def test_many_gpus_make_no_flood_of_samples() -> None:
    report, _ = healthy_16()
    assert len(parse(to_openmetrics(report))["gpu_burnin_p2p_bytes_per_second"]) == 480
    many = (*report.gpus, replace(report.gpus[0], index=16, uuid="GPU-x"))
    assert "gpu_burnin_p2p_bytes_per_second" not in parse(to_openmetrics(replace(report, gpus=many)))


def test_metrics_of_single_checks() -> None:
    found = parse(to_openmetrics(power_brake_8()[0]))
    assert value(found["gpu_burnin_collective_bytes_per_second"], collective="all_reduce", algorithm="ring") > 300e9
    assert value(found["gpu_burnin_memory_covered_bytes"], index="0") == 149_100_000_000
    assert value(found["gpu_burnin_memory_unreachable_bytes"], index="0") == 150_754_820_096 - 149_100_000_000
    assert value(found["gpu_burnin_memory_wrong_words"], index="7") == 0
    assert value(found["gpu_burnin_power_waves_run"], index="3") == 1
    assert value(found["gpu_burnin_dcgm_tests"], result="Pass") == 3
    assert value(found["gpu_burnin_measurement"], name="power_reached_w", index="0", unit="W") > 600
