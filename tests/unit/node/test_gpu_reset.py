"""Resetting GPUs by the rules of nvidia-smi's manual page: a stand-in for nvidia-smi and systemctl keeps them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_burnin.node.repair.facts import pci_slots
from gpu_burnin.node.repair.holders import Holder, holders
from gpu_burnin.node.repair.reset import Done, Reset, ResetError, reset, run_command

ONE, TWO, LOST = "GPU-00000000-0000-4000-8000-00000000000a", "GPU-00000000-0000-4000-8000-00000000000b", "GPU-lost"
IN_USE = (
    "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n\n1 device is currently "
    "being used by one or more other processes."
)


class Node:
    """A node whose processes are files below `root`, and whose driver resets GPUs as nvidia-smi(1) says."""

    def __init__(self, root: Path, *, capability: str = "9.0", persistent: bool = True) -> None:
        self.root, self.capability = root, capability
        self.persistent = dict.fromkeys((ONE, TWO), persistent)
        self.commands: list[list[str]] = []
        self.units: dict[str, int] = {}
        self.fabric_manager = True
        self.gone_after: set[str] = set()
        (root / "proc").mkdir()
        (root / "dev").mkdir()

    def process(self, pid: int, name: str, *devices: str, cgroup: str = "/user.slice/session-1.scope") -> None:
        directory = self.root / "proc" / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "comm").write_text(f"{name}\n")
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        for number, device in enumerate(("/dev/null", *devices)):
            (directory / "fd" / str(number)).symlink_to(device)
        if cgroup.startswith("/system.slice/"):
            self.units[cgroup.rpartition("/")[2]] = pid

    def end(self, pid: int) -> None:
        directory = self.root / "proc" / str(pid)
        for path in [*(directory / "fd").iterdir(), directory / "comm", directory / "cgroup"]:
            path.unlink()
        (directory / "fd").rmdir()
        directory.rmdir()

    def run(self, command: Sequence[str]) -> Done:
        self.commands.append([*command])
        if command[0] == "systemctl":
            return self._systemctl(command[1], command[2:])
        if command[1].startswith("--query-gpu"):
            rows = (
                f"{uuid}, {self.capability}, {'Enabled' if on else 'Disabled'}" for uuid, on in self.persistent.items()
            )
            return Done(0, "\n".join(rows) + "\n")
        if command[1] == "-pm":
            self.persistent |= dict.fromkeys(command[4].split(","), command[2] == "1")
            return Done(0, "All done.\n")
        return self._reset([*self.persistent] if len(command) == 2 else command[3].split(","))

    def _systemctl(self, verb: str, units: Sequence[str]) -> Done:
        if verb == "is-active":
            return Done(0 if self.fabric_manager else 3, "")
        for unit in units if verb == "stop" else ():
            self.end(self.units[unit])
        return Done(0, "")

    def _reset(self, uuids: Sequence[str]) -> Done:
        if holders(self.root) or any(self.persistent[uuid] for uuid in uuids):
            return Done(255, IN_USE)
        if not self.capability.startswith(("8", "9")) and len(uuids) < len(self.persistent):
            return Done(255, "all GPUs that NVLink connects must be reset together")
        for uuid in self.gone_after:
            del self.persistent[uuid]
        return Done(0, "\n".join(f"GPU {uuid} was successfully reset." for uuid in uuids))

    @property
    def actions(self) -> list[str]:
        return [" ".join(command) for command in self.commands if "--query-gpu" not in command[1]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_one_gpu_is_reset_with_persistence_mode_off_meanwhile(node: Node) -> None:
    assert reset([ONE], node.run, node.root) == Reset(True, (ONE,))
    assert node.actions == [
        f"nvidia-smi -pm 0 -i {ONE},{TWO}",
        f"nvidia-smi --gpu-reset -i {ONE}",
        f"nvidia-smi -pm 1 -i {ONE},{TWO}",
    ]
    assert node.persistent == {ONE: True, TWO: True}


def test_without_a_name_all_are_reset(tmp_path: Path) -> None:
    node = Node(tmp_path, persistent=False)
    assert reset([], node.run, node.root) == Reset(True, (ONE, TWO), whole=True)
    assert node.actions == ["nvidia-smi --gpu-reset"]


def test_gpus_before_ampere_are_reset_together(tmp_path: Path) -> None:
    node = Node(tmp_path, capability="7.0")
    assert reset([ONE], node.run, node.root) == Reset(True, (ONE, TWO), whole=True)


@pytest.mark.parametrize(("running", "whole"), [(True, False), (False, True)])
def test_with_nvswitches_and_no_fabric_manager_all_are_reset_together(node: Node, running: bool, whole: bool) -> None:
    (node.root / "dev/nvidia-nvswitch0").touch()
    node.fabric_manager = running
    assert reset([ONE], node.run, node.root).whole is whole


def test_services_that_watch_are_stopped_and_started_again(node: Node) -> None:
    node.process(30, "nv-hostengine", "/dev/nvidiactl", "/dev/nvidia0", cgroup="/system.slice/nvidia-dcgm.service")
    node.process(31, "python", "/dev/nvidiactl", cgroup="/system.slice/gpu-burnin-watch.service")
    done = reset([ONE], node.run, node.root)
    assert done == Reset(True, (ONE,), stopped=("gpu-burnin-watch.service", "nvidia-dcgm.service"))
    assert node.actions[0] == "systemctl stop gpu-burnin-watch.service nvidia-dcgm.service"
    assert node.actions[-1] == "systemctl start gpu-burnin-watch.service nvidia-dcgm.service"


def test_they_are_started_again_when_the_reset_fails(node: Node) -> None:
    node.process(30, "nv-hostengine", "/dev/nvidia0", cgroup="/system.slice/nvidia-dcgm.service")
    node.process(40, "nvtop", "/dev/nvidia0")
    done = reset([ONE], node.run, node.root)
    assert not done.done
    assert done.message == "the GPUs are still open in nvtop (process 40, session-1.scope)"
    assert "--gpu-reset" not in " ".join(node.actions)
    assert node.actions[-1] == "systemctl start nvidia-dcgm.service"
    assert node.persistent == {ONE: True, TWO: True}


POD = "/kubepods.slice/kubepods-pod0f3a.slice/cri-containerd-77aa.scope"


def test_nothing_is_done_to_a_gpu_with_work(node: Node) -> None:
    node.process(50, "python3", "/dev/nvidia0", "/dev/nvidia-uvm", cgroup=POD)
    with pytest.raises(ResetError) as told:
        reset([ONE], node.run, node.root)
    assert str(told.value) == (
        "work is on the GPUs: python3 (process 50, kubepods-pod0f3a.slice); end it, then try again"
    )
    assert node.commands == []


def test_what_nvidia_smi_refuses_is_the_result(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_reset", lambda uuids: Done(255, IN_USE))
    done = reset([ONE], node.run, node.root)
    assert (done.done, done.message[:50]) == (False, "nvidia-smi ended with 255: The following GPUs coul")
    assert "In use by another client" in done.message


def test_a_gpu_that_does_not_come_back_is_told(node: Node) -> None:
    node.gone_after = {ONE}
    assert reset([ONE], node.run, node.root).message == f"gone after the reset: {ONE}"


def test_a_gpu_that_was_gone_before_is_reset_with_all_others_and_told(node: Node) -> None:
    done = reset([LOST], node.run, node.root)
    assert (done.done, done.whole, done.message) == (False, True, f"gone after the reset: {LOST}")


def test_a_driver_that_shows_no_gpu_is_told(node: Node) -> None:
    node.persistent = {}
    node.run = lambda command: Done(9, "NVIDIA driver is not loaded")  # type: ignore[method-assign]
    done = reset([], node.run, node.root)
    assert done.message == "no GPU can be asked for: nvidia-smi ended with 9: NVIDIA driver is not loaded"


def test_a_missing_nvidia_smi_is_one_sentence() -> None:
    with pytest.raises(ResetError, match=r"^no-such-smi is not installed; it comes with the driver$"):
        run_command(["no-such-smi"])


def test_who_has_gpus_open_is_seen(node: Node) -> None:
    node.process(60, "bash")
    node.process(61, "python3", "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia1", cgroup=POD)
    node.process(62, "nvidia-persiste", "/dev/nvidia0", cgroup="/system.slice/nvidia-persistenced.service")
    # DCGM opens the memory's device too where it profiles.
    node.process(63, "nv-hostengine", "/dev/nvidia-uvm", cgroup="/system.slice/nvidia-dcgm.service")
    node.process(os.getpid(), "pytest", "/dev/nvidia-uvm")
    found = holders(node.root)
    assert found[0] == Holder(61, "python3", "kubepods-pod0f3a.slice", ("/dev/nvidia-uvm", "/dev/nvidia1"))
    assert [(holder.pid, holder.works) for holder in found] == [(61, True), (62, False), (63, False)]


def test_slots_are_read_by_address(tmp_path: Path) -> None:
    for name, address in (("5", "0000:91:00"), ("6-1", "0000:AB:00")):
        path = tmp_path / "sys/bus/pci/slots" / name
        path.mkdir(parents=True)
        (path / "address").write_text(f"{address}\n")
    assert pci_slots(tmp_path) == {"0000:91:00": "5", "0000:ab:00": "6-1"}
    assert pci_slots(tmp_path / "none") == {}
