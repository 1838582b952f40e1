"""The agent's mind: what comes in, what is done about it, what the Node should say. No thread and no wait in here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin import __version__
from gpu_burnin.api.agent_note import AgentNote, Maintenance, Revoking, Warned, note_text
from gpu_burnin.api.evidence import WATCHED, one_line
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import XidTable
from gpu_burnin.node import leave_file
from gpu_burnin.node.api import annotations_of
from gpu_burnin.node.gate import check_gate
from gpu_burnin.node.watch import judged
from gpu_burnin.node.watch.fabric import FOLDER, FabricPart
from gpu_burnin.node.watch.findings import STANDING, Finding, of_hardware, of_vitals, of_xids
from gpu_burnin.node.watch.heartbeat import Pulse, Turns
from gpu_burnin.node.watch.kept import Memory
from gpu_burnin.node.watch.kernel import RETRY_S, Read
from gpu_burnin.node.watch.numbers import FILE, Numbers, Readings, most_links
from gpu_burnin.node.watch.registration import Registration
from gpu_burnin.node.watch.request import Requests, used_by
from gpu_burnin.node.watch.revoke import Revoker, annotation
from gpu_burnin.node.watch.system import Say, System
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.telemetry.kmsg import XidEvent, lost_messages
from gpu_burnin.telemetry.vitals import Vitals

# What keeps the agent from seeing; told as long as it lasts, and as of when it began.
NO_LOG, NO_NVML = "XID_SOURCE_MISSING", "NVML_UNAVAILABLE"
# NVML and the kernel log tell the same XID; the log's line says more and comes within this time.
_SAME_XID_S, _RECENT_S = 2.0, 10.0
# For how long what systemd says of the burn-in is good enough.
_LOOK_S = 5.0
# A driver that is reloaded, or has to wake its GPUs, takes up to half a minute.
_NVML_SILENT_S = 60.0
# The thread of the kernel log goes round each second, or rests when there is no log.
_LOG_SILENT_S = RETRY_S + 30.0
_MOST_HELD = 1000


@dataclass(frozen=True)
class _Seen:
    """An XID that came. `again`: it may have come before, to an agent before this one or to a run."""

    event: XidEvent
    again: bool


class Agent:
    """One node's agent. `say` writes a line into the journal, with its code where it has one; `want` says what the own
    annotations should be."""

    def __init__(
        self,
        config: Config,
        table: XidTable,
        *,
        system: System,
        say: Say,
        want: Callable[[Mapping[str, str | None]], None],
        ask_nvml: Callable[[], None],
        beat: Callable[[Heartbeat], None],
        log_turns: Turns,
        maintenance: Callable[[], Maintenance | None] = lambda: None,
        root: Path = Path("/"),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        leave: Path = leave_file.LEAVE_FILE,
        fabric_folder: Path = FOLDER,
        kernel: str = "",
    ) -> None:
        metrics = config.metrics_file
        self._numbers = Numbers(metrics and metrics.with_name(FILE), lambda: now().timestamp())
        self._config, self._table, self._system, self._say, self._want = config, table, system, say, want
        self._ask_nvml, self._maintenance, self._root, self._now, self._leave = ask_nvml, maintenance, root, now, leave
        self._kernel = kernel or os.uname().release
        self.memory = Memory(config.state_dir, host.boot_id(root))
        self._pulse, self._log_turns = Pulse(self.memory.kept.boot_id, now(), beat), log_turns
        self.revoker = Revoker(config, self.memory, root)
        self.requests = Requests(config, self.memory, system, ask_nvml)
        self.fabric = FabricPart(config, system, self.memory.kept.boot_id, now, self._why_busy, fabric_folder)
        self.registration = Registration(system, self._gate_is_open)
        self._held: list[_Seen] = []
        self._reported: list[tuple[float, XidEvent]] = []
        self._logged: list[tuple[float, int, str]] = []
        self._looked: tuple[float, bool] = (-_LOOK_S, False)
        self._vitals: Vitals | None = None
        self._vitals_due_s: float | None = None
        self._first_vitals_due_s: float | None = None
        self._nvml_why = ""
        self._changed_hardware = ""
        # A GPU that is lost no longer says who it is.
        self._labels: dict[str, str] = {}
        self._told: dict[str, str] = {}
        # The restore of etcd that the own Node tells of.
        self._restored = ""
        # Something came that the numbers may have to tell at once.
        self._news = False
        if self.memory.problem:
            say(self.memory.problem)

    # What comes in.

    def kernel_log(self, read: Read, now_s: float) -> None:
        """What the kernel log gave."""
        self._blind(NO_LOG, read.why and f"XIDs go unseen: {read.why}")
        if read.lost:
            self._warn("XID_GAP", "", f"{lost_messages(read.lost)}: XIDs among them went unseen")
        running = bool(read.events) and self._burning(now_s, fresh=True)
        self._logged = [one for one in self._logged if now_s - one[0] < _RECENT_S]
        self._logged += [(now_s, event.xid, event.pci_bus_id) for event in read.events[:_MOST_HELD] if not read.again]
        # A storm cannot fill the memory: its beginning says enough.
        room = max(0, _MOST_HELD - len(self._held))
        self._held += [_Seen(event, read.again or running) for event in read.events[:room]]

    def nvml_xid(self, event: XidEvent, now_s: float) -> None:
        """An XID that NVML reports; the kernel log's own line, which says more, is awaited."""
        if len(self._reported) < _MOST_HELD:
            self._reported.append((now_s, event))

    def vitals(self, vitals: Vitals | None, why: str, now_s: float) -> None:
        """NVML's readings, or why there are none; with readings, `why` is what keeps events from being told."""
        self._vitals_due_s = self._nvml_limit_s(now_s)
        self._vitals, self._nvml_why, self._news = vitals, "" if vitals is not None else why, True
        self._blind(NO_NVML, why and f"GPUs are watched by {'readings' if vitals else 'the kernel log'} alone: {why}")
        if vitals is None:
            return
        self.revoker.simulated |= vitals.simulated
        self._labels |= {gpu.pci_bus_id: gpu.label for gpu in vitals.gpus if gpu.pci_bus_id and gpu.uuid}
        known = self.memory.kept.uncorrected
        counts = {gpu.uuid: gpu.uncorrected for gpu in vitals.gpus if gpu.uuid and gpu.uncorrected is not None}
        if not self._burning(now_s, fresh=True):
            found = of_vitals(vitals, known)
            for finding in found:
                self._act(finding)
            lasting = {f"{finding.code} {finding.place}".strip() for finding in found}
            kept = self.memory.kept.warnings
            self.memory.forget({key for key, one in kept.items() if one.code in STANDING and key not in lasting})
            self._hardware(vitals)
        self.memory.change(uncorrected={**known, **counts}, nvlinks=most_links(vitals, self.memory.kept.nvlinks))

    def own_node(self, node: Mapping[str, Any] | None, now_s: float) -> None:
        """The own Node as the API server has it, None where it has none."""
        self._log_once("api", "")
        if node is None:
            self.registration.absent(now_s)
            return
        self.registration.present()
        found = annotations_of(node)
        self._restored = _text(found.get(self._config.publish.names.restored)) or ""
        self._log_if(self.requests.take(_text(found.get(self._config.publish.names.request)), now_s))
        self._log_if(self.fabric.take(_text(found.get(self._config.publish.names.fabric_test))))
        try:
            if leave_file.write(_text(found.get(self._config.publish.names.leave)), self._leave):
                self._say("the work on this node is asked to leave" if self._leave.exists() else "nobody asks to leave")
            self._log_once("leave", "")
        except GpuBurninError as error:
            self._log_once("leave", str(error))

    def api_trouble(self, why: str) -> None:
        """The API server cannot be asked; "" where kubelet has no certificate yet, and there is no cluster to ask."""
        self.registration.unknown()
        self._log_once("api", why and f"the cluster cannot be asked: {why}")

    def heartbeat_trouble(self, why: str) -> None:
        """The heartbeat cannot be sent; "" when it can."""
        self._log_once(
            "heartbeat", why and f"no heartbeat is sent, so the admitter takes this node for unwatched: {why}"
        )

    # What is done about it.

    def tick(self, now_s: float) -> None:
        """Judge what came, go on with what is under way, and say what the Node should say. Called every second."""
        if self._vitals_due_s is not None and now_s > self._vitals_due_s:
            late_s = now_s - self._vitals_due_s + _NVML_SILENT_S
            self._vitals = None
            self._blind(NO_NVML, f"NVML has not answered for {late_s // 60 + 1:.0f} minutes or more")
        self._merge_reported(now_s)
        if self._held and not self._burning(now_s):
            self._judge()
        self._revoke()
        self._log_if(self.requests.go_on(self._vitals, self._nvml_why, now_s))
        self._log_if(self.fabric.go_on(now_s))
        self._log_if(self.registration.go_on(now_s))
        self._log_once("memory", self.memory.problem)
        self._forget_tested()
        self._want(self.wanted(now_s))
        self._beat(now_s)
        self._numbers.update(lambda: self._readings(now_s), now_s, changed=self._news)
        self._news = False
        self._log_once("numbers", self._numbers.problem)

    def wanted(self, now_s: float) -> dict[str, str | None]:
        """The own annotations as they should be."""
        names = self._config.publish.names
        found: dict[str, str | None] = {names.fabric: self.fabric.annotation} if self.fabric.known else {}
        speaks, evidence = annotation(self.revoker.store)
        # A run that is under way, or comes again, has left none yet: what was published before stays until it ends.
        if self.memory.kept.pending is not None:
            speaks, evidence = True, None
        elif speaks and (self.requests.withheld() or (evidence is None and self._burning(now_s))):
            speaks = False
        note = self.note()
        if speaks:
            found[names.evidence] = evidence
            # Not before the Node says what this node has to say: a restored Node still has evidence of before.
            note = replace(note, restored=self._restored)
        return {**found, names.agent: note_text(note)}

    def note(self) -> AgentNote:
        """What the agent says of itself."""
        kept, pending = self.memory.kept, self.memory.kept.pending
        return AgentNote(
            boot_id=kept.boot_id,
            version=__version__,
            heartbeat=True,
            request=kept.answer,
            warnings=tuple(kept.warnings.values()),
            maintenance=self._maintenance(),
            revoking=Revoking(pending.code, pending.message) if pending is not None else None,
        )

    def _why_busy(self) -> str:
        return "busy: a burn-in is under way" if self.revoker.store.held() else used_by(self._vitals)

    def _beat(self, now_s: float) -> None:
        """The heartbeat says that the GPUs are watched: none comes while a thread that sees hangs."""
        if self._first_vitals_due_s is None:
            self._first_vitals_due_s = self._nvml_limit_s(now_s)
        read = self._vitals_due_s is not None and self._log_turns.begun
        stuck = "NVML hangs" if now_s > (self._vitals_due_s or self._first_vitals_due_s) else ""
        if not stuck and self._log_turns.since_s() > _LOG_SILENT_S:
            stuck = "reading the kernel log hangs"
        self._log_once("stuck", stuck and f"no heartbeat is sent, since nobody watches: {stuck}")
        if read and not stuck:
            self._pulse.beat(now_s, self._now())

    def _nvml_limit_s(self, now_s: float) -> float:
        """Until when NVML has to have answered."""
        return now_s + self._config.watch_poll_s + _NVML_SILENT_S

    def _merge_reported(self, now_s: float) -> None:
        due = [event for at_s, event in self._reported if now_s - at_s >= _SAME_XID_S]
        self._reported = [(at_s, event) for at_s, event in self._reported if now_s - at_s < _SAME_XID_S]
        logged = {(xid, bus) for _, xid, bus in self._logged}
        unheard = [event for event in due if (event.xid, event.pci_bus_id) not in logged]
        self._held += [_Seen(event, again=self._burning(now_s, fresh=True)) for event in unheard]

    def _judge(self) -> None:
        held, self._held = self._held, []
        known = judged.by_runs(self.revoker.store, self.memory.kept.boot_id) if any(s.again for s in held) else None
        if any(seen.again for seen in held) and known is None:
            # The burn-in of this boot is to come, and judges what was before it.
            self._held = [seen for seen in held if seen.again]
            held = [seen for seen in held if not seen.again]
        fresh = [s.event for s in held if not s.again or not judged.is_known(s.event, known or (), self.memory)]
        self._count(fresh)
        for finding in of_xids(fresh, self._table, self._labels):
            self._act(finding)
        if held:
            judged.remember(self.memory, [seen.event for seen in held])

    def _count(self, events: Iterable[XidEvent]) -> None:
        counted = Counter(self.memory.kept.xids)
        counted.update(f"{event.pci_bus_id} {_class(event, self._table)}".strip() for event in events)
        self._news = True
        self.memory.change(xids=dict(counted))

    def _readings(self, now_s: float) -> Readings:
        """What the numbers tell."""
        newest, warned = self.revoker.newest(), self.memory.kept.warnings
        gpus = newest.hardware.get("gpus") if newest is not None else None
        sources = {"kernel_log": NO_LOG not in warned}
        if self._vitals_due_s is not None:
            sources |= {"nvml": self._vitals is not None}
            sources |= {"nvml_events": self._vitals is not None and NO_NVML not in warned}
        keys = ((key.rpartition(" "), count) for key, count in self.memory.kept.xids.items())
        return Readings(
            vitals=self._vitals,
            sources=sources,
            expected=len(gpus) if isinstance(gpus, list) else None,
            xids={(bus, kind): count for (bus, _, kind), count in keys},
            nvlinks=self.memory.kept.nvlinks,
            burning=self._burning(now_s),
        )

    def _hardware(self, vitals: Vitals) -> None:
        newest = self.revoker.newest()
        if newest is None or newest.statement.boot_id != self.memory.kept.boot_id:
            return
        finding = of_hardware(vitals, self._kernel, newest.hardware)
        # Once may be a driver that is being loaded.
        if finding is None or finding.message != self._changed_hardware:
            self._changed_hardware = finding.message if finding else ""
            if finding is not None:
                self._ask_nvml()
            return
        self._act(finding)

    def _act(self, finding: Finding) -> None:
        if not finding.fatal:
            self._warn(finding.code, finding.place, finding.message)
            return
        if self.memory.kept.pending is not None or not self.revoker.wanted(finding):
            return
        self._say(f"{finding.code}: {finding.message}: the admission of this node is taken back", finding.code)
        try:
            self.revoker.begin(finding)
        except (GpuBurninError, OSError) as error:
            self._say(f"the local gate cannot be closed: {error}")
        self._revoke()

    def _revoke(self) -> None:
        """Go on with a revocation; what keeps it from its end is told once."""
        if self.memory.kept.pending is None:
            return
        try:
            done = self.revoker.finish(self._now())
            self._log_once("revocation", "" if done else "a burn-in is under way, and judges what was found before it")
        except (GpuBurninError, OSError) as error:
            self._log_once("revocation", f"the revocation cannot be signed, so the evidence is withdrawn: {error}")

    # What is told.

    def _warn(self, code: str, place: str, message: str) -> None:
        if self.memory.warn(f"{code} {place}".strip(), Warned(code, one_line(message), self._at())):
            self._say(f"{code}: {message}", code)

    def _blind(self, code: str, message: str) -> None:
        before = code in self.memory.kept.warnings
        self._news |= before != bool(message)
        if message:
            self._warn(code, "", message)
        elif before:
            self.memory.forget({code})
            self._say(f"{code}: over", code)

    def _forget_tested(self) -> None:
        """Warnings of before the newest test are its to judge; what the agent does not see stays told."""
        newest = self.revoker.newest() if self.memory.kept.warnings else None
        if newest is None or newest.statement.boot_id != self.memory.kept.boot_id or newest.statement.level == WATCHED:
            return
        since = newest.statement.finished_at
        stays = {NO_LOG, NO_NVML, *STANDING}
        old = {key for key, one in self.memory.kept.warnings.items() if one.code not in stays and one.at < since}
        if old:
            self.memory.forget(old)

    def _log_once(self, about: str, message: str) -> None:
        """Say a trouble once, as long as it stays the same."""
        if message and self._told.get(about) != message:
            self._say(message)
        self._told[about] = message

    def _log_if(self, message: str) -> None:
        if message:
            self._say(message)

    def _at(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def _gate_is_open(self) -> bool:
        try:
            check_gate(self._config, self._root)
        except GpuBurninError:
            return False
        return True

    def _burning(self, now_s: float, *, fresh: bool = False) -> bool:
        """Whether a burn-in of our own is under way: XIDs are its to judge. Without `fresh` as of some seconds ago."""
        if self.revoker.store.held():
            return True
        if fresh or now_s - self._looked[0] >= _LOOK_S:
            try:
                self._looked = (now_s, self._system.burnin().running)
            except GpuBurninError:
                self._looked = (now_s, False)
        return self._looked[1]


def _class(event: XidEvent, table: XidTable) -> str:
    policy = table.policy(event.xid, sxid=event.sxid)
    return "unknown" if policy is None else policy.for_text(event.text)[1].value


def _text(value: object) -> str | None:
    return None if value is None else str(value)
