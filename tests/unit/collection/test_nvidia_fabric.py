"""What connects the GPUs of a host, which packages that needs, and which GPU is not on the fabric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host import files, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import fabric, nvml, parts, services
from ansible_collections.muster.fleet.plugins.modules import nvidia_fabric

from tests.support.nvidia_host import GPU, Answer, NvidiaHost, h100

MLX = {"vendor": "15b3", "device": "1021", "class_code": "020700"}


def bridge(host: NvidiaHost, address: str, words: bytes) -> None:
    host.add_device(address, **MLX)
    (host.root / "sys/bus/pci/devices" / address / "vpd").write_bytes(words)


@pytest.mark.parametrize(
    ("gpu", "extra", "kind", "words"),
    [
        ("2330", [], "none", "no NVSwitch"),
        ("2330", [{"address": "0000:c5:00.0", "device": "22a3", "class_code": "068000"}], "nvswitch", "0000:c5:00.0"),
        # An ordinary ConnectX-7, and one in front of the switches.
        ("2901", [b"PN MCX75310AAS"], "none", "no NVSwitch"),
        ("2901", [b"\x82SW_MNG"], "nvlink5", "0000:05:00.0"),
        # A GPU of GB200: whatever else there is, its switches are in the rack's trays.
        ("2941", [b"\x82SW_MNG"], "rack", "10de:2941"),
    ],
)
def test_what_connects_gpus_is_read_from_the_bus(
    tmp_path: Path, gpu: str, extra: list[Any], kind: str, words: str
) -> None:
    host = NvidiaHost(tmp_path)
    host.add_device(device=gpu)
    for one in extra:
        if isinstance(one, bytes):
            bridge(host, "0000:05:00.0", one)
        else:
            host.add_device(**one)
    found = fabric.platform(tmp_path)
    assert found.kind == kind
    assert words in found.evidence
    assert found.needs_manager == (kind in ("nvswitch", "nvlink5"))


def test_a_switch_manager_without_gpus_and_a_host_without_a_bus(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    bridge(host, "0000:05:00.0", b"SW_MNG")
    assert fabric.platform(tmp_path).kind == "none"
    assert fabric.platform(tmp_path / "nowhere") == fabric.Platform("none", "no PCI bus")


def test_a_fabric_manager_of_before_580_has_its_branch_in_its_name() -> None:
    """The packages of each platform and source are in test_nvidia_beside.py."""
    assert fabric.packages("nvswitch", "nvidia", "575.57.08", "", False) == {"nvidia-fabricmanager-575": "575.57.08"}


HOPPER = fabric.Platform("nvswitch", "", tells=True)
AMPERE = fabric.Platform("nvswitch", "")
RACK = fabric.Platform("rack", "", tells=True)
BARE = fabric.Platform("none", "")


@pytest.mark.parametrize(("switch", "tells"), [("1af1", False), ("1ac2", False), ("22a3", True), ("29ff", True)])
def test_nvml_must_tell_of_a_fabric_since_hopper(tmp_path: Path, switch: str, tells: bool) -> None:
    host = NvidiaHost(tmp_path)
    host.add_device(driver="nvidia")
    host.add_device("0000:2a:00.0", driver="vfio-pci")
    host.add_device("0000:c5:00.0", device=switch, class_code="068000")
    found = fabric.platform(tmp_path)
    assert (found.tells, found.gpus) == (tells, ("0000:18:00.0",)), "a virtual machine's GPU is not this host's"


def gpu(**changes: Any) -> nvml.Gpu:
    return nvml.Gpu(**{**GPU, **changes})


@pytest.mark.parametrize(
    ("platform", "gpus", "missing"),
    [
        (HOPPER, [gpu()], []),
        (HOPPER, [gpu(), gpu(uuid="GPU-2", fabric_state="in_progress")],
         ["GPU GPU-2 at 0000:18:00.0: in_progress"]),
        (HOPPER, [gpu(fabric_status=15)], ["GPU GPU-1 at 0000:18:00.0: completed with status 15"]),
        # One GPU that knows no fabric, beside others that do, is not on it.
        (HOPPER, [gpu(), gpu(uuid="GPU-2", fabric_state="not_supported")],
         ["GPU GPU-2 at 0000:18:00.0: not_supported"]),
        (AMPERE, [gpu(fabric_state="not_supported")], []),
        # Where NVML can tell, that it does not is no pass.
        (HOPPER, [gpu(fabric_state="not_supported")], ["GPU GPU-1 at 0000:18:00.0: not_supported"]),
        (RACK, [gpu(fabric_state="not_supported")], ["GPU GPU-1 at 0000:18:00.0: not_supported"]),
        (RACK, [gpu(), gpu(uuid="GPU-2", fabric_state="in_progress")], ["GPU GPU-2 at 0000:18:00.0: in_progress"]),
        # A GPU that is on the bus and that the driver has lost.
        (replace(AMPERE, gpus=("0000:18:00.0", "0000:2a:00.0")), [gpu(fabric_state="not_supported")],
         ["GPU at 0000:2a:00.0: NVML does not show it"]),
        (replace(HOPPER, gpus=("0000:18:00.0", "0000:2a:00.0")), [gpu()],
         ["GPU at 0000:2a:00.0: NVML does not show it"]),
        (BARE, [gpu(fabric_state="not_supported")], []),
        # A virtual machine whose switches the host system manages.
        (BARE, [gpu(fabric_state="in_progress")], ["GPU GPU-1 at 0000:18:00.0: in_progress"]),
        (
            HOPPER,
            [gpu(fabric_state=None, errors={"fabric_state": "GPU is lost"})],
            ["GPU GPU-1 at 0000:18:00.0: its fabric state cannot be read (GPU is lost)"],
        ),
    ],
)  # fmt: skip
def test_the_gpu_that_is_not_on_the_fabric_is_named(
    platform: fabric.Platform, gpus: list[nvml.Gpu], missing: list[str]
) -> None:
    assert fabric.unregistered(platform, gpus) == missing


def test_gpus_before_hopper_tell_nothing() -> None:
    assert fabric.untold([gpu(fabric_state="not_supported")])
    assert not fabric.untold([gpu()])


def test_registration_is_waited_for_and_the_deadline_names_the_gpu(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 3:
            host.answer_nvml()

    host.answer_nvml(gpus=[GPU | {"fabric_state": "in_progress"}])
    found = nvidia_fabric.registered(HOPPER, host.run, 10.0, clock=lambda: now[0], sleep=sleep)
    assert (now[0], found[0].fabric_state) == (3.0, "completed")

    host.answer_nvml(gpus=[GPU | {"fabric_state": "in_progress"}])
    with pytest.raises(parts.Held, match=r"not complete after 2 s: GPU GPU-1 at 0000:18:00.0: in_progress"):
        nvidia_fabric.registered(
            HOPPER, host.run, 2.0, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
        )

    host.answer_nvml(code=9, error="driver not loaded", gpus=None)
    with pytest.raises(parts.Held, match="not complete: NVML does not tell: driver not loaded"):
        nvidia_fabric.registered(HOPPER, host.run, 0.0)
    assert nvidia_fabric.registered(BARE, host.run, 2.0) == ()


def test_an_nvml_that_does_not_answer_yet_is_waited_for(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        host.answer_nvml()

    host.answer_nvml(code=3, error="the fabric manager is not ready", gpus=None)
    assert nvidia_fabric.registered(HOPPER, host.run, 10.0, clock=lambda: now[0], sleep=sleep) and now[0] == 1.0


DOMAIN = {
    "status": "UP",
    "nodes": {"0": {"host": "10.0.0.1", "status": "READY"}, "1": {"host": "10.0.0.2", "status": "READY"}},
}
HALF = {"status": "DEGRADED", "nodes": DOMAIN["nodes"] | {"1": {"host": "10.0.0.2", "status": "UNAVAILABLE"}}}  # type: ignore[operator]


class Imex:
    """A node whose nvidia-imex-ctl says what it is given."""

    def __init__(self, root: Path, state: Answer, domain: Any = None) -> None:
        self.host = NvidiaHost(root)
        self.now = 0.0
        self.state = state
        self.domain = DOMAIN if domain is None else domain
        self.host.answers["nvidia-imex-ctl"] = self.answer

    def answer(self, command: Sequence[str]) -> Output:
        if command[1] != "-q":
            assert command[1:] == ["-N", "-j"]
            domain = self.domain(self.now) if callable(self.domain) else self.domain
            return Output(0, domain if isinstance(domain, str) else json.dumps(domain), "")
        if isinstance(self.state, Exception):
            raise self.state
        return self.state(command) if callable(self.state) else self.state

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def look(self, wait_for_peers: bool = False) -> list[str]:
        return nvidia_fabric._imex(
            2, self.host.run, 5.0, wait_for_peers=wait_for_peers, clock=lambda: self.now, sleep=self.sleep
        )


def test_imex_that_is_active_must_be_ready_and_is_waited_for(tmp_path: Path) -> None:
    node = Imex(tmp_path, Output(0, "READY\n", ""))
    assert node.look() == [] and node.now == 0
    node.state = lambda command: Output(0, "READY\n" if node.now >= 3 else "WAITING_FOR_PEERS\n", "")
    assert node.look() == [] and node.now == 3


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Output(0, "WAITING_FOR_PEERS\n", ""), "not ready after 5 s: it is WAITING_FOR_PEERS; look at /var/log/nvidia"),
        (Output(1, "UNAVAILABLE\n", ""), "it is UNAVAILABLE"),
        (Output(1, "READY\n", ""), "it is READY"),
        (Output(1, "", "Error: Connection refused\n"), "ended with 1 (Error: Connection refused); without IMEX_CMD_EN"),
        (CommandError("nvidia-imex-ctl gave no answer in 30 s"), "nvidia-imex-ctl gave no answer in 30 s"),
    ],
)
def test_imex_that_does_not_get_ready_holds_the_host(tmp_path: Path, state: Answer, said: str) -> None:
    with pytest.raises(parts.Held) as told:
        Imex(tmp_path, state).look()
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (HALF, "the IMEX domain is DEGRADED with 1 of 2 nodes ready; not ready: 10.0.0.2 (UNAVAILABLE); look at"),
        (DOMAIN | {"nodes": {"0": {"host": "10.0.0.1", "status": "READY"}}}, "is UP with 1 of 2 nodes ready; look at"),
        ("", "the IMEX domain cannot be read"),
        ("[]", "the IMEX domain cannot be read"),
    ],
)
def test_a_node_of_the_domain_that_is_away_is_told_and_is_not_this_hosts_fault(
    tmp_path: Path, domain: Any, said: str
) -> None:
    node = Imex(tmp_path, Output(0, "READY\n", ""), domain)
    (note,) = node.look()
    assert said in note and node.now == 0
    assert node.look(wait_for_peers=True) and node.now == 5, "hosts of a rack start together"
    node.domain = lambda now: DOMAIN if now >= 7 else domain
    assert node.look(wait_for_peers=True) == [] and node.now == 7


class Managed:
    """The module on a host with NVSwitches: what it would change, what it did, and what it says."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = h100(root)
        self.busy, self.acted, self.owed = "", [], ("nvidia-fabricmanager",)  # type: tuple[str, list[bool], tuple[str, ...]]
        self.given: dict[str, Any] = {
            "source": "nvidia", "nvlsm_version": "", "imex_nodes": [], "deadline_s": 0.0, "kernel_root": str(root),
        }  # fmt: skip
        monkeypatch.setattr(services, "at_work", lambda run: self.busy)
        monkeypatch.setattr(nvidia_fabric, "run_command", self.host.run)
        monkeypatch.setattr(nvidia_fabric, "_install", lambda *given, act: self.step(given[-1], act))
        monkeypatch.setattr(nvidia_fabric, "_run_service", lambda unit, changed, *, act: None)

    def step(self, changed: list[str], act: bool) -> None:
        self.acted.append(act)
        changed += self.owed

    def manage(self, check_mode: bool = False) -> dict[str, Any]:
        module = SimpleNamespace(params=self.given, check_mode=check_mode, warn=lambda text: None)
        return nvidia_fabric.manage(module)  # type: ignore[arg-type]


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Managed:
    return Managed(tmp_path, monkeypatch)


def test_a_host_that_does_work_is_not_changed_and_its_gpus_are_looked_at_all_the_same(managed: Managed) -> None:
    managed.busy = "pods run"
    found = managed.manage()
    assert (managed.acted, found["changed"], found["held"]) == ([False], False, "")
    assert found["notes"] == [found["waits"]]
    assert found["waits"].startswith(
        "the fabric would change (nvidia-fabricmanager), and pods run; playbooks/driver_up"
    )
    managed.host.answer_nvml(gpus=[GPU])
    assert "GPU at 0000:2a:00.0: NVML does not show it" in managed.manage()["held"]
    managed.busy = ""
    managed.host.answer_nvml(gpus=[GPU, GPU | {"uuid": "GPU-2", "pci": "0000:2a:00.0"}])
    found = managed.manage()
    assert (managed.acted[-1], found["changed"], found["waits"], found["held"]) == (True, True, "", "")


def test_without_a_driver_the_host_is_held_but_not_by_a_run_that_changes_nothing(
    managed: Managed, tmp_path: Path
) -> None:
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert "the NVIDIA driver is not loaded" in managed.manage()["held"]
    assert managed.manage(check_mode=True)["held"] == "" and managed.acted == []


SERVICE = systemd_unit.Unit(nvidia_fabric.MANAGER, True, "active", "running", "success", True, False, (), 1000.0)


class OfAnImage(Managed):
    """The whole module on a host of source image; whatever would change the host ends the test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = nvidia_fabric._install, nvidia_fabric._run_service
        super().__init__(root, monkeypatch)
        self.given["source"] = "image"
        self.units = [SERVICE]
        self.shown: list[str] = []
        monkeypatch.setattr(nvidia_fabric, "_install", whole[0])
        monkeypatch.setattr(nvidia_fabric, "_run_service", whole[1])
        monkeypatch.setattr(systemd_unit, "show", self.show)
        monkeypatch.setattr(systemd_unit, "systemctl", self.changes)
        monkeypatch.setattr(files, "apply", self.changes)
        monkeypatch.setattr(parts, "ensure", self.changes)
        monkeypatch.setattr(systemd_unit, "last_words", lambda unit, *programs: "no NVSwitch answers")
        monkeypatch.setattr(nvidia_fabric, "_POLL_S", 0.0)

    def show(self, unit: str) -> systemd_unit.Unit:
        """The states one after the other, the last of them for good."""
        self.shown.append(unit)
        return replace(self.units.pop(0) if len(self.units) > 1 else self.units[0], name=unit)

    @staticmethod
    def changes(*given: Any, **options: Any) -> Any:
        raise AssertionError(f"the host would be changed: {given}")


@pytest.fixture
def of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OfAnImage:
    return OfAnImage(tmp_path, monkeypatch)


@pytest.mark.parametrize("check_mode", [False, True])
def test_an_image_that_runs_its_service_is_left_alone_and_its_gpus_are_looked_at(
    of_an_image: OfAnImage, check_mode: bool
) -> None:
    of_an_image.units = [replace(SERVICE, enabled=False, needs_reload=True)]
    found = of_an_image.manage(check_mode)
    assert (found["changed"], found["held"], found["waits"], found["notes"]) == (False, "", "", [])
    assert len(found["gpus"]) == 2 and of_an_image.shown == [nvidia_fabric.MANAGER]
    of_an_image.host.answer_nvml(gpus=[GPU])
    assert "GPU at 0000:2a:00.0: NVML does not show it" in of_an_image.manage(check_mode)["held"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"loaded": False, "active": "inactive"}, "the image has no nvidia-fabricmanager.service, and this host needs"),
        ({"active": "inactive"}, "fabricmanager.service is inactive (no NVSwitch answers); with fleet_nvidia_source:"),
        ({"active": "failed"}, "nvidia-fabricmanager.service is failed"),
        ({"active": "activating"}, "nvidia-fabricmanager.service is activating"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("busy", ["", "kubelet runs"])
def test_a_service_that_the_image_does_not_run_is_told_and_not_started(
    of_an_image: OfAnImage, state: dict[str, Any], said: str, busy: str
) -> None:
    of_an_image.units, of_an_image.busy = [replace(SERVICE, **state)], busy
    found = of_an_image.manage()
    assert said in found["held"] and found["changed"] is False and found["waits"] == ""


def test_a_service_that_the_image_is_starting_is_waited_for(of_an_image: OfAnImage) -> None:
    starting = replace(SERVICE, active="activating")
    of_an_image.units, of_an_image.given["deadline_s"] = [starting, starting, SERVICE], 30.0
    assert of_an_image.manage()["held"] == "" and len(of_an_image.shown) == 3


def test_neither_nvlsms_module_nor_the_nodes_of_imex_are_written_for_an_image(
    of_an_image: OfAnImage, tmp_path: Path
) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/class").write_text("0x020700\n")
    bridge(of_an_image.host, "0000:06:00.0", b"SW_MNG")
    of_an_image.given["imex_nodes"] = ["10.0.0.1", "10.0.0.2"]
    of_an_image.host.answers["nvidia-imex-ctl"] = Imex(tmp_path / "imex", Output(0, "READY\n", "")).answer
    found = of_an_image.manage()
    assert (found["platform"], found["held"], found["changed"]) == ("nvlink5", "", False)
    assert of_an_image.shown == [nvidia_fabric.MANAGER, nvidia_fabric.IMEX]
    of_an_image.units = [SERVICE, replace(SERVICE, active="failed")]
    assert "nvidia-imex.service is failed" in of_an_image.manage()["held"]
