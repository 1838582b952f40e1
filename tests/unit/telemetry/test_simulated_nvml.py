"""Simulated GPUs: a process tree that asks for them gets them everywhere, and nothing of it passes for real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpu_burnin
from gpu_burnin.checks.state.check import host_links
from gpu_burnin.checks.state.node import judge_state
from gpu_burnin.checks.state.rules import Expected
from gpu_burnin.engine.worker_process import worker_environment
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_skus, load_xids
from gpu_burnin.hardware.xid import Preflight
from gpu_burnin.node.prepare import Prepared
from gpu_burnin.run import is_simulated
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.system.host import Host
from gpu_burnin.telemetry import nvml_library
from gpu_burnin.telemetry.discover import Found, choose_backend, discover
from gpu_burnin.telemetry.kmsg import parse_record, xid_event
from gpu_burnin.telemetry.node_links import decide
from gpu_burnin.telemetry.nvml import Nvml, read_inventory
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.telemetry.simulated_nvml.library import installed
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT, SimulatedNode, recorded_models
from gpu_burnin.telemetry.simulated_nvml.profiles import faults, profile
from gpu_burnin.telemetry.state import GpuState, NodeState

MODEL = "h100-sxm5-80gb"
ECC_OF_GPU_1 = SimulatedNode(MODEL, 4, faults={1: "uncorrectable_ecc"})


def codes(states: tuple[GpuState, ...]) -> dict[str | None, set[str]]:
    """Codes of the reasons against these GPUs, by UUID, as the check judges a simulated node."""
    links = decide(states, Expectations(), load_skus())
    slots = host_links(NodeState(True, "", "", "", states), {})
    found: dict[str | None, set[str]] = {}
    for reason in judge_state(states, Expected(links=links, gpu_count=len(states), host_links=slots)):
        found.setdefault(reason.gpu, set()).add(reason.code)
    return found


@pytest.fixture
def simulated_node(monkeypatch: pytest.MonkeyPatch) -> SimulatedNode:
    """The environment of this process, and so of its children, asks for simulated GPUs, one of them sick."""
    monkeypatch.setenv(ENVIRONMENT, ECC_OF_GPU_1.to_text())
    return ECC_OF_GPU_1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A machine with a driver: its library, its file in /proc, its control device."""
    monkeypatch.setattr(nvml_library, "ctypes", SimpleNamespace(CDLL=lambda _: object()))
    there = (Path("/"), Path("/dev/null"))
    assert not nvml_library.is_simulated(*there), "without simulated GPUs this machine is real"
    return there


def test_a_node_goes_through_the_environment_as_it_is() -> None:
    assert SimulatedNode.from_text(ECC_OF_GPU_1.to_text()) == ECC_OF_GPU_1


@pytest.mark.parametrize(
    "text",
    ["", "1", "h100", "{}", "[]", '{"model": "h1", "count": 1}', '{"model": "l4", "count": "two"}',
     '{"model": "l4", "count": 1, "faults": {"0": "gremlin"}}', '{"model": "l4", "count": 1, "colour": 1}'],
)  # fmt: skip
def test_a_variable_that_names_no_gpus_is_refused_and_what_is_read_stays_simulated(
    text: str, driver: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GpuBurninError, match=f"the environment variable {ENVIRONMENT} names no node") as caught:
        SimulatedNode.from_text(text)
    assert caught.value.exit_code == 2
    monkeypatch.setenv(ENVIRONMENT, text)
    assert nvml_library.is_simulated(*driver)


@pytest.mark.parametrize("model", recorded_models())
def test_four_gpus_of_each_model_are_healthy(model: str) -> None:
    with installed(SimulatedNode(model, 4).profiles()), Nvml() as nvml:
        assert codes(read_inventory(nvml)) == {}


@pytest.mark.parametrize("fault", faults())
@pytest.mark.parametrize("model", recorded_models())
def test_a_fault_is_against_its_own_gpu_in_nvml_and_in_the_kernel_log(model: str, fault: str) -> None:
    node = SimulatedNode(model, 2, faults={1: fault})
    with installed(node.profiles()), Nvml() as nvml:
        states = read_inventory(nvml)
    found = codes(states)
    assert found.keys() == {states[1].uuid}
    assert {"ECC_UNCORRECTED", "REMAP_PENDING"} <= found[states[1].uuid]
    records = [record for line in node.kernel_log().splitlines() if (record := parse_record(line))]
    assert [record.sequence for record in records] == list(range(len(records))), "a gap would be INCONCLUSIVE"
    (event,) = [event for record in records if (event := xid_event(record))]
    assert event.pci_bus_id == states[1].pci_bus_id
    policy = load_xids().policy(event.xid, sxid=False)
    assert policy is not None and policy.preflight is Preflight.FAIL


def test_simulated_gpus_are_simulated_beside_a_driver_too(
    driver: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed([profile(MODEL, "580")]):
        assert nvml_library.is_simulated(*driver), "by the library that is open"
    assert not nvml_library.is_simulated(*driver)
    monkeypatch.setenv(ENVIRONMENT, ECC_OF_GPU_1.to_text())
    assert nvml_library.is_simulated(*driver), "by what the process was asked for"


def test_every_process_that_opens_nvml_reads_the_simulated_gpus_and_says_so(
    simulated_node: SimulatedNode, tmp_path: Path
) -> None:
    found = discover()
    assert (len(found.gpus), found.simulated, found.error) == (simulated_node.count, True, "")
    assert {gpu.sku for gpu in found.gpus} == {MODEL}
    with pytest.raises(GpuBurninError, match="NVML is a simulation here"):
        choose_backend("auto", found)
    with Sampling(found.gpus[:1], tmp_path, lambda _: None) as sampling:
        seen = sampling.findings()
    assert seen.simulated
    assert all(source.alive for source in seen.sources), seen.sources
    code = (
        "from gpu_burnin.telemetry.nvml import read_node\n"
        "from gpu_burnin.telemetry.topology import read_topology\n"
        "node = read_node(); one, two = (gpu.uuid for gpu in node.gpus[:2])\n"
        "print(node.simulated, len(node.gpus), list(read_topology(one, [two])) == [two])"
    )
    environment = worker_environment({ENVIRONMENT: simulated_node.to_text()}, "cpu", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"True {simulated_node.count} True\n", done.stderr


def test_nvml_is_opened_in_one_place() -> None:
    package = Path(gpu_burnin.__file__).parent
    opening = {
        path.name for path in package.rglob("*.py") if re.search(r"pynvml\.nvmlInit|\bn\.nvmlInit", path.read_text())
    }
    assert opening == {"nvml_library.py"}, (
        "what opens NVML elsewhere misses the simulated GPUs, or passes them for real"
    )


def test_a_worker_on_a_gpu_never_reads_simulated_ones() -> None:
    base = {ENVIRONMENT: ECC_OF_GPU_1.to_text(), "PATH": "/bin"}
    assert ENVIRONMENT in worker_environment(base, "cpu", "GPU-1")
    assert ENVIRONMENT not in worker_environment(base, "cuda", "GPU-1")
    assert ENVIRONMENT not in worker_environment(base, "cuda", None)


REAL: dict[str, Any] = {"backend": "cuda", "found": False, "log": False, "telemetry": False, "result": False}


def _ran(**unreal: Any) -> bool:
    said = SimpleNamespace(**{**REAL, **unreal})
    result = SimpleNamespace(coverage=SimpleNamespace(simulated=said.result))
    plan: Any = SimpleNamespace(backend=said.backend)
    prepared = Prepared(plan, Found(simulated=said.found), Host("", "", "", ""), (), ())
    seen: Any = SimpleNamespace(
        log=SimpleNamespace(simulated=said.log),
        telemetry=SimpleNamespace(simulated=said.telemetry),
        done=SimpleNamespace(results=(result,)),
    )
    return is_simulated(prepared, seen)


def test_one_simulated_source_makes_the_run_simulated() -> None:
    assert not _ran()
    for one in REAL:
        assert _ran(**{one: "cpu" if one == "backend" else True}), one
