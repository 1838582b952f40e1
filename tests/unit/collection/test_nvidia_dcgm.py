"""DCGM's units, counters and answers: what pauses, what is compared, what is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import dcgm
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.commands import CommandError, Output
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
    assert len({row.field for row in dcgm.COUNTER_TABLE}) == len(dcgm.COUNTER_TABLE) <= 20
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

    def fetch(self, port: str) -> str:
        if not self.metrics:
            raise OSError("connection refused")
        return self.metrics

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def compare(self, port: str = "9400") -> None:
        nvidia_dcgm.compare(port, self.host.run, 5.0, self.fetch, lambda: self.now, self.sleep)


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
        ({"metrics": ""}, "the exporter does not answer on port 9400: connection refused"),
    ],
)
def test_what_is_wrong_is_told_after_the_deadline(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    node = Node(tmp_path)
    for name, value in change.items():
        setattr(node, name, value)
    with pytest.raises(nvidia_dcgm.Held) as told:
        node.compare()
    assert words in str(told.value)
    assert "after 5 s" in str(told.value)


def test_without_nvml_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.host.answer_nvml(code=18, error="mismatch", gpus=None)
    with pytest.raises(nvidia_dcgm.Held, match=r"NVML does not tell the GPUs.*mismatch"):
        node.compare()


@pytest.mark.parametrize(
    ("version", "url", "words"),
    [("3.3.9", "http://mirror", "give a release of DCGM 4"), ("4.5.2", "", "fleet_nvidia_repository_url is not")],
)
def test_a_mistake_of_the_inventory(version: str, url: str, words: str) -> None:
    given = {"version": version, "exporter_version": "", "cuda": "13", "repository_url": url}
    with pytest.raises(FleetError, match=words):
        nvidia_dcgm.install(given, act=False)
