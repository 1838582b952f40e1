"""Carrying out what was decided: one request to the API server, or one order to a provider, for each act.

The wish is written first, then the order is given, then what became of it is recorded. Before each order the wish is
read again from the cluster, and before the power goes, so is the work on the node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, admissions_path
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.admission.service.cache import Records, pod_of
from gpu_burnin.admission.service.journal import EventRecorder, Journal, node_reference
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.machine_power import MachinePower, Power, machines_path, parse_machine
from gpu_burnin.api.names import MACHINE_KIND, SCALER_USER, Names
from gpu_burnin.api.record import Ask
from gpu_burnin.power.port import PowerError, Provider, Target
from gpu_burnin.scaler import record
from gpu_burnin.scaler.model import (
    Act,
    Answer,
    Close,
    Failed,
    Observe,
    Reached,
    Reopen,
    SetWish,
    Switch,
    Verdict,
)
from gpu_burnin.scaler.requests import answer_patch
from gpu_burnin.scaler.stores import Askings, Machines
from gpu_burnin.scaler.world import Seen, own_ask
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json

# A provider that does not answer is asked again after this.
_ASK_AGAIN_S = 60.0
_MOST_TRIES = 5
_POWER_EVENT = "MusterPower"


@dataclass
class Worker:
    """Carries out acts. `may_act` raises NotLeader; what orders have shown is in `seen`, by machine.

    `done` is called when an order has ended.
    """

    api: KubeApi
    names: Names
    machines: Machines
    records: Records
    askings: Askings
    providers: Mapping[str, Provider]
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    may_act: Callable[[], None]
    done: Callable[[], None] = lambda: None
    orders: int = 16
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    seen: dict[str, Seen] = field(default_factory=dict)
    _asked_s: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.orders, thread_name_prefix="order")

    def carry_out(self, act: Act) -> None:
        """One act. Raises ApiError, Conflict and NotLeader; an order goes on in a thread of its own."""
        match act:
            case Observe():
                self._begin(act.machine, None)
            case Switch():
                self._begin(act.machine, act.power)
            case SetWish():
                self._wish(act)
            case Close() | Reopen():
                self._ask(act)
            case Reached() | Failed():
                self._outcome(act)
            case Answer():
                self._answer(act)
        self.metrics.add("acts", {"act": type(act).__name__})

    def due(self, every_s: float) -> Iterable[str]:
        """The machines that nobody has looked at for so long."""
        now_s = self.monotonic_s()
        return [name for name in self.machines.all() if now_s - self._asked_s.get(name, -every_s) >= every_s]

    def close(self) -> None:
        """Give no more orders; those that are under way end by themselves, and their outcome is read by who leads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, name: str, power: Power | None) -> None:
        with self._lock:
            seen = self.seen.get(name, Seen())
            late = self.monotonic_s() - self._asked_s.get(name, -_ASK_AGAIN_S) >= _ASK_AGAIN_S
            # One that has just been asked and did not answer is not asked all the time.
            if seen.switching or (power is None and seen.at is None and not late):
                return
            self._asked_s[name] = self.monotonic_s()
            self.seen[name] = replace(seen, switching=True)
        self._pool.submit(self._order, name, power)

    def _order(self, name: str, power: Power | None) -> None:
        """In a thread: order it (None: ask only), and keep what is seen."""
        wish = ""
        try:
            machine = self._fresh(name)
            wish = machine.spec.wanted.since if machine.spec.wanted is not None else ""
            provider, target = self._provider(machine), target_of(machine)
            if power is not None and self._may_switch(machine, power):
                self.may_act()
                (provider.turn_on if power is Power.ON else provider.turn_off)(target)
                self.metrics.add("orders", {"power": str(power), "result": "done"})
                self._tell(name, f"{name}: its power is switched {power} ({_why(machine)})")
            found = Power.ON if provider.is_on(target) else Power.OFF
            self._saw(name, Seen(found, self.now()), found, "" if power is None else f"switched {power}")
        except PowerError as error:
            if power is not None:
                self.metrics.add("orders", {"power": str(power), "result": "failed"})
            else:
                # A BMC that is busy while its machine boots has failed at nothing.
                wish = ""
            self._saw(
                name, replace(self.seen.get(name, Seen()), switching=False, error=str(error), wish=wish), None, ""
            )
            self.journal.say(str(error), node=name)
        except (ApiError, Conflict, NotLeader) as error:
            self.journal.say(f"{name}: {error}", node=name)
        except Exception as error:
            self.journal.say(f"{name}: a fault of muster itself ({error!r})", node=name)
        finally:
            with self._lock:
                self.seen[name] = replace(self.seen.get(name, Seen()), switching=False)
            self.done()

    def _may_switch(self, machine: MachinePower, power: Power) -> bool:
        """Whether it is still wanted, by the cluster itself and not by what a watch has brought."""
        wish, name = machine.spec.wanted, machine.name
        if wish is None or wish.power is not power:
            return False
        if power is Power.OFF:
            found = self.api.items("/api/v1/pods", f"list the pods of {name}", fieldSelector=f"spec.nodeName={name}")
            work = [pod for pod in (pod_of(item, "") for item in found) if pod.gpus and not pod.ended]
            if work:
                self.journal.say(f"{name}: it stays on, {work[0].namespace}/{work[0].name} works there", node=name)
                return False
        return True

    def _saw(self, name: str, seen: Seen, power: Power | None, what: str) -> None:
        with self._lock:
            self.seen[name] = replace(seen, switching=True)
        if power is None:
            return
        try:
            self._record(name, lambda machine: _with_power(machine, power, what, self.now()))
        except (ApiError, Conflict, NotLeader) as error:
            self.journal.say(f"{name}: what was seen of its power is not recorded yet ({error})", node=name)

    def _wish(self, act: SetWish) -> None:
        machine = self._kept(act.machine)
        wished, now = record.with_wish(machine, act, self.now()), self.now()
        path = f"{machines_path(self.names, machine.name)}"
        patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": machine.version}]
        if wished.spec.wanted is not None:
            patch.append({"op": "add", "path": "/spec/wanted", "value": to_json(wished.spec.wanted)})
        elif machine.spec.wanted is not None:
            patch.append({"op": "remove", "path": "/spec/wanted"})
        self.machines.put(self.api.patch(path, patch, f"write the wish of {machine.name}"))
        what = f"wanted {act.power}" if act.power is not None else record.LEFT
        self._tell(machine.name, f"{machine.name}: {what}: {act.why}")
        self._record(machine.name, lambda one: replace(one, status=record.with_change(one.status, what, act.why, now)))

    def _outcome(self, act: Reached | Failed) -> None:
        self._record(act.machine, lambda machine: record.with_outcome(machine, act, self.now()))
        if isinstance(act, Failed):
            self.metrics.add("failures", {"code": act.code})
            with self._lock:
                self.seen[act.machine] = replace(self.seen.get(act.machine, Seen()), error="", wish="")
        good = isinstance(act, Reached)
        self._tell(act.machine, act.message, good=good)

    def _record(self, name: str, change: Callable[[MachinePower], MachinePower]) -> None:
        """Write the status that `change` gives for the newest one."""
        machine = self._kept(name)
        for _ in range(_MOST_TRIES):
            changed = change(machine)
            if changed.status == machine.status:
                return
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": machine.version},
                {"op": "add", "path": "/status", "value": to_json(changed.status)},
            ]
            try:
                path = f"{machines_path(self.names, name)}/status"
                self.machines.put(self.api.patch(path, patch, f"write the status of {MACHINE_KIND} {name}"))
                return
            except Conflict:
                machine = self._fresh(name)
        raise Conflict(f"{name}: its {MACHINE_KIND} changes all the time")

    def _ask(self, act: Close | Reopen) -> None:
        """The scaler's own asks in the ledger, and no one else's."""
        entry = self.records.get(act.machine)
        if entry is None:
            return
        spec, patch = entry.spec, []
        if isinstance(act, Close):
            ask = Ask(SCALER_USER, sentence(f"powered off: {act.why}"), rfc3339(self.now()))
            wanted = {"hold": spec.hold or ask, **({"quarantine": spec.quarantine or ask} if act.leave else {})}
            changed = {key: one for key, one in wanted.items() if one != getattr(spec, key)}
            patch = [{"op": "add", "path": f"/spec/{key}", "value": to_json(one)} for key, one in changed.items()]
        else:
            own = [key for key in ("hold", "quarantine") if own_ask(key, spec, self.now()) is not None]
            patch = [{"op": "remove", "path": f"/spec/{key}"} for key in own]
        if not patch:
            return
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": entry.version}
        path = admissions_path(self.names, act.machine)
        self.records.put(self.api.patch(path, [test, *patch], f"ask for {act.machine}"))
        what = "closed" if isinstance(act, Close) else "reopened"
        self._tell(act.machine, f"{act.machine}: {what}: {act.why}")

    def _answer(self, act: Answer) -> None:
        found = self.askings.get(act.request)
        if found is None:
            return
        patch = answer_patch(found, act, self.now())
        try:
            self.askings.put(self.api.patch(found.path, patch, f"answer the ProvisioningRequest {act.request}"))
        except NotFound:
            return
        self.metrics.add("answers", {"verdict": str(act.verdict)})
        if act.verdict is not Verdict.WAIT:
            self.journal.say(f"{act.request}: {act.verdict}: {act.message}")

    def _kept(self, name: str) -> MachinePower:
        return self.machines.get(name) or self._fresh(name)

    def _fresh(self, name: str) -> MachinePower:
        item = self.api.get(machines_path(self.names, name), f"read {MACHINE_KIND} {name}")
        self.machines.put(item)
        return parse_machine(item)

    def _provider(self, machine: MachinePower) -> Provider:
        name = machine.spec.supply.provider
        if name not in self.providers:
            raise PowerError(
                f"{machine.name}: its provider {name} is not in the scaler's configuration; add it, or correct "
                "fleet_power.provider"
            )
        return self.providers[name]

    def _tell(self, name: str, message: str, *, good: bool = True) -> None:
        self.journal.say(message, node=name)
        (self.recorder.notice if good else self.recorder.alarm)("default", node_reference(name), _POWER_EVENT, message)


def target_of(machine: MachinePower) -> Target:
    """The machine as its provider knows it."""
    spec, supply = machine.spec, machine.spec.supply
    place = {key: value for key, value in vars(spec.place).items() if value}
    return Target(
        machine.name,
        supply.address,
        supply.system,
        supply.uuid,
        supply.serial,
        spec.model,
        spec.gpus,
        place,
        supply.parameters,
    )


def _with_power(machine: MachinePower, power: Power, what: str, now: datetime) -> MachinePower:
    status = record.with_power(machine.status, power, now)
    if what and status is not machine.status:
        status = record.with_change(status, what, _why(machine), now)
    return replace(machine, status=status)


def _why(machine: MachinePower) -> str:
    return machine.spec.wanted.why if machine.spec.wanted is not None else "nothing is wanted"
