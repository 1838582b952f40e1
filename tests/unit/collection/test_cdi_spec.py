"""The module muster.fleet.cdi_spec: what it does with the units, and what it tells."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import nvml, parts, services
from ansible_collections.muster.fleet.plugins.modules import cdi_spec

from tests.support.nvidia_host import GPU

NODE = {"path": "/dev/nvidia0", "hostPath": "/dev/null"}
FITS = json.dumps({
    "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-1", "containerEdits": {"deviceNodes": [NODE]}}]
})  # fmt: skip
UNIT = systemd_unit.Unit("nvidia-cdi-refresh.service", True, "inactive", "dead", "success", True, False, (), None)
ANSWER = nvml.Nvml("", 0, "580.105.08", "580.105.08", (nvml.Gpu(**GPU),), simulated=False)


class Host:
    """A host whose units and NVML do as the test says; `makes` is what the unit writes, None: it fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.makes: str | None = FITS
        self.unit = UNIT
        self.watched = True
        self.nvml = ANSWER
        self.containerd: str | None = "Server:\n  Version:  v2.4.2\n"
        self.asked: list[str] = []
        self.warned: list[str] = []
        self.packages: dict[str, str] = {}
        self.binaries: dict[str, Any] | None = None
        self.files: dict[str, str] = {}
        self.busy = ""

    def systemctl(self, arguments: list[str]) -> str:
        self.asked.append(arguments[0])
        if arguments[0] == "start":
            if self.makes is None:
                raise FleetError("`systemctl start` failed")
            self.path.write_text(self.makes)
        return ""

    def bring_up(self, wanted: systemd_unit.Wanted, *, act: bool) -> systemd_unit.Decision:
        return systemd_unit.Decision(() if self.watched else ("enable", "start"), ())

    def run(self, command: list[str], timeout_s: float = 30.0) -> Output:
        if self.containerd is None:
            raise CommandError("ctr gave no answer in 30 s")
        return Output(0, self.containerd, "")

    def look(self, check_mode: bool = False) -> dict[str, Any]:
        given = {
            "path": str(self.path), "service": UNIT.name, "watcher": "w.path", "kernel_root": "/", "timeout_s": 1.0,
            "packages": self.packages, "repository_url": "", "files": self.files,
            "binaries": self.binaries,
        }  # fmt: skip
        return cdi_spec.bring(SimpleNamespace(params=given, check_mode=check_mode, warn=self.warned.append))  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path / "nvidia.yaml")
    monkeypatch.setattr(systemd_unit, "systemctl", made.systemctl)
    monkeypatch.setattr(systemd_unit, "bring_up", made.bring_up)
    monkeypatch.setattr(systemd_unit, "show", lambda name: made.unit)
    monkeypatch.setattr(systemd_unit, "log_tail", lambda name: 'level=error msg="failed to initialize NVML"')
    monkeypatch.setattr(cdi_spec, "run_command", made.run)
    monkeypatch.setattr(services, "at_work", lambda run: made.busy)
    monkeypatch.setattr(nvml, "read", lambda *given: made.nvml)
    return made


def test_a_new_host_gets_its_specification_and_nothing_is_left_to_do_the_second_time(host: Host) -> None:
    host.unit, host.watched = replace(UNIT, enabled=False), False
    first = host.look()
    assert first["actions"] == ["enable", "start", "enable", "make"]
    assert (first["held"], first["devices"]) == ("", ["GPU-1"])
    assert host.asked == ["enable", "start"]
    host.unit, host.watched = UNIT, True
    second = host.look()
    assert (second["changed"], second["held"], host.warned) == (False, "", [])


def test_check_mode_of_a_bare_host_says_what_would_be_done_and_does_nothing(host: Host) -> None:
    host.unit, host.watched = replace(UNIT, loaded=False, enabled=False), False
    found = host.look(check_mode=True)
    assert found["actions"] == ["enable", "start", "enable", "make"] and found["held"] == ""
    assert host.asked == [] and not host.path.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"makes": None}, "nvidia-cdi-refresh.service failed: level=error"),
        ({"makes": FITS.replace("GPU-1", "GPU-9")}, "has no device for the GPU GPU-1"),
        ({"nvml": replace(ANSWER, error="the driver is not loaded", gpus=None)}, "NVML: the driver is not loaded"),
        ({"nvml": replace(ANSWER, gpus=())}, "NVML shows no GPU"),
        ({"containerd": "Server:\n  Version:  1.6.20\n"}, "containerd 1.6.20 knows no CDI"),
        ({"containerd": None}, "containerd does not answer"),
    ],
)
def test_each_reason_why_containers_would_not_get_their_gpus_is_told(
    host: Host, changes: dict[str, Any], said: str
) -> None:
    for name, value in changes.items():
        setattr(host, name, value)
    found = host.look()
    assert said in found["held"] and said in host.warned[0]


@pytest.mark.parametrize("check_mode", [False, True])
def test_programs_of_the_mirror_come_before_the_specification_and_once(
    host: Host, tmp_path: Path, check_mode: bool
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/nvidia-ctk").write_text("program")
    installed = tmp_path / "bin/nvidia-ctk"
    host.binaries = {
        "names": ["nvidia-ctk"], "directory": str(installed.parent), "url": (tmp_path / "mirror").as_uri(),
        "checksums": {"nvidia-ctk": sha256(b"program").hexdigest()}, "timeout_s": 5,
    }  # fmt: skip
    found = host.look(check_mode=check_mode)
    assert found["actions"] == ["nvidia-ctk", "make"]
    assert installed.exists() is not check_mode
    if not check_mode:
        assert host.look()["actions"] == []
        installed.chmod(0o600)
        assert host.look()["actions"] == ["nvidia-ctk"] and installed.stat().st_mode & 0o777 == 0o755


def test_a_program_that_is_not_what_its_sum_says_ends_it_before_anything_is_changed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "nvidia-ctk").write_text("another")
    host.binaries = {
        "names": ["nvidia-ctk"], "directory": str(tmp_path / "bin"), "url": tmp_path.as_uri(),
        "checksums": {"nvidia-ctk": "0" * 64}, "timeout_s": 5,
    }  # fmt: skip
    with pytest.raises(FleetError, match="nvidia-ctk has SHA-256"):
        host.look()
    assert host.asked == [] and not (tmp_path / "bin/nvidia-ctk").exists()


@pytest.mark.parametrize("check_mode", [False, True])
def test_packages_come_before_the_specification(host: Host, monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    had: list[Any] = []

    def ensure(name: str, wanted: dict[str, str], source: object, run: object, *, act: bool) -> tuple[str, ...]:
        had.append((wanted, act, host.path.exists()))
        return ("nvidia-container-toolkit-base",)

    monkeypatch.setattr(parts, "ensure", ensure)
    host.packages = {"nvidia-container-toolkit-base": "1.20.1"}
    found = host.look(check_mode)
    assert had == [(host.packages, not check_mode, False)]
    assert found["changed"] and found["actions"][0] == "nvidia-container-toolkit-base"
    host.busy = "pods run"
    found = host.look(check_mode)
    assert not had[-1][1] and "nvidia-container-toolkit-base" not in found["actions"]
    assert "(nvidia-container-toolkit-base), and pods run; playbooks/driver_upgrade.yml" in found["waits"]
    assert found["notes"] == [found["waits"]] and found["held"] == ""


def test_units_are_written_after_packages_that_may_take_them_away(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unit = tmp_path / "units" / UNIT.name

    def ensure(*given: object, act: bool) -> tuple[str, ...]:
        unit.parent.mkdir(exist_ok=True)
        unit.write_text("[Unit]\nDescription=NVIDIA's\n")
        return ("nvidia-container-toolkit-base",)

    monkeypatch.setattr(parts, "ensure", ensure)
    host.packages, host.files = {"nvidia-container-toolkit-base": "1.20.1"}, {str(unit): "[Unit]\n# ours\n\n"}
    host.unit = replace(UNIT, needs_reload=True)
    assert host.look()["actions"][:3] == ["nvidia-container-toolkit-base", str(unit), "daemon-reload"]
    assert unit.read_text() == "[Unit]\n# ours\n" and host.asked == ["daemon-reload", "start"]
    monkeypatch.setattr(parts, "ensure", lambda *given, act: ())
    assert host.look()["actions"] == ["daemon-reload"], "of a run that was killed before it"
    host.unit = UNIT
    assert host.look()["actions"] == []
