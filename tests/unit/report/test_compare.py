"""Comparing two reports: what changed is said once, in words and numbers, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.compare import compare as command
from gpu_burnin.report import compare, model
from gpu_burnin.system.prose import STANDARD_WIDTH
from tests.support.made_reports import edited, with_gpu
from tests.support.sample_nodes import dead_and_wrong_links, nccl_fallback_8, one_slow_link
from tests.support.sample_reports import faulty_8, gpus_of, healthy_1, healthy_8, sample


@pytest.fixture
def before() -> model.Report:
    """A healthy node."""
    return healthy_8()[0]


def changes(before: model.Report, after: model.Report, kind: str) -> list[compare.Change]:
    """The changes of one kind."""
    return [change for change in compare.compare(before, after).changes if change.kind == kind]


def test_the_same_report_differs_in_nothing(before: model.Report) -> None:
    found = compare.compare(before, before)
    assert found.changes == ()
    assert "Nothing differs." in compare.render(found)


def test_a_node_that_fell_ill(before: model.Report) -> None:
    found = compare.compare(before, faulty_8()[0])
    text = compare.render(found)
    assert "+ new reason GEMM_MISMATCH on GPU 3: bf16 product is wrong" in text
    assert "+ new warning THROTTLED on GPU 1" in text
    assert "verdict on node, GPU 2, GPU 3, GPU 5, GPU 6: PASS -> FAIL" in text
    assert "gemm_bf16_throughput on GPU 1: 804.1 TFLOP/s -> 708.6 TFLOP/s (-11.9%)" in text
    assert "not run: hbm on GPU 6: none -> no result" in text
    back = compare.render(compare.compare(faulty_8()[0], before))
    assert "- gone reason GEMM_MISMATCH on GPU 3" in back
    assert "804.1 TFLOP/s (+13.5%)" in back
    assert all(len(line) <= STANDARD_WIDTH for line in text.splitlines())


@pytest.mark.parametrize(
    ("change", "kind", "what", "on", "old", "new"),
    [
        (lambda r: r["gpus"][2].update(vbios="97"), "hardware", "vbios", "GPU 2", "96.00.BC.00.01", "97"),
        (lambda r: r["host"].update(kernel="6.9"), "software", "kernel", "node", "6.1.0", "6.9"),
        (lambda r: r["software"].update(driver="590"), "software", "driver", "node", "580.95.05", "590"),
        (lambda r: r["host"]["dmi"].update(bios="2"), "hardware", "bios", "node", None, "2"),
        (
            lambda r: r["plan"].update(options={"power_waves": "never"}),
            "software",
            "power_waves",
            "node",
            None,
            "never",
        ),
        (lambda r: r.update(simulated=True), "verdict", "simulated", "node", False, True),
        (lambda r: r["telemetry"]["counters"][2].update(after=9), "counter", "pcie_replays", "GPU 0", 0, 7),
        (lambda r: r["coverage"]["units"][1].update(seconds=1.0), "coverage", "time of sm", "GPU 0", 11.6, 1.0),
    ],
)
def test_one_difference_is_one_change(
    before: model.Report, change: Callable[[Any], object], kind: str, what: str, on: str, old: object, new: object
) -> None:
    (found,) = compare.compare(before, edited(before, change)).changes
    assert (found.kind, found.what, found.on, found.before, found.after) == (kind, what, on, old, new)


def test_noise_is_counted_and_not_shown(before: model.Report) -> None:
    checks = (
        replace(check, measurements=tuple(replace(item, value=1.004 * item.value) for item in check.measurements))
        for check in before.checks
    )
    after = replace(before, checks=tuple(checks))
    text = compare.render(compare.compare(before, after))
    assert "throughput" not in text
    assert "176 more within 1%" in text
    assert len(changes(before, after, "measurement")) == 176


def test_link_that_became_slow_is_told_by_its_two_gpus(before: model.Report) -> None:
    after = one_slow_link()[0]
    found = changes(before, after, "pair")
    assert {(item.what, item.on) for item in found} == {
        ("copy, write", "GPU 2 to GPU 5"),
        ("copy, write", "GPU 5 to GPU 2"),
        ("copy, read", "GPU 2 from GPU 5"),
        ("copy, read", "GPU 5 from GPU 2"),
    }
    assert all(item.change == pytest.approx(-0.896) for item in found)
    text = compare.render(compare.compare(before, after))
    assert "copy, write on 2 pairs: median -89.6%; most on" in text


def test_pair_whose_data_became_wrong_or_that_went_is_told(before: model.Report) -> None:
    found = changes(before, dead_and_wrong_links()[0], "pair")
    said = {(item.what, item.on): (item.before, item.after) for item in found}
    assert said["data, write", "GPU 3 to GPU 0"] == ("right", "wrong")
    assert said["copy, write", "GPU 1 to GPU 6"][1] is None
    assert said["data, read", "GPU 1 from GPU 6"][1].startswith("cudaDeviceEnablePeerAccess")
    # GPU 7 gave no result: what it copied itself is gone, what others copied is there.
    assert said["copy, read", "GPU 7 from GPU 0"][1] is None
    assert ("copy, read", "GPU 0 from GPU 7") not in said
    text = compare.render(compare.compare(before, dead_and_wrong_links()[0]))
    assert all(len(line) <= STANDARD_WIDTH for line in text.splitlines())


def test_collectives_that_fell_back_are_told(before: model.Report) -> None:
    found = {item.what: item.change for item in changes(before, nccl_fallback_8()[0], "collective")}
    assert found["all_reduce, default, bus bandwidth"] == pytest.approx(0.048 - 1)
    assert found["all_reduce, nvls, bus bandwidth"] is None


def test_replaced_card_is_compared_with_the_one_in_its_place(before: model.Report) -> None:
    new_uuid = "GPU-ffffffff-0000-0000-0000-000000000000"

    after = with_gpu(before, 4, uuid=new_uuid, serial="9")
    old_uuid = before.gpus[4].uuid
    checks = (replace(check, gpu=new_uuid) if check.gpu == old_uuid else check for check in before.checks)
    after = replace(after, checks=tuple(checks))
    hardware = changes(before, after, "hardware")
    assert {(item.what, item.on) for item in hardware} == {("uuid", "GPU 4"), ("serial", "GPU 4")}
    assert changes(before, after, "measurement") == []


def test_card_that_kept_its_identity_but_not_its_index_is_the_same_card(before: model.Report) -> None:
    """GPU 0 fell off the bus: the driver counts the others from 0 again."""

    def change(report: Any) -> None:
        gone = report["gpus"].pop(0)["uuid"]
        for gpu in report["gpus"]:
            gpu["index"] -= 1
        for place in (report["telemetry"]["counters"], report["coverage"]["units"]):
            place[:] = [item for item in place if item["gpu"] != gone]
        report["checks"] = [check for check in report["checks"] if check["gpu"] != gone]
        for check in report["checks"]:
            if check["gpu"] is None:
                del check["measurements"][0]
                for index, item in enumerate(check["measurements"]):
                    item["name"] = f"gpu{index}_power_draw_w"

    found = compare.compare(before, edited(before, change))
    assert [(item.what, item.on, item.after) for item in found.changes] == [("card", "GPU 0", None)]


def test_two_lost_cards_are_two() -> None:
    before = healthy_8()[0]
    found = changes(before, with_gpu(with_gpu(before, 0, uuid=""), 1, uuid=""), "hardware")
    assert {item.on for item in found if item.what == "uuid"} == {"GPU 0", "GPU 1"}


def test_two_nodes_of_different_size() -> None:
    found = compare.compare(healthy_1()[0], sample()[0])
    cards = [item.on for item in found.changes if item.what == "card"]
    assert cards == [f"GPU {gpu.index}" for gpu in gpus_of(8)[1:]]
    assert {item.on for item in found.changes} - {"node", "GPU 0"} == set(cards)


def write(path: Path, report: model.Report) -> str:
    path.mkdir()
    (path / "report.json").write_bytes(model.to_bytes(report))
    return str(path)


@pytest.mark.slow
def test_command_prints_text_or_json_and_ends_with_0(tmp_path: Path, before: model.Report) -> None:
    first, second = write(tmp_path / "a", before), write(tmp_path / "b", faulty_8()[0])
    done = CliRunner().invoke(command, [first, second])
    assert (done.exit_code, done.stdout.splitlines()[1][-4:]) == (0, "FAIL")
    done = CliRunner().invoke(command, [first, second, "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["schema"]) == (0, "muster-comparison/v1")
    assert {"kind", "what", "on", "before", "after", "change", "unit"} == set(found["changes"][0])


def test_command_refuses_what_it_cannot_read(tmp_path: Path, before: model.Report) -> None:
    good = write(tmp_path / "a", before)
    (tmp_path / "other.json").write_text(json.dumps({**model.document(before), "schema": "muster-report/v2.0"}))
    for bad, says in ((tmp_path / "none", "there is no report"), (tmp_path / "other.json", "version 2")):
        done = CliRunner().invoke(command, [good, str(bad)])
        assert isinstance(done.exception, model.ReportError)
        assert (done.exception.exit_code, says in str(done.exception)) == (2, True)
        assert done.stdout == ""
