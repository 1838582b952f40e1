"""The agent's readings of NVML, by the lab's fake library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.node.watch.findings import identity_of, of_hardware
from gpu_burnin.system.hardware_identity import identity, mig_layouts
from gpu_burnin.telemetry.nvml import Nvml, read_inventory
from gpu_burnin.telemetry.simulated_nvml.library import installed
from gpu_burnin.telemetry.simulated_nvml.profiles import profile
from gpu_burnin.telemetry.state import to_gpu
from gpu_burnin.telemetry.vitals import read_vitals

CODE = """
import json
from dataclasses import asdict
from gpu_burnin.telemetry.nvml import Nvml
from gpu_burnin.telemetry.vitals import EventWatch, read_vitals
with Nvml() as nvml:
    watch = EventWatch(nvml.gpu_count())
    print(json.dumps({"vitals": asdict(read_vitals(nvml)), "why": watch.why, "events": len(list(watch.wait(0.1)))}))
"""


@pytest.fixture
def read(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[str], dict[str, Any]]:
    def ask(scenario: str) -> dict[str, Any]:
        done = run_python(scenario, CODE)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


def test_healthy_gpus_are_identified_and_idle(read: Callable[[str], dict[str, Any]]) -> None:
    found = read("healthy-8gpu.scenario")
    gpus = found["vitals"]["gpus"]
    assert len(gpus) == len({gpu["uuid"] for gpu in gpus}) == 8
    assert all(gpu["identified"] and not gpu["lost"] and gpu["uncorrected"] == 0 and gpu["pids"] == [] for gpu in gpus)
    assert all(gpu["recovery_action"] == 0 and not gpu["remap_pending"] and not gpu["remap_failure"] for gpu in gpus)
    assert found["vitals"]["simulated"]


def test_identity_is_that_of_the_inventory(
    read: Callable[[str], dict[str, Any]], read_node: Callable[[str], Any]
) -> None:
    from gpu_burnin.telemetry.state import to_gpu

    gpus = read("sick-ecc-xid79.scenario")["vitals"]["gpus"]
    inventory = [to_gpu(state, "") for state in read_node("sick-ecc-xid79.scenario").gpus]
    assert [(g["uuid"], g["serial"], g["vbios"]) for g in gpus] == [(g.uuid, g.serial, g.vbios) for g in inventory]


def test_a_sick_node_shows(read: Callable[[str], dict[str, Any]]) -> None:
    gpus = read("sick-ecc-xid79.scenario")["vitals"]["gpus"]
    assert any(gpu["lost"] or gpu["uncorrected"] or gpu["remap_pending"] or gpu["recovery_action"] for gpu in gpus)


def test_links_and_fabric_of_a_board_with_switches(read: Callable[[str], dict[str, Any]]) -> None:
    gpus = read("healthy-8gpu.scenario")["vitals"]["gpus"]
    assert [(gpu["nvlinks"], gpu["fabric_state"], gpu["fabric_healthy"]) for gpu in gpus] == [(18, 3, True)] * 8
    assert all(gpu["nvlink_errors"]["replays"] == gpu["nvlink_errors"]["recoveries"] == 0 for gpu in gpus)


def test_links_that_are_down_and_a_fabric_in_progress_show(read: Callable[[str], dict[str, Any]]) -> None:
    (gpu,) = read("gpus = 1\nnvlink_down = 3, 17\nfabric_state = 2\n")["vitals"]["gpus"]
    assert (gpu["nvlinks"], gpu["fabric_state"], gpu["fabric_healthy"]) == (16, 2, None)


@pytest.mark.parametrize(
    ("model", "links", "fabric"),
    [
        ("h100-sxm5-80gb", 18, True),
        ("b200-sxm", 18, True),
        ("a100-sxm4-80gb", 12, None),
        ("h100-pcie", 0, None),
        ("l4", 0, None),
    ],
)
def test_what_each_kind_of_board_tells(model: str, links: int, fabric: bool | None) -> None:
    with installed([profile(model, "580")]):
        (gpu,) = read_vitals(Nvml()).gpus
    assert (gpu.nvlinks, gpu.fabric_healthy) == (links, fabric)
    assert bool(gpu.nvlink_errors) == bool(links)


@pytest.mark.parametrize(
    ("info", "healthy"),
    [
        ({"status": 999}, False),
        ({"healthSummary": 2}, False),
        ({"healthMask": 0x10}, False),
        ({"healthMask": 0x80}, True),
    ],
)
def test_what_the_fabric_complains_about(info: dict[str, int], healthy: bool) -> None:
    gpu = profile("h100-sxm5-80gb", "580")
    assert isinstance(gpu.fabric, Mapping)
    with installed([replace(gpu, fabric={**gpu.fabric, **info})]):
        (vital,) = read_vitals(Nvml()).gpus
    assert vital.fabric_healthy is healthy


def test_the_instances_of_a_gpu_in_mig_mode_are_read_as_a_run_reads_them() -> None:
    whole = profile("a100-pcie-80gb", "580")
    with installed([whole.in_mig([("3g.40gb", 42, 40192)] * 2), whole]):
        vitals, states = read_vitals(Nvml()), read_inventory(Nvml())
    assert vitals.gpus[0].identified and [one.profile for one in vitals.gpus[0].instances or ()] == ["3g.40gb"] * 2
    of_run = identity([to_gpu(state, "") for state in states], vitals.driver, "6.12")
    assert identity_of(vitals, "6.12") == of_run and mig_layouts(of_run) == {states[0].uuid: {"3g.40gb": 2}}


@pytest.mark.parametrize("why", ["unknown", "timeout"])
def test_a_mig_mode_that_cannot_be_read_is_no_change_of_the_hardware(why: str) -> None:
    parted = profile("a100-pcie-80gb", "580").in_mig([("3g.40gb", 42, 40192)])
    with installed([parted]):
        tested = identity_of(read_vitals(Nvml()), "6.12")
    with installed([parted.changed(calls={"nvmlDeviceGetMigMode": why})]):
        now = read_vitals(Nvml())
    assert not now.gpus[0].identified and of_hardware(now, "6.12", tested) is None
    with installed([parted.changed(calls={"nvmlDeviceGetMigMode": [0, 0]})]):
        assert of_hardware(read_vitals(Nvml()), "6.12", tested), "one that was switched off is"
