"""The agent's readings of NVML, by the lab's fake library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

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
