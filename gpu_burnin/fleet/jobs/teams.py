"""Teams, what each has and what of it waits, as `muster teams` shows them and prints them for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_burnin.api.waits import Wait
from gpu_burnin.system.clock import NEVER

SCHEMA = "muster-teams/v1"


@dataclass(frozen=True)
class Share:
    """GPUs of one model, of a team. `reserved` are held for jobs whose nodes are being checked; None: may not be read.

    `lent` is its part of what others borrow, by what it leaves unused: Kueue lends from all of them together. What is
    in no team's quota is lent first.
    """

    model: str
    dedicated: bool
    quota: int | None
    used: int
    reserved: int = 0
    borrowed: int | None = 0
    lent: int | None = 0


@dataclass(frozen=True)
class Dedicated:
    """Nodes that are a team's alone, of one model: those that the ledger has given it, and the GPUs wanted."""

    model: str
    nodes: int
    gpus: int
    gpus_wanted: int | None

    def shortage(self, team: str) -> str:
        """What the team lacks, in a sentence; "" where it has all."""
        return shortage_of(team, self.model, self.gpus, self.gpus_wanted or 0)


def shortage_of(team: str, model: str, gpus: int, wanted: int) -> str:
    """What a team lacks of the GPUs of one model that it should have for itself; "" where it has all."""
    if gpus >= wanted:
        return ""
    return (
        f"{team} lacks {wanted - gpus:,} of {wanted:,} GPUs of {model} on nodes of its own: the admitter gives it "
        "nodes that are idle and ready; free or add some, or let the team want less (fleet_teams)"
    )


@dataclass(frozen=True)
class Waiting:
    """A job that has not begun. `wait` is why."""

    job: str
    gpus: int
    since: datetime
    wait: Wait


@dataclass(frozen=True)
class Team:
    """One team. `jobs`, `gpus` and `first` are of what waits, in the order of the queue; None: may not be read.

    `checking` jobs have their quota and wait for the proof of their nodes. `problem`: why its queue takes no jobs.
    """

    name: str
    shares: tuple[Share, ...]
    jobs: int | None
    gpus: int | None
    oldest: datetime | None
    first: Waiting | None
    running: int | None = None
    checking: int | None = None
    dedicated: tuple[Dedicated, ...] = ()
    weight: str = "1"
    problem: str = ""


@dataclass(frozen=True)
class Free:
    """Verified nodes of one model that take work, how many of them no job has, and GPUs that no job has."""

    model: str
    nodes: int
    nodes_free: int
    gpus: int
    gpus_free: int


@dataclass(frozen=True)
class Rest:
    """GPUs of one model that are in no team's quota, and how many of them teams have borrowed."""

    model: str
    quota: int
    lent: int


@dataclass(frozen=True)
class Teams:
    """All that whoever asks may see. `kueue`: whether there is a Kueue at all; `unread` says what may not be read."""

    teams: tuple[Team, ...]
    free: tuple[Free, ...] | None
    at: datetime
    server: str = ""
    kueue: bool = True
    unread: tuple[str, ...] = ()
    rest: tuple[Rest, ...] = ()

    @property
    def sums(self) -> dict[str, int | None]:
        """Of all teams; None where a part of it may not be read."""
        shares = [share for team in self.teams for share in team.shares]
        return {
            "quota": _sum(share.quota for share in shares),
            "used": _sum(share.used for share in shares),
            "reserved": _sum(share.reserved for share in shares),
            "borrowed": _sum(share.borrowed for share in shares),
            "waiting_jobs": _sum(team.jobs for team in self.teams),
            "waiting_gpus": _sum(team.gpus for team in self.teams),
            "verified_nodes": None if self.free is None else sum(one.nodes for one in self.free),
            "verified_gpus": None if self.free is None else sum(one.gpus for one in self.free),
            "free_nodes": None if self.free is None else sum(one.nodes_free for one in self.free),
            "free_gpus": None if self.free is None else sum(one.gpus_free for one in self.free),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema": SCHEMA,
            "at": _time(self.at),
            "server": self.server,
            "kueue": self.kueue,
            "fleet": self.sums,
            "teams": [_team_json(team) for team in self.teams],
            "of_no_team": [vars_of(one) for one in self.rest],
            "verified": None if self.free is None else [vars_of(one) for one in self.free],
            "not_readable": [*self.unread],
        }


def _sum(values: Iterable[int | None]) -> int | None:
    known = [*values]
    return None if any(value is None for value in known) else sum(value or 0 for value in known)


def _time(at: datetime | None) -> str | None:
    return None if at is None or at == NEVER else at.isoformat(timespec="seconds").replace("+00:00", "Z")


def vars_of(one: Free | Share | Dedicated | Rest) -> dict[str, Any]:
    """A dataclass of plain values."""
    return dict(vars(one))


def _team_json(team: Team) -> dict[str, Any]:
    first = team.first
    return {
        "name": team.name,
        "weight": team.weight,
        "problem": team.problem,
        "shares": [vars_of(share) for share in team.shares],
        "dedicated": [{**vars_of(one), "shortage": one.shortage(team.name)} for one in team.dedicated],
        "running_jobs": team.running,
        "checking_jobs": team.checking,
        "waiting": {
            "jobs": team.jobs,
            "gpus": team.gpus,
            "oldest_since": _time(team.oldest),
            "first": {
                "job": first.job,
                "gpus": first.gpus,
                "since": _time(first.since),
                "why": str(first.wait.why),
                "sentence": first.wait.sentence,
                "never": first.wait.never,
                "nodes": [*first.wait.nodes],
            }
            if first is not None
            else None,
        },
    }
