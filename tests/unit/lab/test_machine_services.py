"""The stand-in services: each does what the scenario says, refuses what the real one refuses, and can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.packages.machine import dcgm, exporter, fabric, persistenced, scenario
from tests.lab.packages.machine.kernel import Kernel
from tests.lab.paths import REPOSITORY
from tests.support.lab_machine import again, environment, machine, with_driver

DEADLINE_S = 20
VERSION = "580.105.08"


class Machine:
    """Runs the stand-in programs on a machine, and ends those that go on."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.daemons: list[int] = []

    def run(self, module: str, function: str, *words: str, version: str = VERSION) -> subprocess.CompletedProcess[str]:
        """A program to its end; one that goes to the background returns at once."""
        with (self.kernel.top / "out").open("w+") as out:
            done = subprocess.run(
                self._command(module, function, words, version),
                stdout=out, stderr=out, check=False, env=environment(self.kernel), cwd=REPOSITORY, timeout=DEADLINE_S,
            )  # fmt: skip
            for path in (self.kernel.top / "run").glob("*/*.pid"):
                self.daemons.append(int(path.read_text()))
        text = (self.kernel.top / "out").read_text()
        return subprocess.CompletedProcess(done.args, done.returncode, text, "")

    def start(self, module: str, function: str, *words: str) -> subprocess.Popen[bytes]:
        """A program of the foreground."""
        with (self.kernel.top / "service.log").open("w") as out:
            process = subprocess.Popen(
                self._command(module, function, words, VERSION),
                stdout=out, stderr=out, env=environment(self.kernel), cwd=REPOSITORY,
            )  # fmt: skip
        self.daemons.append(process.pid)
        return process

    def end(self) -> None:
        """End what still runs."""
        for pid in set(self.daemons):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    @staticmethod
    def _command(module: str, function: str, words: tuple[str, ...], version: str) -> list[str]:
        versions = [] if module in ("nvidia_smi", "persistenced") else [version]
        call = f"m.{function}({list(words)!r}, *{versions!r})"
        return [
            sys.executable,
            "-c",
            f"import sys; from tests.lab.packages.machine import {module} as m; sys.exit({call})",
        ]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def make(driver: bool = True, **values: object) -> Machine:
        kernel = machine(tmp_path, **values)
        machines.append(Machine(with_driver(kernel) if driver else kernel))
        return machines[-1]

    yield make
    for one in machines:
        one.end()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; fails with what it was after the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not in {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def states(one: Machine) -> list[str]:
    """The fabric state of each GPU, as nvidia-smi tells it."""
    done = one.run("nvidia_smi", "main", "--query-gpu=fabric.state", "--format=csv,noheader")
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


# ---- fabric ----


def test_the_fabric_manager_registers_all_gpus_but_those_that_are_stuck(made: Callable[..., Machine]) -> None:
    one = made(nvswitches=4, fabric_stuck=[1])
    assert states(one) == ["In Progress", "In Progress"]
    assert one.run("fabric", "main").returncode == 0
    until(lambda: states(one) == ["Completed", "In Progress"], "GPU 0 is registered, GPU 1 never")


@pytest.mark.parametrize(
    ("values", "version", "reason"),
    [
        ({}, VERSION, "NV_WARN_NOTHING_TO_DO"),
        ({"nvswitches": 4}, "580.65.06", "version 580.65.06 don't match with driver version 580.105.08"),
        ({"nvswitches": 4, "fabric_exits": True}, VERSION, "failed to initialize all the available NVSwitches"),
        ({"nvswitches": 4, "driver": False}, VERSION, "failed to initialize NVML: error 9"),
    ],
)
def test_the_fabric_manager_does_not_start_for_a_reason(
    made: Callable[..., Machine], values: dict[str, bool], version: str, reason: str
) -> None:
    done = made(**values).run("fabric", "main", version=version)
    assert done.returncode == 1 and reason in done.stdout


def test_nvlink_5_needs_the_subnet_manager_ibstat_and_a_kernel_module(made: Callable[..., Machine]) -> None:
    one = made(nvlink5=True)
    for program, missing in ((fabric.NVLSM, "nvlsm"), (fabric.IBSTAT, "ibstat")):
        assert f"{missing} is not installed" in one.run("fabric", "main").stdout
        path = one.kernel.top / program
        path.parent.mkdir(parents=True)
        path.touch()
    assert "ib_umad is not loaded" in one.run("fabric", "main").stdout
    one.kernel.load("ib_umad")
    assert one.run("fabric", "main").returncode == 0


def test_imex_is_ready_with_nodes_and_not_without(made: Callable[..., Machine]) -> None:
    one = made(nvlink5=True)
    assert "names no node" in one.run("fabric", "imex").stdout
    assert one.run("fabric", "imex_ctl", "-q").returncode == 1
    nodes = one.kernel.top / fabric.IMEX_NODES
    nodes.parent.mkdir(parents=True)
    nodes.write_text("# nodes\n198.18.0.1\n")
    assert one.run("fabric", "imex").returncode == 0
    assert one.run("fabric", "imex_ctl", "-q").stdout == "READY\n"
    assert json.loads(one.run("fabric", "imex_ctl", "-N", "-j").stdout)["nodes"]["0"]["host"] == "198.18.0.1"


# ---- persistence ----


def test_persistenced_keeps_the_driver_open_and_needs_one(made: Callable[..., Machine]) -> None:
    one = made(driver=False)
    assert one.run("persistenced", "main").returncode == 1
    with_driver(one.kernel)
    assert one.run("persistenced", "main").returncode == 0
    until(lambda: one.kernel.nvml().get("gpu1.persistence") == "yes", "persistence is on")
    assert one.kernel.holders() == ["nvidia-persistenced"]
    os.kill(int((one.kernel.top / persistenced.PID_FILE).read_text()), signal.SIGTERM)
    until(lambda: one.kernel.nvml().get("gpu1.persistence") == "no", "persistence is off")


def test_persistenced_can_end_at_its_start(made: Callable[..., Machine]) -> None:
    assert made(persistenced_exits=True).run("persistenced", "main").returncode == 1


# ---- nvidia-smi ----


def test_nvidia_smi_ends_as_the_real_one_without_a_driver_and_with_another(made: Callable[..., Machine]) -> None:
    one = made(driver=False)
    done = one.run("nvidia_smi", "main")
    assert done.returncode == 9 and "couldn't communicate with the NVIDIA driver" in done.stdout
    with_driver(one.kernel, "575.57.08")
    done = one.run("nvidia_smi", "main")
    assert done.returncode == 18 and "Driver/library version mismatch" in done.stdout


def test_nvidia_smi_sets_what_it_then_tells(made: Callable[..., Machine]) -> None:
    one = made()
    assert one.run("nvidia_smi", "main", "-i", "1", "-pl", "450").returncode == 0
    assert one.run("nvidia_smi", "main", "-pm", "1").returncode == 0
    query = "--query-gpu=index,power.limit,persistence_mode,mig.mode.current"
    done = one.run("nvidia_smi", "main", query, "--format=csv,noheader,nounits")
    assert done.stdout.splitlines() == ["0, 700.00, Enabled, Disabled", "1, 450.00, Enabled, Disabled"]
    assert one.run("nvidia_smi", "main", "--query-gpu=index,nonsense", "--format=csv").returncode == 2
    assert one.run("nvidia_smi", "main", "--made-up").returncode == 2


# ---- DCGM ----


def engine(one: Machine) -> str:
    """A host engine on a socket that answers; where dcgmi finds it."""
    host = f"unix://{one.kernel.top}/engine"
    one.start("dcgm", "hostengine", "-n", "--service-account", "nvidia-dcgm", "-d", host.removeprefix("unix://"))
    until(lambda: one.run("dcgm", "dcgmi", "-v", "--host", host).returncode == 0, "the host engine answers")
    return host


@pytest.mark.slow
def test_a_host_engine_sees_the_gpus_of_its_start_and_forgets_watches_at_its_end(made: Callable[..., Machine]) -> None:
    one = made()
    host = engine(one)
    listing = one.run("dcgm", "dcgmi", "discovery", "-l", "--host", host).stdout
    assert listing.startswith("2 GPUs found.\n") and "PCI Bus ID: 00000000:43:00.0" in listing
    check = one.run("dcgm", "dcgmi", "health", "-c", "--host", host)
    assert check.returncode == 253 and "Health watches not enabled" in check.stdout
    assert one.run("dcgm", "dcgmi", "health", "-s", "a", "--host", host).returncode == 0
    assert "| NVLINK          | On " in one.run("dcgm", "dcgmi", "health", "-f", "--host", host).stdout
    answer = json.loads(one.run("dcgm", "dcgmi", "health", "-c", "-j", "--host", host).stdout)
    assert answer["body"]["Overall Health"]["value"] == "Healthy"
    assert one.kernel.holders() == ["nv-hostengine"]
    one.end()
    assert one.run("dcgm", "dcgmi", "discovery", "-l", "--host", host).returncode == 235
    scenario.change(one.kernel.top, {"dcgm_gpus": 1, "dcgm_health": "Failure"})
    again_there = engine(one)
    assert one.run("dcgm", "dcgmi", "discovery", "-l", "--host", again_there).stdout.startswith("1 GPU found.\n")
    assert "| NVLINK          | Off" in one.run("dcgm", "dcgmi", "health", "-f", "--host", again_there).stdout
    one.run("dcgm", "dcgmi", "health", "-s", "mp", "--host", again_there)
    assert "Failure" in one.run("dcgm", "dcgmi", "health", "-c", "--host", again_there).stdout


def test_a_host_engine_started_before_the_driver_stays_blind(made: Callable[..., Machine]) -> None:
    one = made(driver=False)
    host = engine(one)
    with_driver(one.kernel)
    assert one.run("dcgm", "dcgmi", "discovery", "-l", "--host", host).stdout.startswith("0 GPUs found.\n")


def test_a_host_engine_can_end_at_its_start(made: Callable[..., Machine]) -> None:
    assert made(dcgm_exits=True).run("dcgm", "hostengine", "-n").returncode == 1


def test_a_deaf_host_engine_takes_connections_and_answers_none(
    made: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(dcgm_deaf=True)
    path = one.kernel.top / "engine"
    one.start("dcgm", "hostengine", "-n", "-d", str(path))
    log = one.kernel.top / "service.log"
    until(lambda: "Started host engine" in log.read_text(), "the host engine listens")
    monkeypatch.setattr(dcgm, "ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError):
        dcgm.ask(f"unix://{path}")


def test_what_dcgmi_does_not_know_is_refused_and_not_made_up(made: Callable[..., Machine]) -> None:
    assert made().run("dcgm", "dcgmi", "diag", "-r", "3").returncode == 1


def test_the_exporter_answers_with_the_fields_of_its_file_for_each_gpu(
    made: Callable[..., Machine], tmp_path: Path
) -> None:
    one = made()
    host = engine(one)
    path = tmp_path / "counters.csv"
    path.write_text(
        "# fields\nDCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\nDCGM_FI_DEV_XID_ERRORS, gauge, Last XID.\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    one.start("exporter", "main", "-f", str(path), "-a", f"127.0.0.1:{port}", "-r", host)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert (
            len(lines) == 4
            and lines[0].startswith('DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-')
            and lines[0].endswith(" 31")
        )
        return True

    until(answers, "the exporter answers")


# What a line of the GPUs' scenario, or of the kernel log, makes of a field of GPU 1; GPU 0 is well.
SHOWN = {
    "gpu1.ecc_uncorrected_volatile = 3": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "3"),
    "gpu1.remap_pending = yes": ("DCGM_FI_DEV_ROW_REMAP_PENDING", "1"),
    "gpu1.remap_failure = yes": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1"),
    "gpu1.remapped_uncorrected = 2": ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "2"),
    "gpu1.clocks_event_reasons = 0x40": ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "64"),
    "gpu1.nvlink_recovery = 4": ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "4"),
    "gpu1.nvlink_recovery_failed = 5": ("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "5"),
    "gpu1.temperature_c = 95": ("DCGM_FI_DEV_GPU_TEMP", "95"),
    "4,9,1,-;NVRM: Xid (PCI:0000:43:00): 79, pid=1": ("DCGM_FI_DEV_XID_ERRORS", "79"),
}


def test_the_exporter_shows_what_its_hosts_gpus_have_now(made: Callable[..., Machine], tmp_path: Path) -> None:
    one = made()
    host = engine(one)
    path = tmp_path / "counters.csv"
    path.write_text("".join(f"{field}, gauge, A field.\n" for field, _ in SHOWN.values()))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    one.start("exporter", "main", "-f", str(path), "-a", f"127.0.0.1:{port}", "-r", host)

    def shown() -> dict[str, str]:
        """Value by field and GPU; nothing while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        words = [re.split(r'\{gpu="|",UUID.*\} ', line) for line in lines if not line.startswith("#")]
        return {f"{field} {gpu}": value for field, gpu, value in words}

    until(lambda: bool(shown()), "the exporter answers")
    fine = shown()
    log = one.kernel.top / "run/lab/kmsg"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{line}\n" for line in SHOWN if "NVRM" in line))
    scenario_file = one.kernel.top / "gpus"
    scenario_file.write_text("gpus = 2\n" + "".join(f"{line}\n" for line in SHOWN if "NVRM" not in line))

    sick = shown()

    for field, value in SHOWN.values():
        assert fine[f"{field} 0"] == fine[f"{field} 1"] == sick[f"{field} 0"] != value, field
        assert sick[f"{field} 1"] == value, field
    # One that is gone is shown no more, nor is a field that a GPU does not support.
    scenario_file.write_text("gpus = 1\nerror.nvmlDeviceGetRemappedRows = not_supported\n")
    left = shown()
    assert {name.split()[1] for name in left} == {"0"}
    assert "DCGM_FI_DEV_ROW_REMAP_FAILURE 0" not in left


@pytest.mark.parametrize(("state", "status", "shown"), [(0, 0, 0), (2, 0, 2), (3, 0, 3), (3, 9, 4)])
def test_a_registration_that_has_failed_is_a_status_of_its_own(state: int, status: int, shown: int) -> None:
    gpu = {"index": 0, "uuid": "a", "pci": "b", "name": "c", "fabric_state": state, "fabric_status": status}
    text = exporter.metrics([("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "gauge", "Fabric.")], [gpu])
    assert text.splitlines()[-1].endswith(f"}} {shown}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "malformed CSV record"),
        ("GPU_TEMP, gauge, Temperature.", "could not find DCGM field"),
        ("DCGM_FI_DEV_GPU_TEMP, gauges, Temperature.", "could not find Prometheus metric type"),
    ],
)
def test_a_counter_file_with_a_mistake_is_refused_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(f"# one\n{line}\n")
    with pytest.raises(exporter.CounterFileError, match=rf"counters\.csv:2: {reason}"):
        exporter.counters(path)


def test_a_boot_ends_the_fabrics_registration(made: Callable[..., Machine]) -> None:
    one = made(nvswitches=4)
    assert one.run("fabric", "main").returncode == 0
    until(lambda: states(one) == ["Completed", "Completed"], "all GPUs are registered")
    one.end()
    again(one.kernel)
    assert states(one) == ["In Progress", "In Progress"]
