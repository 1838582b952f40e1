"""The agent's numbers: what is read is told, what cannot be read has no sample, and the file's age says it lives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpu_burnin.api.evidence import Statement
from gpu_burnin.node.watch import numbers
from gpu_burnin.node.watch.numbers import FILE
from gpu_burnin.settings.config import Config
from gpu_burnin.system.files import write_atomic
from tests.support.agent_helpers import APPLICATION, Bench, healthy, xid
from tests.support.report_helpers import leave_run

ROOT = Path(__file__).resolve().parents[4]
SERIES = ROOT / "roles/fleet_monitoring/files/series.yaml"
RULES = ROOT / "roles/fleet_monitoring/files/rules"


@pytest.fixture
def bench(config: Config, root: Path, tmp_path: Path, statement: Statement) -> Bench:
    """The agent of a node that has passed, beside a node_exporter."""
    leave_run(config, statement)
    (tmp_path / "textfile").mkdir()
    return Bench(
        replace(config, metrics_file=tmp_path / "textfile/gpu_burnin.prom"), root, tmp_path / "pods" / "leave.json"
    )


def samples_of(bench: Bench) -> dict[str, float]:
    assert bench.config.metrics_file is not None
    lines = bench.config.metrics_file.with_name(FILE).read_text().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("gpu_burnin_watch_"): float(value) for name, _, value in samples}


def test_a_healthy_node_s_numbers(bench: Bench) -> None:
    bench.log()
    bench.gpus(healthy(remap_pending=False, remap_failure=False, clocks_event_reasons=1))
    bench.tick()
    assert samples_of(bench) == {
        "last_look_timestamp_seconds": bench.at.timestamp(),
        'source_up{source="kernel_log"}': 1,
        'source_up{source="nvml"}': 1,
        'source_up{source="nvml_events"}': 1,
        "burnin_running": 0,
        "gpus_expected": 1,
        "gpus": 1,
        'ecc_uncorrected_total{gpu="0"}': 0,
        'remap_pending{gpu="0"}': 0,
        'remap_failed{gpu="0"}': 0,
        'clocks_event_reasons{gpu="0"}': 1,
    }


def test_what_is_wrong_with_a_gpu_is_told(bench: Bench) -> None:
    bench.gpus(healthy(remap_pending=True, remap_failure=True, clocks_event_reasons=0x40, uncorrected=3))
    bench.tick()
    found = samples_of(bench)
    assert found['ecc_uncorrected_total{gpu="0"}'] == 3
    assert found['remap_pending{gpu="0"}'] == found['remap_failed{gpu="0"}'] == 1
    assert found['clocks_event_reasons{gpu="0"}'] == 0x40


def test_what_cannot_be_read_has_no_sample(bench: Bench) -> None:
    bench.gpus(healthy(uncorrected=None))
    bench.tick()
    assert not [name for name in samples_of(bench) if name.startswith(("ecc", "remap", "clocks"))]


LINKED = {
    "nvlinks": 18,
    "nvlink_errors": {"replays": 5, "failed_recoveries": 0},
    "fabric_state": 3,
    "fabric_healthy": True,
}


def test_links_and_fabric_of_a_healthy_gpu(bench: Bench) -> None:
    bench.gpus(healthy(**LINKED))
    bench.tick()
    found = samples_of(bench)
    assert found['nvlinks_down{gpu="0"}'] == found['nvlink_errors_total{gpu="0",kind="failed_recoveries"}'] == 0
    assert found['nvlink_errors_total{gpu="0",kind="replays"}'] == 5
    assert (found['fabric_state{gpu="0"}'], found['fabric_healthy{gpu="0"}']) == (3, 1)


def test_a_link_that_was_up_in_this_boot_is_missed_also_by_a_new_agent(bench: Bench) -> None:
    bench.gpus(healthy(nvlinks=18))
    bench.restart()
    bench.gpus(healthy(nvlinks=16))
    bench.tick()
    assert samples_of(bench)['nvlinks_down{gpu="0"}'] == 2
    bench.gpus(healthy(nvlinks=18))
    bench.tick()
    assert samples_of(bench)['nvlinks_down{gpu="0"}'] == 0


@pytest.mark.parametrize("reading", [{"nvlinks": 0}, {"nvlinks": None}, {}], ids=["no bridge", "unread", "none"])
def test_links_that_never_were_up_or_cannot_be_read_have_no_sample(bench: Bench, reading: dict[str, None]) -> None:
    bench.gpus(healthy(**reading))
    bench.tick()
    assert not [name for name in samples_of(bench) if "nvlink" in name or "fabric" in name]


def test_links_that_cannot_be_read_any_more_are_not_called_down(bench: Bench) -> None:
    bench.gpus(healthy(nvlinks=18))
    bench.gpus(healthy(nvlinks=None))
    bench.tick()
    assert not [name for name in samples_of(bench) if "nvlink" in name]


def test_a_fabric_that_complains_is_told(bench: Bench) -> None:
    bench.gpus(healthy(**{**LINKED, "fabric_healthy": False}))
    bench.tick()
    assert samples_of(bench)['fabric_healthy{gpu="0"}'] == 0


def test_a_lost_gpu_is_not_counted_and_says_nothing(bench: Bench) -> None:
    bench.gpus(healthy(lost="gpu_is_lost"))
    bench.tick()
    found = samples_of(bench)
    assert (found["gpus"], found["gpus_expected"]) == (0, 1)
    assert not [name for name in found if 'gpu="' in name]


def test_xids_are_counted_by_gpu_and_class_and_survive_a_new_agent(bench: Bench) -> None:
    bench.gpus(healthy())
    bench.log(xid(APPLICATION, 1_000_000), xid(at_us=2_000_000))
    bench.tick()
    bench.restart()
    bench.gpus(healthy())
    bench.log(xid(at_us=2_000_000), again=True)
    bench.log(xid(at_us=3_000_000))
    bench.tick()
    found = samples_of(bench)
    assert found['xids_total{gpu="0",class="revoke"}'] == 2
    assert found['xids_total{gpu="0",class="warn"}'] == 1


def test_a_source_that_cannot_be_read_is_told_until_it_can(bench: Bench) -> None:
    bench.log(why="/dev/kmsg cannot be read (Permission denied)")
    bench.gpus(why="driver not loaded")
    bench.tick()
    found = samples_of(bench)
    assert [found[f'source_up{{source="{name}"}}'] for name in ("kernel_log", "nvml", "nvml_events")] == [0, 0, 0]
    assert "gpus" not in found
    bench.log()
    bench.gpus(healthy())
    bench.tick()
    assert samples_of(bench)['source_up{source="kernel_log"}'] == samples_of(bench)['source_up{source="nvml"}'] == 1


def test_a_kernel_log_that_goes_is_told_at_once(bench: Bench) -> None:
    bench.log()
    bench.gpus(healthy())
    bench.tick()
    bench.log(why="/dev/kmsg cannot be read any more (Input/output error)")
    bench.tick()
    assert samples_of(bench)['source_up{source="kernel_log"}'] == 0
    bench.log()
    bench.tick()
    assert samples_of(bench)['source_up{source="kernel_log"}'] == 1


def test_a_silent_nvml_is_a_source_that_cannot_be_read(bench: Bench) -> None:
    bench.gpus(healthy())
    bench.tick()
    bench.tick(1000)
    assert samples_of(bench)['source_up{source="nvml"}'] == 0


def test_the_file_is_written_each_30_s_though_nothing_comes(bench: Bench) -> None:
    bench.gpus(healthy())
    bench.tick()
    first = samples_of(bench)["last_look_timestamp_seconds"]
    bench.tick()
    assert samples_of(bench)["last_look_timestamp_seconds"] == first
    bench.tick(30)
    assert samples_of(bench)["last_look_timestamp_seconds"] == first + 31


def test_a_burn_in_is_told_as_long_as_it_runs(bench: Bench) -> None:
    """DCGM and its exporter pause for it, which is no fault."""
    for running in (False, True, True, False):
        bench.system.running = running
        bench.tick(30)
        assert samples_of(bench)["burnin_running"] == running


def test_a_storm_of_xids_is_written_once_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick, a second, writes once at most: a thousand lines a second wear no disk out."""
    written: list[Path] = []

    def counted(path: Path, data: bytes, *, mode: int) -> None:
        written.append(path)
        write_atomic(path, data, mode=mode)

    monkeypatch.setattr(numbers, "write_atomic", counted)
    bench.gpus(healthy())
    for second in range(5):
        for part in range(10):
            at_us = second * 1_000_000 + part * 1_000
            bench.log(*(xid(APPLICATION, at_us + line) for line in range(100)))
        bench.gpus(healthy())
        bench.tick()
    assert len(written) == 5
    assert samples_of(bench)['xids_total{gpu="0",class="warn"}'] == 5_000


def test_a_file_that_cannot_be_written_is_said_once_and_keeps_nobody_from_work(bench: Bench) -> None:
    assert bench.config.metrics_file is not None
    bench.config.metrics_file.parent.rmdir()
    for _ in range(3):
        bench.gpus(healthy())
        bench.tick(60)
    (said,) = bench.said
    assert said.endswith("so node_exporter shows what was before")


def test_prometheus_keeps_each_of_them_and_the_rules_name_no_other(bench: Bench) -> None:
    bench.log(xid(APPLICATION))
    bench.gpus(healthy(remap_pending=False, remap_failure=False, clocks_event_reasons=1, **LINKED))
    bench.tick()
    shown = {f"gpu_burnin_watch_{name.partition('{')[0]}" for name in samples_of(bench)}
    kept = [entry["names"] for entry in yaml.safe_load(SERIES.read_text())["node"]]
    assert [name for name in shown if not any(re.fullmatch(names, name) for names in kept)] == []
    rules = "".join(path.read_text() for path in RULES.glob("*.yml"))
    assert set(re.findall(r"gpu_burnin_watch_\w+", rules)) == shown
