"""The fake NVML through unmodified nvidia-ml-py, and the typed reading of it: healthy nodes and every fault."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.hardware import load_skus
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.telemetry.inventory import InventoryError, ScenarioError, read_inventory_in_child
from gpu_burnin.telemetry.pci import normal_bus_id
from gpu_burnin.telemetry.state import NodeState, Unsupported, to_gpu

SCENARIOS = Path(__file__).resolve().parents[2] / "lab/scenarios"
Read = Callable[[str], NodeState]
Run = Callable[..., subprocess.CompletedProcess[str]]
Environment = Callable[[str], dict[str, str]]

CHECK = """
import json, sys
from dataclasses import asdict
from gpu_burnin.checks import CheckContext, REGISTRY
options = json.loads(sys.stdin.read() or "{}")
context = CheckContext(seed=1, level="quick", budget_s=10, gpus=(), options=options)
print(json.dumps(asdict(REGISTRY["state"].run(context))))
"""


def check(run: Run, scenario: str, **options: Any) -> dict[str, Any]:
    """Run the state check in a process of its own; `codes` are those of its reasons."""
    done = run(scenario, CHECK, json.dumps(options))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return {**result, "codes": [reason["code"] for reason in result["reasons"]]}


@pytest.mark.parametrize(
    ("scenario", "count", "sku"),
    [
        ("healthy-2gpu.scenario", 2, "h100-sxm5-80gb"),
        ("gpus = 4\n", 4, "h100-sxm5-80gb"),
        ("healthy-8gpu.scenario", 8, "h200-sxm"),
    ],
)
def test_healthy_node_is_read_completely(read_node: Read, scenario: str, count: int, sku: str) -> None:
    node = read_node(scenario)
    assert len(node.gpus) == count
    assert node.simulated
    assert (node.driver_version, node.cuda_version) == ("580.95.05", "13.0")
    for gpu in node.gpus:
        # Page retirement ended with Volta; everything else has a value.
        assert set(gpu.unread()) == {"retired_single_bit", "retired_double_bit", "retired_pending"}
        assert not gpu.lost
        assert len(gpu.nvlink_active) == 18  # type: ignore[arg-type]
        found = load_skus().find(gpu.pci_device_id, gpu.pci_subsystem_id)
        assert found and found.key == sku
    for identity in ("uuid", "serial", "pci_bus_id"):
        assert len({getattr(gpu, identity) for gpu in node.gpus}) == count


@pytest.mark.parametrize("scenario", ["healthy-2gpu.scenario", "healthy-8gpu.scenario"])
def test_healthy_node_passes_the_state_check(run_python: Run, scenario: str) -> None:
    result = check(run_python, scenario)
    assert result["codes"] == []
    assert result["verdict"] == "PASS"


def test_a_fresh_machine_without_persistence_mode_passes_and_its_gpus_are_named(run_python: Run) -> None:
    result = check(run_python, "gpus = 2\ngpu1.persistence = no\n")
    assert (result["verdict"], len(result["coverage"]["persistence_off"])) == ("PASS", 1)
    assert [*result["coverage"]["fabric_info"].values()] == [3, 3]


def test_faulty_lab_host_fails_and_its_kernel_line_names_the_same_gpu(run_python: Run, read_node: Read) -> None:
    result = check(run_python, "sick-ecc-xid79.scenario")
    faulty = read_node("sick-ecc-xid79.scenario").gpus[1]
    assert result["codes"] == ["ECC_UNCORRECTED", "REMAP_PENDING", "RECOVERY_ACTION"]
    assert {reason["gpu"] for reason in result["reasons"]} == {faulty.uuid}
    assert f"PCI:{faulty.pci_bus_id.removesuffix('.0')}" in (SCENARIOS / "sick-ecc-xid79.kmsg").read_text()


def test_identities_follow_the_host(read_node: Read) -> None:
    one, two = (read_node(f"identity = gpu-{n}\n") for n in (1, 2))
    assert {gpu.uuid for gpu in one.gpus}.isdisjoint(gpu.uuid for gpu in two.gpus)
    assert read_node("identity = gpu-1\n") == one


def test_later_lines_and_single_gpus_win(read_node: Read) -> None:
    node = read_node("temperature_c = 40\ngpu1.temperature_c = 50\ntemperature_c = 41 # again\n")
    assert [gpu.temperature_c for gpu in node.gpus] == [41, 50]


@pytest.mark.parametrize("lost", ["calls", "handle"])
def test_lost_gpu_is_data(read_node: Read, run_python: Run, lost: str) -> None:
    healthy, gone = read_node(f"gpu1.lost = {lost}\n").gpus
    assert not healthy.lost
    assert gone.lost == "gpu_is_lost"
    assert gone.temperature_c == Unsupported("gpu_is_lost")
    assert bool(gone.uuid) == (lost == "calls")
    assert check(run_python, f"gpu1.lost = {lost}\n")["codes"] == ["GPU_LOST"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "field", "why"),
    [
        ("error.nvmlDeviceGetRemappedRows = not_supported", "remap_pending", "not_supported"),
        ("error.nvmlDeviceGetEccMode = function_not_found", "ecc_enabled", "function_not_found"),
        ("error.field_230 = not_supported", "recovery_action", "not_supported"),
        ("error.nvmlDeviceGetVbiosVersion = timeout", "vbios", "timeout"),
    ],
)
def test_missing_value_is_never_zero(read_node: Read, run_python: Run, line: str, field: str, why: str) -> None:
    scenario = f"gpus = 1\n{line}\n"
    assert getattr(read_node(scenario).gpus[0], field) == Unsupported(why)
    result = check(run_python, scenario)
    assert (result["verdict"], result["codes"]) == ("INCONCLUSIVE", ["UNSUPPORTED_FIELD"])


def test_missing_value_that_the_driver_is_too_old_for_passes(run_python: Run) -> None:
    old = "driver_version = 550.163.01\ngsp_firmware_version = 550.163.01\nerror.field_230 = not_supported\n"
    assert check(run_python, old)["codes"] == []


def test_faults_of_the_library_itself(read_node: Read) -> None:
    gpu = read_node(
        "gpus = 1\ninforom_valid = no\nerror.nvmlDeviceGetClockInfo = reset_required\nprocesses = 12:34, 56:78\n"
        "nvlink_down = 3, 17\nnvlink_recovery_failed = 2\nretired_pages_supported = yes\n"
        "retired_pages_single_bit = 3\necc_uncorrected_volatile_sram = 7\nfabric_state = 2\nmig_pending = yes\n"
    ).gpus[0]
    assert gpu.inforom_valid is False
    assert gpu.reset_required
    assert [process.pid for process in gpu.processes] == [12, 56]  # type: ignore[union-attr]
    assert gpu.nvlink_inactive == (3, 17)
    assert gpu.nvlink_failed_recoveries == 2
    assert (gpu.retired_single_bit, gpu.retired_double_bit) == (3, 0)
    assert gpu.ecc_volatile_uncorrected_sram == 7
    assert gpu.fabric_state == 2
    assert (gpu.mig_enabled, gpu.mig_pending) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "code", "words"),
    [
        ("init_error = driver_not_loaded\n", 9, "modprobe nvidia"),
        ("init_error = version_mismatch\n", 18, "different versions"),
        ("init_error = unknown\n", 999, "error 999"),
        ("count_error = no_permission\n", 4, "root"),
    ],
)
def test_unusable_nvml_is_one_sentence_with_the_fix(run_python: Run, scenario: str, code: int, words: str) -> None:
    result = check(run_python, scenario)
    assert (result["verdict"], result["codes"]) == ("INCONCLUSIVE", ["NVML_UNAVAILABLE"])
    assert words in result["reasons"][0]["message"]


def test_missing_library_is_explained_and_simulated(run_python: Run) -> None:
    # What the loader does without the library, wherever one may be installed.
    code = """
import ctypes
def refuse(*_, **__): raise OSError("no such library")
import pynvml
pynvml.CDLL = ctypes.CDLL = refuse
from gpu_burnin.telemetry.nvml import NvmlUnavailableError, read_node
from gpu_burnin.telemetry.nvml_library import is_simulated
assert is_simulated()
try: read_node()
except NvmlUnavailableError as error: print(error.code, error)
"""
    done = run_python("gpus = 1\n", code)
    assert done.stdout.startswith("12 "), done.stderr
    assert "install the NVIDIA driver" in done.stdout


def test_the_driver_is_there_by_its_files_or_by_a_device_that_answers_and_never_behind_the_fake(
    run_python: Run, tmp_path: Path
) -> None:
    (tmp_path / "version").touch()
    code = f"""
from pathlib import Path
import ctypes
from gpu_burnin.telemetry import nvml_library as nvml
none, version, null = Path("/none"), Path("{tmp_path}/version"), Path("/dev/null")
assert nvml.is_simulated(version, null), "the fake is a simulation whatever lies beside it"
ctypes.CDLL = lambda _: object()  # a library that is not the fake
assert nvml.is_simulated(none, none)
assert not nvml.is_simulated(version, none)
assert nvml.is_simulated(none, null), "a device of another driver"
assert nvml._answers(null, major=1) and not nvml._answers(version, major=1)
assert not nvml._answers(Path("/dev/tty"), major=5), "a node that does not open"
print("done")
"""
    done = run_python("gpus = 1\n", f"import os; os.getpid() == os.getsid(0) or os.setsid()\n{code}")
    assert done.stdout == "done\n", done.stderr


def test_wrong_number_of_gpus(run_python: Run) -> None:
    assert check(run_python, "gpus = 7\n", expect={"gpus": 8})["codes"] == ["GPU_COUNT"]
    assert check(run_python, "gpus = 0\n")["codes"] == ["GPU_COUNT"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("gpuz = 2", "unknown key"),
        ("gpus = two", "must hold a number"),
        ("ecc_current = maybe", "must say yes or no"),
        ("lost = yes", "must say no, calls or handle"),
        ("error.nvmlInit = broken", "unknown error name"),
        ("gpu99.lost = calls", "above 15"),
        ("gpus", "is not 'key = value'"),
    ],
)
def test_wrong_scenario_is_refused_with_its_line(run_python: Run, line: str, complaint: str) -> None:
    done = run_python(f"# comment\n{line}\n", "import pynvml; pynvml.nvmlInit()")
    assert done.returncode != 0
    assert "scenario:2: the line" in done.stderr
    assert complaint in done.stderr


def test_calls_before_init_are_refused(run_python: Run) -> None:
    done = run_python("gpus = 1\n", "import pynvml as n; n.nvmlInit(); n.nvmlShutdown(); n.nvmlDeviceGetCount()")
    assert "Uninitialized" in done.stderr


def test_inventory_in_a_child(scenario_environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in scenario_environment("gpus = 4\n").items():
        monkeypatch.setenv(name, value)
    node = read_inventory_in_child(timeout_s=30)
    assert len(node.gpus) == 4
    assert from_json(NodeState, json.loads(json.dumps(to_json(node)))) == node
    assert to_gpu(node.gpus[2], "h100-sxm5-80gb").pci_bus_id == "0000:52:00.0"
    monkeypatch.setenv("MUSTER_FAKE_NVML_SCENARIO", "/nonexistent/scenario")
    with pytest.raises(InventoryError, match="modprobe nvidia"):
        read_inventory_in_child(timeout_s=30)
    for name, value in scenario_environment("gpus = 4\ngpus = many\n").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ScenarioError, match=r"scenario:2: the line must hold a number") as caught:
        read_inventory_in_child(timeout_s=30)
    assert caught.value.exit_code == 2


def test_inventory_that_a_limit_stops_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    poor = tmp_path / "poor"
    poor.write_text("#!/bin/sh\necho MemoryError >&2\nexit 1\n")
    poor.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(poor))
    with pytest.raises(InventoryError, match=r"status 1 \(MemoryError\); reboot"):
        read_inventory_in_child(timeout_s=30)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (72 << 20, 72 << 20))
    with pytest.raises(InventoryError, match=r"RLIMIT_AS is 72 MiB: raise it"):
        read_inventory_in_child(timeout_s=30)


def test_inventory_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    with pytest.raises(InventoryError, match=r"did not answer within 0\.2 s"):
        read_inventory_in_child(timeout_s=0.2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("00000000:91:00.0", "0000:91:00.0"),
        ("0000:91:00", "0000:91:00.0"),
        ("0001:0A:1F.7", "0001:0a:1f.7"),
        ("GPU", ""),
    ],
)
def test_pci_addresses_have_one_spelling(text: str, wanted: str) -> None:
    assert normal_bus_id(text) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.scenario")), ids=lambda path: path.stem)
def test_scenarios_of_the_lab_leave_the_identity_to_the_host(read_node: Read, path: Path) -> None:
    """But for a GPU that says itself where it comes from."""
    text = path.read_text()
    uuids = {gpu.uuid for n in (1, 2) for gpu in read_node(f"identity = gpu-{n}\n{text}").gpus}
    strangers = text.count(".identity = ")
    assert len(uuids) == 2 * len(read_node(text).gpus) - strangers
