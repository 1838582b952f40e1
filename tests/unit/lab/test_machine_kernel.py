"""The stand-in machine: what is loaded, what is on the disk, what a boot loses, and how NVML answers for it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_burnin.telemetry.kmsg import count_gaps, parse_record
from tests.lab.packages.machine import scenario, tools
from tests.lab.packages.machine.kernel import Kernel, KernelError, describe
from tests.lab.paths import REPOSITORY
from tests.support.lab_machine import RELEASE, again, environment, machine, with_driver


def run_tool(kernel: Kernel, *words: str) -> int:
    return tools.main(words, kernel.top)


def with_source(kernel: Kernel, version: str = "580.105.08", flavour: str = "open") -> None:
    """As the package of the kernel modules puts it there."""
    source = kernel.top / f"usr/src/nvidia-{version}/dkms.conf"
    source.parent.mkdir(parents=True)
    source.write_text(f'FLAVOUR="{flavour}"\n')
    assert run_tool(kernel, "dkms", "add", "-m", "nvidia", "-v", version) == 0


def test_a_bare_machine_has_gpus_on_its_bus_and_no_driver(tmp_path: Path) -> None:
    kernel = machine(tmp_path, nvswitches=2)
    bus = kernel.tree / "sys/bus/pci/devices"
    assert (bus / "0000:1b:00.0/device").read_text() == "0x2330\n"
    assert sum((path / "class").read_text() == "0x068000\n" for path in bus.iterdir()) == 2
    assert (kernel.tree / "proc/sys/kernel/osrelease").read_text() == f"{RELEASE}\n"
    assert kernel.loaded() == {} and not (kernel.tree / "proc/driver/nvidia/version").exists()
    with pytest.raises(KernelError, match=f"nvidia not found in directory /lib/modules/{RELEASE}"):
        kernel.load("nvidia")


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
def test_a_loaded_module_is_seen_in_proc_and_sys_and_lost_at_a_boot_without_its_file(
    tmp_path: Path, flavour: str
) -> None:
    kernel = machine(tmp_path)
    kernel.add_module(RELEASE, "580.105.08", flavour)
    kernel.load("nvidia")
    assert kernel.loaded() == {"version": "580.105.08", "flavour": flavour}
    assert (kernel.tree / "sys/bus/pci/devices/0000:1b:00.0/driver").readlink().name == "nvidia"
    assert again(kernel).loaded()["version"] == "580.105.08", "udev loads it at a boot"
    kernel.remove_module("580.105.08")
    assert kernel.loaded(), "what is loaded does not need its file"
    assert again(kernel).loaded() == {}


def test_what_the_driver_logs_follows_what_is_in_the_kernel_log(tmp_path: Path) -> None:
    """A jump of the numbers would be a gap, in which an XID may be."""
    kernel = machine(tmp_path)
    log = tmp_path / "run/lab/kmsg"
    log.parent.mkdir(parents=True)
    log.write_text("6,0,1,-;Linux version of the lab\n")
    with_driver(kernel)
    kernel.log("more")
    records = [record for line in log.read_text().splitlines() if (record := parse_record(line))]
    assert [record.sequence for record in records] == [0, 1, 2] and count_gaps(records) == 0


def test_a_module_changed_on_the_disk_is_loaded_by_the_next_boot_alone(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    kernel.add_module(RELEASE, "575.57.08", "open")
    kernel.load("nvidia")
    kernel.add_module(RELEASE, "580.105.08", "open")
    kernel.load("nvidia")
    assert kernel.loaded()["version"] == "575.57.08"
    assert again(kernel).loaded()["version"] == "580.105.08"


def test_another_kernel_has_no_module(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    kernel.add_module(RELEASE, "580.105.08", "open")
    fresh = again(kernel, kernel="6.1.0-42-amd64")
    assert fresh.release == "6.1.0-42-amd64" and fresh.loaded() == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"secure_boot": True}, "Key was rejected by service"),
        ({"gpu_modules": "proprietary"}, "No such device"),
        ({"nouveau": True}, "No such device"),
        ({"load_error": "Cannot allocate memory"}, "could not insert 'nvidia': Cannot allocate memory"),
    ],
)
def test_the_kernel_refuses_a_module_for_a_reason(tmp_path: Path, values: dict[str, object], reason: str) -> None:
    kernel = machine(tmp_path, **values)
    kernel.add_module(RELEASE, "580.105.08", "open")
    with pytest.raises(KernelError, match=reason):
        kernel.load("nvidia")
    assert kernel.loaded() == {}


def test_nouveau_stays_away_where_modprobe_says_so(tmp_path: Path) -> None:
    kernel = machine(tmp_path, nouveau=True)
    assert kernel.modules() == ["nouveau"]
    (tmp_path / "etc/modprobe.d").mkdir()
    (tmp_path / "etc/modprobe.d/nvidia.conf").write_text("blacklist nouveau\n")
    assert again(kernel).modules() == []


def test_a_signed_module_loads_with_secure_boot_when_its_key_is_enrolled(tmp_path: Path) -> None:
    kernel = machine(tmp_path, secure_boot=True, headers=True)
    with_source(kernel)
    assert run_tool(kernel, "dkms", "install", "-m", "nvidia", "-v", "580.105.08") == 0
    assert describe(kernel.module("nvidia") or Path())["signer"] == tools.SIGNER
    assert run_tool(kernel, "mokutil", "--test-key", "/var/lib/dkms/mok.pub") == 0
    assert run_tool(kernel, "modprobe", "nvidia") == 1
    scenario.change(tmp_path, {"key_enrolled": True})
    assert run_tool(kernel, "modprobe", "nvidia") == 0


def test_which_file_would_be_loaded_is_asked_for_a_kernel_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = machine(tmp_path)
    kernel.add_module("6.1.0-99-amd64", "580.105.08", "open")
    asked = ("modprobe", "--show-depends", "-d", str(kernel.tree), "-C", str(tmp_path), "-S")
    assert run_tool(kernel, *asked, "6.1.0-99-amd64", "nvidia") == 0
    assert capsys.readouterr().out == f"insmod {kernel.module('nvidia', '6.1.0-99-amd64')}\n"
    assert run_tool(kernel, *asked, RELEASE, "nvidia") == 1
    assert f"FATAL: Module nvidia not found in directory /lib/modules/{RELEASE}" in capsys.readouterr().err


def test_an_open_driver_cannot_be_unloaded(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    kernel.add_module(RELEASE, "580.105.08", "open")
    kernel.load("nvidia-uvm")
    kernel.hold("nvidia-persistenced", os.getpid())
    with pytest.raises(KernelError, match="in use"):
        kernel.unload("nvidia")
    kernel.hold("nvidia-persistenced", 0)
    kernel.unload("nvidia")
    assert kernel.modules() == [] and not (kernel.tree / "proc/driver/nvidia").exists()


def test_dkms_builds_where_headers_are_and_says_where_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = machine(tmp_path)
    with_source(kernel)
    assert run_tool(kernel, "dkms", "install", "-m", "nvidia", "-v", "580.105.08") == 1
    assert f"headers for kernel {RELEASE} cannot be found" in capsys.readouterr().err
    assert run_tool(kernel, "lab-nvidia", "headers", RELEASE) == 0, "new headers: built at once"
    run_tool(kernel, "dkms", "status")
    assert capsys.readouterr().out == f"nvidia/580.105.08, {RELEASE}, x86_64: installed\n"
    run_tool(kernel, "modinfo", "-F", "version", "nvidia")
    assert capsys.readouterr().out == "580.105.08\n"
    assert run_tool(kernel, "dkms", "remove", "-m", "nvidia", "-v", "580.105.08", "--all") == 0
    assert run_tool(kernel, "modinfo", "nvidia") == 1


def test_dkms_fails_or_builds_for_another_kernel_when_told(tmp_path: Path) -> None:
    kernel = machine(tmp_path, headers=True, dkms_fails=True)
    with_source(kernel)
    assert run_tool(kernel, "dkms", "install", "-m", "nvidia", "-v", "580.105.08") == 10
    scenario.change(tmp_path, {"dkms_fails": False, "module_kernel": "6.1.0-40-amd64"})
    assert run_tool(kernel, "dkms", "install", "-m", "nvidia", "-v", "580.105.08") == 0
    assert kernel.module("nvidia") is None and kernel.module("nvidia", "6.1.0-40-amd64")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"fabrik_stuck": [1]}, "fabrik_stuck is unknown"),
        ({"nvswitches": "4"}, "nvswitches is '4'"),
        ({"nvswitches": True}, "nvswitches is True"),
        ([], "no mapping"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(given: object, reason: str) -> None:
    with pytest.raises(scenario.ScenarioError, match=reason):
        scenario.check(given, "host one")


def test_the_changes_that_the_docs_show_are_taken(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    page = (REPOSITORY / "docs/operations/lab.md").read_text()
    shown = [shlex.split(command) for command in re.findall(r"`(lab-nvidia [^`]+)`", page)]
    assert len(shown) >= 5
    for words in shown:
        assert run_tool(kernel, *words) == 0, words


# ---- NVML for the loaded module ----

_ASK = """import json
from tests.lab.packages.machine import nvml
try:
    library = nvml.Nvml()
    print(json.dumps([0, library.driver_version(), library.gpus()]))
except nvml.NvmlError as error:
    print(json.dumps([error.code, "", []]))
"""


def ask(kernel: Kernel, version: str = "580.105.08", code: str = _ASK) -> tuple[int, str, list[dict[str, object]]]:
    """What the library of a driver's version says on this machine: code, driver, GPUs."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=environment(kernel, version), cwd=REPOSITORY,
    )  # fmt: skip
    answer, driver, gpus = json.loads(done.stdout)
    return answer, driver, gpus


def test_nvml_answers_for_the_module_that_is_loaded(tmp_path: Path) -> None:
    kernel = machine(tmp_path, nvswitches=4)
    assert ask(kernel)[0] == 9, "no driver is loaded"
    with_driver(kernel)
    code, driver, gpus = ask(kernel)
    assert (code, driver, len(gpus)) == (0, "580.105.08", 2)
    assert [gpu["fabric_state"] for gpu in gpus] == [2, 2], "in progress until a fabric manager runs"
    assert ask(kernel, "575.57.08")[0] == 18, "the library is of another version"
    kernel.set_nvml({"gpu1.fabric_state": "3"})
    assert [gpu["fabric_state"] for gpu in ask(kernel)[2]] == [2, 3]


def test_services_that_change_it_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """As at a boot: the persistence daemon, the fabric manager and DCGM."""
    kernel = with_driver(machine(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: kernel.set_nvml({f"gpu0.key{number}": "1"}), range(100)))
    assert {f"gpu0.key{number}" for number in range(100)} <= kernel.nvml().keys()


def test_without_nvswitches_there_is_no_fabric(tmp_path: Path) -> None:
    kernel = with_driver(machine(tmp_path))
    assert [gpu["fabric_state"] for gpu in ask(kernel)[2]] == [0, 0]


def test_what_is_set_through_nvml_lasts_as_long_as_on_a_real_gpu(tmp_path: Path) -> None:
    kernel = with_driver(machine(tmp_path))
    change = """import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
library.nvmlInit_v2()
gpu = ctypes.c_void_p()
library.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(gpu))
assert library.nvmlDeviceSetPowerManagementLimit(gpu, 100) == 2
for call in (library.nvmlDeviceSetPersistenceMode(gpu, 1), library.nvmlDeviceSetPowerManagementLimit(gpu, 500000),
             library.nvmlDeviceSetEccMode(gpu, 0), library.nvmlDeviceSetMigMode(gpu, 1, ctypes.byref(ctypes.c_int()))):
    assert call == 0, call
"""
    _, _, gpus = ask(kernel, code=change + _ASK)
    assert [gpus[1][key] for key in ("persistence", "power_limit_mw", "ecc", "mig")] == [
        True, 500000, [True, False], [True, True],
    ]  # fmt: skip
    assert gpus[0]["power_limit_mw"] == 700000
    _, _, gpus = ask(again(kernel))
    assert [gpus[1][key] for key in ("persistence", "power_limit_mw", "ecc", "mig")] == [
        False, 700000, [False, False], [False, False],
    ]  # fmt: skip
