"""Packages, files and units of a service in one call, in their order."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.modules import service

Call = Callable[..., dict[str, Any]]


class Host:
    """What is on a host, and what was done there in its order."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "x.conf"
        self.installed = ["chrony"]
        self.done: list[str] = []
        self.refused = ""
        self.warnings: list[str] = []

    def run_command(self, module: object, command: list[str], **options: object) -> tuple[int, str, str]:
        if command[0] == "dpkg-query":
            return 0, "".join(f"installed {name}\n" for name in self.installed), ""
        self.done.append(f"{command[-1]} with{'' if self.file.exists() else 'out'} the file")
        return 0, "", ""

    def bring_up(self, wanted: systemd_unit.Wanted, *, act: bool) -> systemd_unit.Decision:
        self.done.append(f"{wanted.unit} with{'' if self.file.exists() else 'out'} the file")
        if wanted.unit == self.refused:
            raise FleetError(f"systemd knows no {wanted.unit}; install what provides it")
        return systemd_unit.Decision(("restart",) if wanted.restart_because else (), ())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)
    monkeypatch.setattr(
        AnsibleModule, "run_command", lambda *arguments, **options: host.run_command(*arguments, **options)
    )
    monkeypatch.setattr(AnsibleModule, "warn", lambda module, text: host.warnings.append(text))
    monkeypatch.setattr(systemd_unit, "bring_up", host.bring_up)
    monkeypatch.setattr(systemd_unit, "log_tail", lambda unit: f"the last line of {unit}")
    return host


@pytest.fixture
def call(host: Host, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module with these packages and units and one file; gives what the task would have."""

    def run(*, check: bool = False, content: str = "new", **options: Any) -> dict[str, Any]:
        data = base64.b64encode(content.encode()).decode()
        file = {"dest": str(host.file), "content_b64": data, "mode": "0644"}
        with (
            patch_module_args({"files": [file], **options, "_ansible_check_mode": check}),
            pytest.raises(SystemExit),
        ):
            service.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


def test_packages_come_before_files_and_these_before_units(host: Host, call: Call) -> None:
    found = call(packages=["chrony", "haproxy"], units=[{"name": "x.service"}, {"name": "y.timer"}])
    assert host.done == [
        "update without the file",
        "haproxy without the file",
        "x.service with the file",
        "y.timer with the file",
    ]
    assert (found["changed"], found["installed"], found["changed_files"]) == (True, ["haproxy"], [str(host.file)])
    assert found["actions"] == {"x.service": [], "y.timer": []}


def test_files_can_come_first_so_that_a_service_starts_with_them(host: Host, call: Call) -> None:
    call(packages=["haproxy"], files_first=True)
    assert host.done == ["update with the file", "haproxy with the file"]


def test_what_is_as_asked_is_no_change(host: Host, call: Call) -> None:
    host.file.write_text("new")
    host.file.chmod(0o644)
    found = call(packages=["chrony"], units=[{"name": "x.service"}])
    assert (found["changed"], found["installed"], found["changed_files"]) == (False, [], [])


@pytest.mark.parametrize("part", ["packages", "files", "units"])
def test_each_part_alone_is_a_change_and_in_check_mode_nothing_is_done(part: str, host: Host, call: Call) -> None:
    host.file.write_text("new")
    host.file.chmod(0o644)
    options: dict[str, Any] = {
        "packages": {"packages": ["haproxy"]},
        "files": {"content": "other"},
        "units": {"units": [{"name": "x.service", "restart_because": "gpu-1 has no Node"}]},
    }[part]
    found = call(check=True, **options)
    assert found["changed"] is True
    assert host.file.read_text() == "new" and "haproxy with the file" not in host.done
    assert host.warnings == (["gpu-1 has no Node: x.service would be restarted"] if part == "units" else [])


def test_a_unit_that_fails_is_told_with_its_log_and_those_after_it_are_left(host: Host, call: Call) -> None:
    host.refused = "x.service"
    found = call(units=[{"name": "x.service"}, {"name": "y.timer"}])
    assert found["failed"] and "systemd knows no x.service" in found["msg"]
    assert found["log"] == "the last line of x.service"
    assert host.done == ["x.service with the file"]
