"""The module gpu_facts as Ansible sends it, the reading of a library that is there, and NVML's answers in words.

Only here: that Ansible sends all that the module needs to a host.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import nvml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.explain import nvml_problem
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts
from ansible_collections.muster.fleet.plugins.modules import gpu_facts

from tests.support.nvidia_host import KERNEL, NvidiaHost, h100

Environment = Callable[[str], dict[str, str]]


def scenario(monkeypatch: pytest.MonkeyPatch, environment: Environment, text: str, fake_nvml: Path) -> str:
    monkeypatch.setenv("MUSTER_FAKE_NVML_SCENARIO", environment(text)["MUSTER_FAKE_NVML_SCENARIO"])
    return str(fake_nvml / "libnvidia-ml.so.1")


def test_gpus_of_a_library(monkeypatch: pytest.MonkeyPatch, scenario_environment: Environment, fake_nvml: Path) -> None:
    text = "gpus = 2\ngpu1.fabric_state = 2\ngpu1.error.nvmlDeviceGetEccMode = 15\ngpu0.persistence = no\n"
    library = scenario(monkeypatch, scenario_environment, text, fake_nvml)
    read = nvml.read(run_command, may_start=False, name=library)
    assert (read.error, read.code, read.simulated) == ("", 0, True)
    assert read.gpus is not None
    first, second = read.gpus
    assert first.uuid is not None and first.uuid.startswith("GPU-")
    assert (first.errors, first.ecc, first.mig, first.fabric_state) == ({}, "on", "off", "completed")
    assert first.power_limit_w is not None and 100 < first.power_limit_w < 2000
    assert (first.persistence, second.persistence) == (False, True)
    assert second.fabric_state == "in_progress"
    assert second.ecc is None and "nvmlDeviceGetEccMode failed with NVML error 15" in second.errors["ecc"]
    assert first.pci != second.pci


def test_a_call_that_hangs_is_bounded(
    monkeypatch: pytest.MonkeyPatch, scenario_environment: Environment, fake_nvml: Path
) -> None:
    library = scenario(monkeypatch, scenario_environment, "gpus = 1\nhang.nvmlDeviceGetMigMode = 1000\n", fake_nvml)
    read = nvml.read(run_command, may_start=True, timeout_s=0.5, name=library)
    assert "gave no answer in 0.5 s" in read.error
    assert (read.code, read.gpus) == (None, None)


def explained(host: NvidiaHost, code: int, **answer: Any) -> str:
    host.answer_nvml(code=code, error=f"nvmlInit_v2 failed with NVML error {code}", gpus=None, **answer)
    return nvml_problem(host.gather())


def test_nothing_to_explain(tmp_path: Path) -> None:
    assert nvml_problem(h100(tmp_path).gather()) == ""


def test_driver_not_loaded_in_words(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    host.add_module("580.105.08", "6.1.0-48-amd64")
    assert f"no module for the running kernel {KERNEL}, only for 6.1.0-48-amd64; build" in explained(host, 9)
    host.add_module("580.105.08")
    assert "no NVIDIA GPU is on the PCI bus" in explained(host, 9)
    host.add_device()
    assert "run `modprobe nvidia`" in explained(host, 9)
    secure_boot = host.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\6\0\0\0\1")
    assert "Secure Boot is on and" in explained(host, 9)
    secure_boot.write_text("\6\0\0\0\0")
    host.put("proc/modules", "nouveau 2000000 1 - Live 0x0\n")
    assert "nouveau is; keep nouveau from loading" in explained(host, 9)
    host.load("580.105.08")
    assert "its module 580.105.08 is, but does not answer" in explained(host, 9)


def test_mismatch_of_library_and_module_in_words(tmp_path: Path) -> None:
    host = h100(tmp_path)
    host.load("575.57.08")
    said = explained(host, 18)
    assert said.startswith("libnvidia-ml is 580.105.08 and the loaded kernel module is 575.57.08 (NVML error 18): the")
    assert said.endswith("the old module still runs; reboot, or unload and load the module")
    host.add_module("575.57.08")
    assert "the module on the disk for this kernel is 575.57.08: a reboot does not help" in explained(host, 18)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (12, "libnvidia-ml.so.1 is not installed"),
        (4, "refuses access"),
        (999, "NVML error 999; look at the kernel log"),
    ],
)
def test_other_answers_in_words(tmp_path: Path, code: int, words: str) -> None:
    assert words in explained(h100(tmp_path), code)


def test_the_schema_names_every_fact(tmp_path: Path) -> None:
    documented = yaml.safe_load(gpu_facts.RETURN)["facts"]["contains"]
    facts = h100(tmp_path).gather().to_json()
    assert list(documented) == [field.name for field in fields(Facts)] == list(facts)
    for name in ("kernel", "driver", "library", "nvml", "fabric", "dcgm", "toolkit"):
        assert set(documented[name]["contains"]) == set(facts[name]), name
    platform = documented["fabric"]["contains"]["platform"]["contains"]
    assert set(platform) == set(facts["fabric"]["platform"])
    assert set(documented["pci"]["contains"]) == set(facts["pci"][0])
    assert set(documented["nvml"]["contains"]["gpus"]["contains"]) == set(facts["nvml"]["gpus"][0])


@pytest.mark.slow
def test_ansible_sends_the_folder_and_the_host_needs_no_driver(
    tmp_path: Path, ansible_playbook: Callable[..., CompletedProcess[str]]
) -> None:
    (tmp_path / "kernel").mkdir()
    tasks = [
        {"muster.fleet.gpu_facts": {"kernel_root": str(tmp_path / "kernel")}, "register": "gpu"},
        {
            "ansible.builtin.copy": {"dest": f"{tmp_path}/facts.json", "content": "{{ gpu | to_json }}"},
            "check_mode": False,
        },
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = ansible_playbook("play.yml", "--check", "-e", f"ansible_python_interpreter={sys.executable}")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "facts.json").read_text())
    facts = result["facts"]
    assert facts["simulated"] and not result["changed"]
    assert "proc/sys/kernel/osrelease" in facts["errors"]["kernel.release"]
    # The process that asks NVML was sent too: it tells of the library, or of the module on a machine that has both.
    assert facts["nvml"]["code"] in (nvml.LIBRARY_NOT_FOUND, nvml.DRIVER_NOT_LOADED), facts["nvml"]
    assert result["nvml_problem"]
