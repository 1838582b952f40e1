"""Keeps nodes from work while they are tested: a hold in the ledger, asked for as a person asks, which has an end.

Only nodes without work are taken: nobody is drained. The admitter then lets no pod come and asks for no test of its
own. The hold ends by its time when nobody renews it: nodes come back where the controller dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.names import KIND, Names
from gpu_burnin.api.record import Ask, NodeAdmission, State
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.fleet.repair.permit import Scene, maintenance
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s
from gpu_burnin.system.prose import listed

# How the reason of its holds begins: one of an earlier run is taken over, since one run has the lock.
WHY = "fabric run "
# A hold lasts so long at least, and is renewed when less is left than the coming round takes, and this.
_LEAST_S, _SPARE_S = 3600.0, 600.0
# How long the admitter may take to see a hold.
_TAKE_OVER_S = 60.0
_POLL_S = 1.0
_WORKING = (State.READY, State.EXPIRING)


@dataclass(frozen=True)
class Nobody:
    """Where no cluster gives work to the nodes, there is nobody to ask."""

    def take(self, nodes: Sequence[str], for_s: float) -> Mapping[str, str]:
        """All of them can be had."""
        return {}

    def release(self, later: Mapping[str, float]) -> None:
        """Nothing is to be given back."""


@dataclass
class InLedger:
    """The holds of one run, whose UUID is `run_id`."""

    cluster: Cluster
    names: Names
    run_id: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    # Those of this process that were seen to take no work.
    out: set[str] = field(default_factory=set)

    def take(self, nodes: Sequence[str], for_s: float) -> Mapping[str, str]:
        """Hold nodes for a round of so many seconds; those that cannot be had, and why. Raises GpuBurninError."""
        if paused := self.cluster.paused():
            raise GpuBurninError(
                f"the fleet is paused ({paused}), and the admitter would let no node back in; call this again after "
                "`muster resume`"
            )
        records, left = self.cluster.records(), dict[str, str]()
        machines = self.cluster.nodes() if set(nodes) - self.out else {}
        for name in nodes:
            record = records.get(name)
            why = refusal(record, self.cluster.me, self.now())
            if not why and name not in self.out:
                scene = Scene(name, self.names, self.cluster.me, record, machines.get(name))
                why = maintenance(scene, self.now())
            if why:
                left[name] = why
        had = [name for name in nodes if name not in left]
        # One whose hold has ended meanwhile may have work.
        fresh = [name for name in had if name not in self.out or not self._is_held(records[name])]
        for name in had:
            self._hold(name, for_s)
        left |= self._await_out(fresh)
        pods = self.cluster.pods_by_node() if fresh else {}
        for name in fresh:
            if name not in left and (why := work(pods.get(name, ()))):
                left[name] = why
        for name in set(left) & set(had):
            self._give_back(name)
        self.out = (self.out | set(fresh)) - set(left)
        return left

    def release(self, later: Mapping[str, float]) -> None:
        """Give back every node that is held for this run; raises GpuBurninError, after all were tried.

        The holds of `later` end by themselves in so many seconds. Those of other runs end by their time: another
        controller may test them.
        """
        kept: dict[str, str] = {}
        for record in self.cluster.records().values():
            if record.spec.hold is not None and ours(record.spec.hold, self.cluster.me, self._why):
                try:
                    self._give_back(record.name, later.get(record.name, 0.0))
                except GpuBurninError as error:
                    kept[record.name] = str(error)
        self.out.clear()
        if kept:
            raise GpuBurninError(
                f"{listed(list(kept))}: still kept from work, until the hold's own end: {next(iter(kept.values()))}"
            )

    def _hold(self, name: str, for_s: float) -> None:
        def renewed(record: NodeAdmission) -> Mapping[str, Ask | None] | None:
            now, standing = self.now(), record.spec.hold
            if refusal(record, self.cluster.me, now):
                return None
            if ours(standing, self.cluster.me) and standing is not None and standing.until:
                left_s = (parse_rfc3339(standing.until) - now).total_seconds()
                if standing.why == self._why and left_s >= for_s + _SPARE_S:
                    return None
            until = now + timedelta(seconds=max(_LEAST_S, 2 * for_s) + _SPARE_S)
            return {"hold": Ask(self.cluster.me, self._why, rfc3339_s(now), rfc3339_s(until))}

        self.cluster.change(name, renewed)

    def _is_held(self, record: NodeAdmission) -> bool:
        return record.status.state is State.HELD and ours(active(record.spec.hold, self.now()), self.cluster.me)

    @property
    def _why(self) -> str:
        return f"{WHY}{self.run_id}"

    def _give_back(self, name: str, in_s: float = 0.0) -> None:
        def given_back(record: NodeAdmission) -> Mapping[str, Ask | None] | None:
            if not ours(record.spec.hold, self.cluster.me):
                return None
            now = self.now()
            ending = Ask(self.cluster.me, self._why, rfc3339_s(now), rfc3339_s(now + timedelta(seconds=in_s)))
            return {"hold": ending if in_s else None}

        self.cluster.change(name, given_back)

    def _await_out(self, names: Sequence[str]) -> dict[str, str]:
        """Wait until the admitter lets no work come; the nodes of which it does not, and why."""
        end_s = self.now_s() + _TAKE_OVER_S
        open_ = set(names)
        while open_:
            records = self.cluster.records()
            open_ = {name for name in open_ if name not in records or records[name].status.state is not State.HELD}
            if not open_:
                break
            if self.now_s() >= end_s:
                why = (
                    f"the admitter has not kept new work away within {_TAKE_OVER_S:.0f} s of the hold; look at "
                    "`journalctl -u muster-admitter` on the API servers' hosts"
                )
                return dict.fromkeys(open_, why)
            self.sleep(_POLL_S)
        return {}


def ours(ask: Ask | None, me: str, why: str = WHY) -> bool:
    """Whether a hold is a fabric run's of this user; of the run of this `why` alone where it is given."""
    return ask is not None and ask.who == me and ask.why.startswith(why)


def work(pods: Sequence[Pod]) -> str:
    """The work of a node in words, "" where it has none: a pod with GPUs that has not ended, as the admitter has it."""
    names = [f"{pod.namespace}/{pod.name}" for pod in pods if pod.gpus and not pod.ended]
    return f"it has work: {listed(names)}" if names else ""


def refusal(record: NodeAdmission | None, me: str, now: datetime) -> str:
    """Why a node is not taken from the ledger's side; "" where it may be. Pure."""
    if record is None:
        return f"the cluster has no {KIND} of this name; run site.yml"
    spec, status = record.spec, record.status
    for verb in ("hold", "quarantine", "repair"):
        ask: Ask | None = active(getattr(spec, verb), now)
        if ask is not None and not ours(ask, me):
            return f"{ask.who} asked for its {verb} at {ask.since} ({ask.why})"
    retest = active(spec.retest, now)
    if retest is not None and retest.since != status.retested:
        return f"{retest.who} asked for its test ({retest.why}), which comes first"
    if status.request is not None or status.state is State.TESTING:
        return "it is being tested"
    # One whose hold has just ended is held still.
    if status.state not in (*_WORKING, State.HELD):
        code = f" ({status.code})" if status.code else ""
        return f"it is {status.state}{code}: its own burn-in comes first"
    return ""
