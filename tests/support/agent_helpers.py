"""An agent without threads: its clock, its systemd and what it says are the test's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_xids
from gpu_burnin.node.unit import Started, UnitState
from gpu_burnin.node.watch.agent import Agent
from gpu_burnin.node.watch.heartbeat import Turns
from gpu_burnin.node.watch.kernel import Read
from gpu_burnin.node.watch.system import System
from gpu_burnin.settings.config import Config
from gpu_burnin.telemetry.kmsg import XidEvent, parse_record, xid_event
from gpu_burnin.telemetry.vitals import Vital, Vitals
from tests.support.report_helpers import HARDWARE

TABLE = load_xids()
FATAL = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
APPLICATION = "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault"
GPU = Vital(0, "GPU-a", "1650", "96.00.D0.00.03", "0000:1b:00.0", identified=True, uncorrected=0, pids=())


def xid(text: str = FATAL, at_us: int = 5_000_000) -> XidEvent:
    record = parse_record(f"3,1,{at_us},-;{text}")
    assert record is not None
    event = xid_event(record)
    assert event is not None
    return event


@dataclass
class FakeSystem(System):
    """systemd with one unit. `refuses` is why it starts nothing, `waits_for` why it could start nothing yet."""

    running: bool = False
    kubelet: bool = True
    refuses: str = ""
    waits_for: str = ""
    started: list[tuple[str, ...]] = field(default_factory=list)
    restarts: int = 0
    ends_with_agent: bool = False

    def hindered(self) -> str:
        return self.waits_for

    def burnin(self) -> UnitState:
        return UnitState(self.running)

    def start(self, arguments: Sequence[str]) -> Started:
        if self.refuses:
            raise GpuBurninError(self.refuses)
        self.started.append(tuple(arguments))
        self.running = True
        return Started(True, "i")

    def kubelet_runs(self) -> bool:
        return self.kubelet

    def restart_kubelet(self) -> bool:
        self.restarts += 1
        return True


@dataclass
class Bench:
    """One agent on a bench. `restart` is a new process on the same disk."""

    config: Config
    root: Path
    leave: Path
    system: FakeSystem = field(default_factory=FakeSystem)
    now_s: float = 1000.0
    at: datetime = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)
    said: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    wanted: dict[str, str | None] = field(default_factory=dict)
    asked: int = 0
    maintenance: Maintenance | None = None
    beats: list[Heartbeat] = field(default_factory=list)
    # Whether the thread of the kernel log goes round no more.
    log_hangs: bool = False

    def __post_init__(self) -> None:
        self.log_turns = Turns(lambda: self.now_s)
        self.restart()

    def restart(self) -> None:
        self.agent = Agent(
            self.config,
            TABLE,
            system=self.system,
            say=self._say,
            want=self._want,
            ask_nvml=self._ask,
            beat=self.beats.append,
            log_turns=self.log_turns,
            maintenance=lambda: self.maintenance,
            root=self.root,
            now=lambda: self.at,
            leave=self.leave,
            fabric_folder=self.leave.parent / "fabric",
            kernel=str(HARDWARE["kernel"]),
        )

    def _say(self, message: str, code: str = "") -> None:
        self.said.append(message)
        self.codes.append(code)

    def tick(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        self.at += timedelta(seconds=seconds)
        if not self.log_hangs:
            self.log_turns.turn()
        self.agent.tick(self.now_s)

    def log(self, *events: XidEvent, again: bool = False, lost: int = 0, why: str = "") -> None:
        self.agent.kernel_log(Read(events, lost, why, again), self.now_s)

    def gpus(self, *gpus: Vital, driver: str = "580.95.05", why: str = "") -> None:
        self.now_s += 0.1
        found = Vitals(driver, gpus, simulated=False, at_s=self.now_s) if gpus else None
        self.agent.vitals(found, why, self.now_s)

    def node(self, **annotations: Any) -> None:
        """The own Node as it is now, with annotations by the end of their names."""
        named = {f"muster.dev/{key}": value for key, value in annotations.items()}
        self.agent.own_node({"metadata": {"name": "gpu-1", "annotations": named}}, self.now_s)

    def _want(self, wanted: Mapping[str, str | None]) -> None:
        self.wanted = dict(wanted)

    def _ask(self) -> None:
        self.asked += 1


def healthy(**change: Any) -> Vital:
    """The GPU of the bench, with changes."""
    return replace(GPU, **change)
