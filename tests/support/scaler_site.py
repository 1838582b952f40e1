"""Machines, an admitter and jobs as the scaler finds them, in simulated time: what decide() says is carried out here.

The ledger is kept as the service keeps it (scaler/record.py); the rest is what a real site would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpu_burnin.admission.decide.times import when
from gpu_burnin.api.machine_power import MachinePower, MachineSpec, Power
from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL
from gpu_burnin.api.record import Place, State
from gpu_burnin.scaler import record
from gpu_burnin.scaler.decide import decide
from gpu_burnin.scaler.model import (
    Act,
    Answer,
    Asked,
    Close,
    Failed,
    Machine,
    Observe,
    Plan,
    PodSet,
    Reached,
    Reopen,
    Request,
    Rules,
    SetWish,
    Switch,
    Verdict,
    World,
)
from gpu_burnin.system.clock import rfc3339

START = datetime(2026, 11, 2, tzinfo=UTC)
MODEL = "h100-sxm5-80gb"
# Half an hour, and no brake by feeds.
RULES = Rules(idle_s=1800, on_per_feed=100)


class Killed(Exception):
    """The leader dies here."""


@dataclass
class Unit:
    """A machine as it is. `boots` says what becomes of its boots to come: ok, sick (found something), never (hangs)."""

    power: MachinePower
    on: bool = False
    kubelet: bool = False
    boot: int = 0
    boots_until: datetime | None = None
    outcomes: list[str] = field(default_factory=list)
    hold: str = ""
    leave: bool = False
    state: State = State.NEW
    failed: tuple[datetime, str] | None = None
    used: int = 0
    others: int = 0
    swings: bool = False
    idle_since: datetime | None = None
    restored_at: datetime | None = None
    unheard: bool = False
    asked: str = ""
    # What its provider does: "" as it is told, "error", "deaf" (takes orders and does
    # nothing), "lies" (tells the opposite of what is).
    provider: str = ""
    error: str = ""
    error_wish: str = ""
    seen: Power = Power.UNKNOWN
    seen_at: datetime | None = None
    cycles: int = 0
    on_s: float = 0.0

    @property
    def name(self) -> str:
        return self.power.name


@dataclass
class Job:
    """Whole nodes for a time. `begun` is when they were its."""

    name: str
    nodes: int
    seconds: float
    arrived: datetime
    begun: datetime | None = None
    within: str = ""
    on: list[str] = field(default_factory=list)
    state: Asked = Asked.OPEN
    since: datetime | None = None
    message: str = ""
    asks_again: datetime | None = None
    model: str = MODEL


@dataclass
class Site:
    """The whole. `before` is called before each step of an act, and may raise Killed."""

    rules: Rules
    boot_s: float = 900.0
    now: datetime = START
    units: dict[str, Unit] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    before: Callable[[str], None] = lambda step: None
    paused: str = ""
    unreadable: str = ""
    history: list[Act] = field(default_factory=list)
    done: list[Job] = field(default_factory=list)

    def add(
        self, name: str, *, on: bool = False, rack: str = "r1", leaf: str = "l1", feed: str = "a", **more: object
    ) -> Unit:
        """A machine of 8 GPUs, off or at work."""
        model = str(more.pop("model", MODEL))
        unit = Unit(MachinePower(name, MachineSpec(gpus=8, model=model, place=Place(rack, leaf, feed))))
        if on:
            unit.on = unit.kubelet = True
            unit.state, unit.idle_since, unit.boot = State.READY, self.now, 1
        for key, value in more.items():
            setattr(unit, key, value)
        self.units[name] = unit
        return unit

    def ask(self, name: str, nodes: int, seconds: float = 3600.0, **more: object) -> Job:
        """A job that waits for nodes: Kueue has made its ProvisioningRequest."""
        job = Job(name, nodes, seconds, self.now, **more)  # type: ignore[arg-type]
        self.jobs.append(job)
        return job

    def world(self) -> World:
        return World(
            tuple(self._machine(unit) for unit in self.units.values()),
            tuple(self._request(job) for job in self.jobs if job.asks_again is None),
            self.paused,
            self.unreadable,
        )

    def plan(self) -> Plan:
        return decide(self.world(), self.rules, self.now)

    def settle(self, most: int = 50) -> Plan:
        """Decide and carry out until nothing is left to do now."""
        for _ in range(most):
            plan = self.plan()
            if not plan.acts:
                return plan
            for act in plan.acts:
                self.carry_out(act)
            self.react()
        raise AssertionError(f"it does not come to rest: {plan.acts}")

    def run(self, seconds: float, step_s: float = 30.0) -> None:
        """Time goes on."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.advance(min(step_s, (end - self.now).total_seconds()))
            self.settle()

    def advance(self, seconds: float) -> None:
        for unit in self.units.values():
            unit.on_s += seconds if unit.on else 0.0
        self.now += timedelta(seconds=seconds)
        self.react()

    def react(self) -> None:
        """What machines, admitter, Kueue and jobs do meanwhile."""
        for unit in self.units.values():
            self._react(unit)
        for job in list(self.jobs):
            if job.asks_again is not None and self.now >= job.asks_again:
                job.asks_again, job.state, job.since = None, Asked.OPEN, None
            if job.begun is None and job.state is Asked.PROVISIONED:
                self._begin(job)
            if job.begun is not None and self.now >= job.begun + timedelta(seconds=job.seconds):
                for name in job.on:
                    self.units[name].used, self.units[name].idle_since = 0, self.now
                self.jobs.remove(job)
                self.done.append(job)

    def carry_out(self, act: Act) -> None:
        """One act, in the steps in which the service does it."""
        self.before(f"{type(act).__name__}: begin")
        self.history.append(act)
        if isinstance(act, Answer):
            self._answer(act)
            return
        unit = self.units[act.machine]
        match act:
            case SetWish():
                unit.power = record.with_wish(unit.power, act, self.now)
            case Observe():
                self._observe(unit)
            case Switch():
                self._switch(unit, act.power)
            case Close():
                # Admitted work is not ended by a hold.
                unit.hold, unit.leave = unit.hold or rfc3339(self.now), unit.leave or act.leave
            case Reopen():
                unit.hold, unit.leave = "", False
            case Reached() | Failed():
                unit.power = record.with_outcome(unit.power, act, self.now)
        self.before(f"{type(act).__name__}: end")

    def new_leader(self) -> None:
        """What no object has is forgotten."""
        for unit in self.units.values():
            unit.seen, unit.seen_at, unit.error, unit.error_wish = Power.UNKNOWN, None, "", ""

    def _observe(self, unit: Unit) -> None:
        wish = unit.power.spec.wanted
        if unit.provider == "error":
            unit.error, unit.error_wish = "its BMC does not answer", wish.since if wish else ""
            return
        on = not unit.on if unit.provider == "lies" else unit.on
        unit.seen, unit.seen_at = Power.ON if on else Power.OFF, self.now
        status = record.with_power(unit.power.status, unit.seen, self.now)
        unit.power = replace(unit.power, status=status)

    def _switch(self, unit: Unit, power: Power) -> None:
        wish = unit.power.spec.wanted
        assert wish is not None and wish.power is power, f"{unit.name}: {power} without a record"
        if unit.provider == "error":
            unit.error, unit.error_wish = "its BMC does not answer", wish.since
            return
        if unit.provider == "deaf":
            pass
        elif power is Power.OFF:
            assert not unit.used, f"{unit.name}: powered off under work"
            unit.on, unit.boots_until = False, None
        elif not unit.on:
            unit.on, unit.boots_until = True, self.now + timedelta(seconds=self.boot_s)
            unit.cycles += 1
        self.before("Switch: ordered, not recorded")
        self._observe(unit)
        unit.error = "" if unit.seen is power else f"it took the order, and the power is still {unit.seen}"
        unit.error_wish = wish.since

    def _react(self, unit: Unit) -> None:
        if not unit.on:
            if unit.kubelet:
                unit.kubelet, unit.state = False, State.SUSPECT
        elif unit.boots_until is not None and self.now >= unit.boots_until:
            outcome = unit.outcomes.pop(0) if unit.outcomes else "ok"
            unit.boots_until = None
            if outcome == "sick":
                unit.failed, unit.state = (self.now, "GEMM_MISMATCH"), State.QUARANTINED
            elif outcome == "ok":
                unit.kubelet, unit.boot, unit.failed = True, unit.boot + 1, None
        if unit.hold and unit.state is not State.QUARANTINED:
            unit.state = State.HELD
        elif unit.kubelet and not unit.hold and unit.state is not State.READY and unit.failed is None:
            unit.state, unit.idle_since = State.READY, self.now
        if unit.leave:
            unit.others = 0

    def _begin(self, job: Job) -> None:
        """As Kueue: all nodes or none; in one place where that is asked for."""
        free = [one for one in self.units.values() if self._machine(one).ready and not one.used]
        free = [one for one in free if one.power.spec.model == job.model]
        places: dict[str, list[Unit]] = {}
        for one in free:
            places.setdefault(self._labels(one).get(job.within, "") if job.within else "", []).append(one)
        fitting = [found for found in places.values() if len(found) >= job.nodes]
        if fitting:
            for one in fitting[0][: job.nodes]:
                one.used, one.idle_since = 8, None
                job.on.append(one.name)
            job.begun = self.now

    def _answer(self, act: Answer) -> None:
        job = next(job for job in self.jobs if job.name == act.request)
        job.message = act.message
        if act.verdict is Verdict.PROVISIONED:
            job.state, job.since = Asked.PROVISIONED, self.now
        elif act.verdict in (Verdict.FAILED, Verdict.EXPIRED):
            # Kueue makes another request after a while.
            job.state, job.asks_again = Asked.OVER, self.now + timedelta(seconds=60)

    def _request(self, job: Job) -> Request:
        pods = PodSet(job.nodes, 8, {READY_LABEL: "true", GPU_LABEL: job.model}, job.within)
        return Request(job.name, job.arrived, (pods,), job.state, job.since, frozenset(job.on), job.message)

    def _labels(self, unit: Unit) -> Mapping[str, str]:
        place = unit.power.spec.place
        return {READY_LABEL: "true", GPU_LABEL: unit.power.spec.model, RACK_LABEL: place.rack, LEAF_LABEL: place.leaf}

    def _machine(self, unit: Unit) -> Machine:
        power, status = unit.power, unit.power.status
        wish = power.spec.wanted
        pending = wish is not None and status.reached != wish.since
        recorded = Power.UNKNOWN if pending else status.power
        seen = unit.seen if unit.seen is not Power.UNKNOWN else recorded
        doubt = not unit.asked and not unit.hold and not (unit.kubelet and unit.state is State.READY)
        return Machine(
            name=unit.name,
            model=power.spec.model,
            gpus=power.spec.gpus,
            place=power.spec.place,
            labels=self._labels(unit),
            power=seen,
            power_since=when(status.since),
            seen_at=unit.seen_at,
            wish=wish,
            reached=status.reached,
            failures=record.failures(power),
            failure=status.last_failure,
            held=record.held(power),
            error=unit.error if wish is not None and unit.error_wish == wish.since else "",
            there=unit.boot > 0,
            kubelet=unit.kubelet,
            ready=unit.kubelet and unit.state is State.READY and not unit.hold and not unit.asked,
            admitted=unit.kubelet and unit.state is State.READY,
            doubt=doubt,
            boot_id=str(unit.boot) if unit.boot else "",
            state=unit.state,
            asked=unit.asked,
            hold=unit.hold,
            leave=unit.leave,
            swings=unit.swings,
            failed=unit.failed,
            used_gpus=unit.used,
            others=unit.others,
            idle_since=unit.idle_since if not unit.used else None,
            restored_at=unit.restored_at,
            unheard=unit.unheard,
        )


def names_of(acts: Iterable[Act], kind: type) -> list[str]:
    """The machines of the acts of one kind."""
    return sorted(act.machine for act in acts if isinstance(act, kind) and not isinstance(act, Answer))


def site(off: int = 0, on: int = 0, rules: Rules = RULES) -> Site:
    """So many machines that are off and at work, when all of them were looked at."""
    made = Site(rules)
    for number in range(off):
        made.add(f"off-{number}")
    for number in range(on):
        made.add(f"on-{number}", on=True)
    made.settle()
    return made


def powers(made: Site) -> dict[str, bool]:
    """Which machines are on."""
    return {name: unit.on for name, unit in made.units.items()}
