"""Dedicated nodes of teams: what the whole fleet has is looked at once in a while, and idle nodes are chosen to move.

The move itself is the node's own decision (decide/team.py), written to its record first. So whoever leads next goes on
from the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_burnin.admission.decide.maintenance import BEGUN
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Nodes, Pods, Records, Summary
from gpu_burnin.admission.service.journal import EventRecorder, Journal, lease_reference
from gpu_burnin.admission.teams.choose import Share, Wanted, choose
from gpu_burnin.admission.teams.places import FleetNode
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.api.record import Place, State

# A node that was chosen and has not moved by then: something stands in its way that is seen at the node alone. Others
# are chosen meanwhile. Long enough for a leader that has its whole fleet to look at first.
MOVES_WITHIN = timedelta(minutes=2)
AGAIN = timedelta(minutes=10)


@dataclass
class Dedicated:
    """Chooses nodes into `moves`: the name of a node, and the team that it should be dedicated to, "" for none."""

    wanted: Wanted
    records: Records
    nodes: Nodes
    pods: Pods
    budgets: Budgets
    moves: dict[str, str]
    enqueue: Callable[[str], None]
    paused: Callable[[], str]
    journal: Journal
    recorder: EventRecorder
    shares: tuple[Share, ...] = ()
    _chosen_at: dict[str, datetime] = field(default_factory=dict)
    _stuck_until: dict[str, datetime] = field(default_factory=dict)
    _told: dict[tuple[str, str], int] = field(default_factory=dict)
    _braked: bool = False

    def choose(self, now: datetime) -> None:
        """Choose the nodes that move now; at most so many at once as the admitter may keep from work by itself."""
        known = self.records.all_summaries()
        self._stuck_until = {name: until for name, until in self._stuck_until.items() if until > now}
        chosen_at, self._chosen_at = self._chosen_at, {}
        for name, summary in known:
            if self.moves.get(name, summary.team) != summary.team and now - chosen_at[name] >= MOVES_WITHIN:
                self._stuck_until[name] = now + AGAIN
        self.moves.clear()
        if not (self.wanted or any(summary.team for _, summary in known)):
            self.shares = ()
            return
        if self.paused():
            return
        choice = choose((self._row(name, one, now) for name, one in known), self.wanted, self.budgets.room())
        self.shares = choice.shares
        self._tell(bool(choice.waiting and not choice.moves))
        self._chosen_at = {move.name: chosen_at.get(move.name, now) for move in choice.moves}
        for move in choice.moves:
            self.moves[move.name] = move.team
            self.enqueue(move.name)

    def _row(self, name: str, summary: Summary, now: datetime) -> FleetNode:
        asked = summary.under_test(now) or (summary.asked_until is not None and now < summary.asked_until)
        calm = summary.state is State.READY and summary.code != BEGUN and not asked
        free = calm and name in self.nodes and self.pods.idle(name) and name not in self._stuck_until
        rack, leaf = summary.place
        return FleetNode(name, summary.model, summary.gpus, Place(rack, leaf), summary.team, free)

    def _tell(self, braked: bool) -> None:
        """Each shortage once, and again when it is another; the end of each."""
        if braked and not self._braked:
            self._say("no node is dedicated to a team now: the share of nodes that are kept from work is reached")
        self._braked = braked
        short = {(share.team, share.model): share for share in self.shares if share.shortage}
        for key, share in short.items():
            if self._told.get(key) != (missing := share.wanted - share.planned):
                self._told[key] = missing
                self._say(f"{share.shortage}; free or add nodes of the model, or let the team want less (fleet_teams)")
        for team, model in self._told.keys() - short.keys():
            del self._told[team, model]
            self.journal.say(f"{team} has all GPUs of {model} that it should have, or wants none any more")

    def _say(self, message: str) -> None:
        self.journal.say(message)
        self.recorder.alarm(SYSTEM_NAMESPACE, lease_reference(), "MusterTeamShort", message)
