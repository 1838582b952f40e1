"""The stand-in machine is read by the readers of real hosts: what they tell of it is what its scenario says."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import (
    NotInstalledError,
    Output,
    run_command,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import nvml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts, gather

from tests.lab.packages.machine import tools
from tests.lab.packages.machine.kernel import Kernel
from tests.support.lab_machine import RELEASE, environment, machine


def facts_of(kernel: Kernel) -> Facts:
    def run(command: Sequence[str], timeout_s: float = 30.0) -> Output:
        if command[0] not in ("modinfo", "modprobe", "mokutil"):
            raise NotInstalledError(f"{command[0]} is not installed")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = tools.main(command, kernel.top)
        return Output(code, out.getvalue(), "")

    return gather(kernel.top, run, kernel_root=kernel.tree)


def test_a_bare_machine(tmp_path: Path) -> None:
    facts = facts_of(machine(tmp_path, nvswitches=2))
    assert set(facts.errors) <= {"packages", "services", "library"}, facts.errors
    assert facts.simulated
    assert {gpu.device for gpu in facts.gpus} == {"2330"}
    assert (facts.fabric.nvswitches, facts.kernel.release, facts.kernel.headers) == (2, RELEASE, False)
    assert (facts.kernel.secure_boot, facts.kernel.signing_keys) == ("off", None)
    assert (facts.driver.loaded_version, facts.driver.on_disk, facts.driver.nouveau) == ("", {}, False)


def test_a_driver_that_is_loaded_and_another_on_the_disk(tmp_path: Path) -> None:
    kernel = machine(tmp_path, headers=True, secure_boot=True)
    kernel.add_module(RELEASE, "575.57.08", "open", "Canonical Ltd. Kernel Module Signing")
    kernel.load("nvidia")
    kernel.add_module(RELEASE, "580.105.08", "proprietary")
    facts = facts_of(kernel)
    assert (facts.driver.loaded_version, facts.driver.loaded_flavour) == ("575.57.08", "open")
    module = (facts.driver.on_disk or {})[RELEASE]
    assert (module.version, module.flavour, module.signer) == ("580.105.08", "proprietary", "")
    assert (facts.kernel.headers, facts.kernel.secure_boot, facts.kernel.signing_keys) == (True, "on", {})
    assert {gpu.bound_driver for gpu in facts.gpus} == {"nvidia"}


def test_the_key_that_signs_modules(tmp_path: Path) -> None:
    for enrolled in (True, False):
        kernel = machine(tmp_path / str(enrolled), secure_boot=True, key_enrolled=enrolled)
        key = kernel.top / "var/lib/dkms/mok.pub"
        key.parent.mkdir(parents=True)
        key.touch()
        assert facts_of(kernel).kernel.signing_keys == {str(key): enrolled}


def test_nouveau(tmp_path: Path) -> None:
    assert facts_of(machine(tmp_path, nouveau=True)).driver.nouveau is True


def test_nvml_s_answers(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    run = partial(run_command, environment=environment(kernel, "580.105.08"))
    assert nvml.read(run, may_start=False).code == nvml.DRIVER_NOT_LOADED
    kernel.add_module(RELEASE, "575.57.08", "open")
    kernel.load("nvidia")
    assert nvml.read(run, may_start=True).code == nvml.LIBRARY_MISMATCH
    kernel.unload("nvidia")
    kernel.add_module(RELEASE, "580.105.08", "open")
    kernel.load("nvidia")
    read = nvml.read(run, may_start=True)
    assert (read.error, read.code, read.driver_version) == ("", 0, "580.105.08")
    assert read.gpus is not None and [gpu.persistence for gpu in read.gpus] == [False, False]
