"""DCGM's units, counters and answers: what pauses, what is compared, what is told."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import dcgm, parts, services
from ansible_collections.muster.fleet.plugins.modules import nvidia_dcgm

from gpu_burnin.checks.dcgm import check
from gpu_burnin.node import unit
from tests.support.nvidia_host import GPU, NvidiaHost

ONE, TWO = (f"GPU-0000000{number}-1111-2222-3333-444444444444" for number in (1, 2))
WATCHED = "| PCIe            | On                                                 |\n| Memory          | On   |\n"


def test_the_burnin_and_the_role_mean_the_same_units_and_socket() -> None:
    files = dcgm.unit_files(":9400")
    assert str(unit.MONITORING) in files
    words = " ".join(unit.command([])) if unit.MONITORING.exists() else unit._RESUME
    assert dcgm.RESUME in words
    assert (str(check._SOCKET), check._ENGINE) == (dcgm.SOCKET, dcgm.ENGINE)


def test_what_pauses_stops_before_the_target_says_so() -> None:
    files = dcgm.unit_files("127.0.0.1:9400")
    for name in (dcgm.ENGINE, dcgm.EXPORTER):
        text = files[f"/etc/systemd/system/{name}.d/10-muster.conf"]
        assert f"PartOf={dcgm.TARGET}\n" in text
        assert f"After={dcgm.TARGET} " in text, "systemctl stop of the target would not wait for it"
    assert f"Wants={dcgm.ENGINE} {dcgm.EXPORTER}\n" in files[f"/etc/systemd/system/{dcgm.TARGET}"]
    alone = dcgm.unit_files("")
    assert f"Wants={dcgm.ENGINE}\n" in alone[f"/etc/systemd/system/{dcgm.TARGET}"]
    assert len(alone) == len(files) - 1


def test_each_counter_has_a_reason() -> None:
    assert len({row.field for row in dcgm.COUNTER_TABLE}) == len(dcgm.COUNTER_TABLE) <= 25
    # Each field is a series of every GPU of the fleet; monitoring has a place for thirty.
    assert all(row.reason and row.kind in ("gauge", "counter") and "," not in row.field for row in dcgm.COUNTER_TABLE)
    fields = [line for line in dcgm.counter_file().splitlines() if not line.startswith("#")]
    assert len(fields) == len(dcgm.COUNTER_TABLE)
    assert all(len(line.split(", ", 2)) == 3 for line in fields)


def test_watches_and_uuids_as_dcgmi_tells_them() -> None:
    assert dcgm.watches_off(WATCHED) == []
    assert dcgm.watches_off(WATCHED.replace("Memory          | On ", "Memory          | Off")) == ["Memory"]
    assert dcgm.watches_off("Error: unable to establish a connection") is None
    assert dcgm.uuids(f"| 0 | Device UUID: {ONE} |\n| 1 | Device UUID: {TWO} |") == {ONE, TWO}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([ONE, TWO], ""),
        ([ONE], f"DCGM does not see {TWO}"),
        ([], f"DCGM does not see {ONE}, {TWO}"),
        ([ONE, TWO, "GPU-x"], "DCGM sees GPU-x, which NVML does not"),
    ],
)
def test_a_difference_is_told_by_uuid(seen: Sequence[str], words: str) -> None:
    assert dcgm.difference("DCGM", seen, [ONE, TWO]) == words


class Node:
    """A node whose dcgmi and exporter say what they are given."""

    def __init__(self, root: Path) -> None:
        self.host = NvidiaHost(root)
        self.host.answer_nvml(gpus=[GPU | {"uuid": ONE}, GPU | {"uuid": TWO, "pci": "0000:2a:00.0"}])
        self.seen: Any = Output(0, f"{ONE} {TWO}", "")
        self.health = WATCHED
        self.metrics = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{ONE}"}} 1\nDCGM_FI_DEV_GPU_TEMP{{UUID="{TWO}"}} 1\n'
        self.now = 0.0
        self.host.answers["dcgmi"] = self.dcgmi

    def dcgmi(self, command: Sequence[str]) -> Output:
        if command[1] == "health":
            return Output(0, self.health, "")
        if isinstance(self.seen, Exception):
            raise self.seen
        answer = self.seen(self) if callable(self.seen) else self.seen
        assert isinstance(answer, Output)
        return answer

    def fetch(self, url: str) -> str:
        if not self.metrics:
            raise OSError("connection refused")
        return self.metrics

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def compare(self, url: str = "http://127.0.0.1:9400/metrics") -> None:
        nvidia_dcgm.compare(url, self.host.run, 5.0, self.fetch, lambda: self.now, self.sleep)


def test_all_is_well_at_once_and_an_engine_that_starts_is_waited_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.compare()
    assert node.now == 0
    node.seen = lambda node: Output(0, f"{ONE} {TWO}", "") if node.now >= 3 else Output(235, "no connection", "")
    node.compare()
    assert node.now == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seen": Output(0, ONE, "")}, f"the host engine does not see {TWO}"),
        ({"seen": Output(235, "Error: unable to establish a connection", "")}, "does not answer: Error: unable to"),
        ({"seen": CommandError("dcgmi gave no answer in 30 s")}, "does not answer: dcgmi gave no answer in 30 s"),
        ({"health": "| Memory | Off |"}, "health is not watched: Memory"),
        ({"health": ""}, "shows no watch"),
        ({"metrics": f'UUID="{ONE}"'}, f"the exporter does not see {TWO}"),
        ({"metrics": ""}, "the exporter does not answer at http://127.0.0.1:9400/metrics: connection refused"),
    ],
)
def test_what_is_wrong_is_told_after_the_deadline(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    node = Node(tmp_path)
    for name, value in change.items():
        setattr(node, name, value)
    with pytest.raises(parts.Held) as told:
        node.compare()
    assert words in str(told.value)
    assert "after 5 s" in str(told.value)


def test_without_nvml_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.host.answer_nvml(code=18, error="mismatch", gpus=None)
    with pytest.raises(parts.Held, match=r"NVML does not tell the GPUs.*mismatch"):
        node.compare()


@pytest.mark.parametrize(
    ("version", "url", "words"),
    [("3.3.9", "http://mirror", "give a release of DCGM 4"), ("4.5.2", "", "fleet_nvidia_repository_url is not")],
)
def test_a_mistake_of_the_inventory(version: str, url: str, words: str) -> None:
    given = {"version": version, "exporter_version": "", "cuda": "13", "repository_url": url}
    with pytest.raises(FleetError, match=words):
        nvidia_dcgm.install(given, act=False)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (":9400", "http://127.0.0.1:9400/metrics"),
        ("0.0.0.0:9400", "http://127.0.0.1:9400/metrics"),
        ("[::]:9400", "http://127.0.0.1:9400/metrics"),
        ("10.1.2.3:9401", "http://10.1.2.3:9401/metrics"),
        ("[fd00::1]:9400", "http://[fd00::1]:9400/metrics"),
    ],
)
def test_the_exporter_is_asked_where_it_listens(address: str, url: str) -> None:
    assert dcgm.metrics_url(address) == url


def test_no_proxy_is_asked_for_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        nvidia_dcgm.metrics(f"http://127.0.0.1:{port}/metrics")


def test_an_engine_older_than_the_driver_is_started_again(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    assert dcgm.blind_because(1000.0, tmp_path) == ""  # nothing is loaded
    host.load("580.105.08")
    loaded = tmp_path / "proc/driver/nvidia/version"
    os.utime(loaded, (2000, 2000))
    assert dcgm.blind_because(1000.0, tmp_path) == "it is older than the driver"
    assert dcgm.blind_because(3000.0, tmp_path) == dcgm.blind_because(None, tmp_path) == ""
    os.utime(loaded, (4e9, 4e9))
    assert dcgm.blind_because(1000.0, tmp_path) == "", "a clock that was set back proves nothing"


def test_what_the_engine_is_started_again_for_reaches_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NvidiaHost(tmp_path).load("580.105.08")
    os.utime(tmp_path / "proc/driver/nvidia/version", (2000, 2000))
    shown = systemd_unit.Unit("", True, "active", "running", "success", True, False, (), 1000.0)
    wanted: list[systemd_unit.Wanted] = []

    def bring_up(one: systemd_unit.Wanted, *, act: bool) -> systemd_unit.Decision:
        wanted.append(one)
        return systemd_unit.Decision(("restart",) if one.restart_because else (), ())

    monkeypatch.setattr(systemd_unit, "show", lambda unit: shown)
    monkeypatch.setattr(systemd_unit, "bring_up", bring_up)
    assert nvidia_dcgm.run_services(True, tmp_path, act=True) == [f"restart {dcgm.ENGINE}"]
    assert [one.unit for one in wanted] == [dcgm.ENGINE, dcgm.EXPORTER, dcgm.TARGET]


class Managed:
    """The module on a host: what it would change, what it did change, and what it says."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(root)
        self.node.host.load("580.105.08")
        self.given: dict[str, Any] = {
            "source": "nvidia", "version": "4.5.2", "exporter_version": "", "exporter_address": ":9400",
            "deadline_s": 0.0, "kernel_root": str(root),
        }  # fmt: skip
        self.busy, self.burnin, self.engine = "", False, True
        self.packages: tuple[str, ...] = ("datacenter-gpu-manager-4-core",)
        self.acted: list[bool] = []
        self.warned: list[str] = []
        monkeypatch.setattr(services, "at_work", lambda run: self.busy)
        monkeypatch.setattr(systemd_unit, "show", self.show)
        monkeypatch.setattr(nvidia_dcgm, "install", lambda given, *, act: self.step(self.packages, act))
        monkeypatch.setattr(nvidia_dcgm, "configure", lambda exporter, *, act: self.step((), act))
        monkeypatch.setattr(nvidia_dcgm, "run_services", lambda exports, root, *, act: [*self.step((), act)])
        monkeypatch.setattr(nvidia_dcgm, "run_command", self.node.host.run)

    def step(self, found: tuple[str, ...], act: bool) -> tuple[str, ...]:
        self.acted.append(act)
        return found

    def show(self, unit: str) -> systemd_unit.Unit:
        there = self.burnin if unit.startswith("gpu-burnin") else self.engine
        return systemd_unit.Unit(unit, there, "active" if there else "inactive", "", "", True, False, (), None)

    def manage(self, check_mode: bool = False) -> dict[str, Any]:
        module = SimpleNamespace(params=self.given, check_mode=check_mode, warn=self.warned.append)
        return nvidia_dcgm.manage(module)  # type: ignore[arg-type]


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Managed:
    return Managed(tmp_path, monkeypatch)


def test_a_host_that_does_work_keeps_its_engine_and_tells_what_is_not_as_asked(managed: Managed) -> None:
    managed.busy = "kubelet runs"
    found = managed.manage()
    assert managed.acted == [False, False, False]
    assert (found["changed"], found["held"], found["compared"]) == (False, "", True)
    assert found["notes"] == [found["waits"]] == managed_warnings(managed)
    assert "(datacenter-gpu-manager-4-core), and kubelet runs; playbooks/driver_upgrade.yml" in found["waits"]
    managed.busy = ""
    found = managed.manage()
    assert managed.acted[3:] == [True, True, True] and found["changed"] and found["notes"] == []


def managed_warnings(managed: Managed) -> list[str]:
    return [text.partition(": ")[2] for text in managed.warned]


def test_a_blind_engine_holds_a_new_host_and_is_a_note_of_one_that_does_work(managed: Managed) -> None:
    managed.node.seen = Output(0, ONE, "")
    found = managed.manage()
    assert f"the host engine does not see {TWO}" in found["held"] and found["notes"] == []
    assert not found["compared"]
    managed.busy, managed.packages = "kubelet runs", ()
    found = managed.manage()
    assert found["held"] == found["waits"] == "" and f"does not see {TWO}" in found["notes"][0]


def test_during_a_burnin_nothing_is_changed_started_or_compared(managed: Managed) -> None:
    managed.busy, managed.burnin = "a burn-in runs", True
    managed.node.seen = Output(0, ONE, "")
    found = managed.manage()
    assert (found["paused"], found["compared"], found["held"], found["changed"]) == (True, False, "", False)
    assert managed.acted == [False, False]


def test_check_mode_of_a_bare_host_holds_nothing_that_the_run_would_mend(managed: Managed, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert (managed.manage(check_mode=True)["held"], managed.acted) == ("", [False, False])
    assert "the NVIDIA driver is not loaded" in managed.manage()["held"]


@pytest.mark.parametrize("given", [{"source": "image"}, {"version": ""}])
@pytest.mark.parametrize("engine", [True, False])
def test_whether_an_engine_is_there_is_read_from_the_host(
    managed: Managed, given: dict[str, str], engine: bool
) -> None:
    managed.given |= given
    managed.engine = engine
    found = managed.manage()
    assert (found["present"], found["compared"], managed.acted) == (engine, False, [])


def test_a_version_file_of_another_form_is_told(managed: Managed, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/version").write_text("nothing\n")
    assert "which driver is loaded cannot be told" in managed.manage()["held"]


def test_fields_of_the_exporter_and_of_the_rules_are_published_ones() -> None:
    here = Path(__file__).resolve()
    published = set((here.parent / "dcgm_fields.txt").read_text(encoding="utf-8").splitlines())
    rules = sorted((here.parents[3] / "roles/fleet_monitoring/files/rules").glob("*.yml"))
    shown = {row.field for row in dcgm.COUNTER_TABLE}
    read = {name for path in rules for name in re.findall(r"DCGM_FI_[A-Z0-9_]+", path.read_text(encoding="utf-8"))}
    assert shown - published == set()
    assert read and read - shown == set()
    assert {*shown, "DCGM_FI_DEV_XID_ERROR"} - published == {"DCGM_FI_DEV_XID_ERROR"}
