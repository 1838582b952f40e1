"""The choice of dedicated nodes: who gets one, who gives one back, and what is short. Pure.

A node moves only while nothing stands in its way: idle, ready, without test, ask or maintenance window (`free`). What
a team has it keeps, unless it has more than is wanted. New nodes come from the places where it has most already, then
from those with most free nodes, so that its work finds nodes that are near each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.admission.teams.places import FleetNode, emptiest_first, fullest_first

# GPUs by team and model.
Wanted = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Move:
    """A node gets another team; "" for none any more."""

    name: str
    team: str


@dataclass(frozen=True)
class Share:
    """What one team has of one model now, would have once all moves are made, and wants.

    `free` are nodes of the model that nobody has then and that may move, `held` those that may not, whoever has them.
    """

    team: str
    model: str
    wanted: int
    gpus: int
    planned: int
    free: int
    held: int

    @property
    def shortage(self) -> str:
        """What no move can bring, in words; "" where nothing is short."""
        missing = self.wanted - self.planned
        if missing <= 0:
            return ""
        found = f"{self.free} idle nodes have more GPUs each" if self.free else "no node is idle and ready"
        what = f"{missing} of {self.wanted} GPUs of {self.model}"
        return f"{self.team} lacks {what}: {found}, {self.held} of the model are busy, shut or another team's"


@dataclass(frozen=True)
class Choice:
    """The next moves, how many more wait for these, and how each team stands."""

    moves: tuple[Move, ...] = ()
    waiting: int = 0
    shares: tuple[Share, ...] = ()


def choose(nodes: Iterable[FleetNode], wanted: Wanted, most: int) -> Choice:
    """What should change, at most `most` moves; chosen again once they are made, it comes to an end.

    No move gives a team more GPUs of a model than it wants.
    """
    known = sorted(nodes, key=lambda node: node.name)
    team_of = {node.name: node.team for node in known}
    for node in _given_back(known, wanted):
        team_of[node.name] = ""
    shares = []
    for team, model in sorted((team, model) for team, models in wanted.items() for model in models):
        of_model = [node for node in known if node.model == model]
        own = [node for node in of_model if team_of[node.name] == team]
        pool = [node for node in of_model if node.free and not team_of[node.name]]
        target, planned = wanted[team][model], _gpus(own)
        taken = list(fullest_first(own, pool, target - planned))
        team_of |= {node.name: team for node in taken}
        held = sum(not node.free and team_of[node.name] != team for node in of_model)
        now = _gpus(node for node in of_model if node.team == team)
        shares.append(Share(team, model, target, now, planned + _gpus(taken), len(pool) - len(taken), held))
    moves = [Move(node.name, team_of[node.name]) for node in known if team_of[node.name] != node.team]
    return Choice(tuple(moves[:most]), len(moves[most:]), tuple(shares))


def _given_back(known: Sequence[FleetNode], wanted: Wanted) -> Iterable[FleetNode]:
    """Free nodes of teams that have more than is wanted, and of teams that are gone."""
    groups: dict[tuple[str, str], list[FleetNode]] = {}
    for node in known:
        if node.team:
            groups.setdefault((node.team, node.model), []).append(node)
    for (team, model), group in groups.items():
        target = wanted.get(team, {}).get(model, 0)
        free = [node for node in group if node.free]
        if target <= 0:
            yield from free
        elif (left := _gpus(group) - target) > 0:
            yield from emptiest_first(group, free, left)


def _gpus(nodes: Iterable[FleetNode]) -> int:
    return sum(node.gpus for node in nodes)
