"""Teams and their people, as the inventory's `fleet_teams` and `fleet_users` say it. Strict, and pure."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import TEAMS, USERS, Fleet, Mistake, read_fleet

from gpu_burnin.api.levels import LEVEL_NAMES

GROUP = "group:"
# A team's name is its Namespace's, and the value of labels and taints.
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# A user's name is the common name of a certificate, and a part of file names.
_USER = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?")
_RESERVED_TEAMS = ("default",)
_RESERVED_TEAM_PREFIXES = ("kube-", "muster-")
# Identities of the fleet itself, by the common names of the kubernetes CA (roles/pki).
_RESERVED_USERS = ("admin", "break-glass", "health", "front-proxy-client")
_RESERVED_USER_PREFIXES = ("kube-", "muster:", "system:")
# Kueue keeps weights as quantities; a thousandth is the finest that people need.
_WEIGHT_STEPS = 1000


@dataclass(frozen=True)
class Team:
    """One team: GPUs by model, members as names of users and `group:NAME`, and how its queue behaves.

    `weight` is its part of what is borrowed; who has 0 borrows last and gives back first. `dedicated`: it has nodes of
    its own. `level` and `gang_test` are what its jobs' nodes have to have passed.
    """

    name: str
    gpus: Mapping[str, int]
    weight: float = 1
    members: tuple[str, ...] = ()
    borrow: bool = True
    dedicated: bool = False
    level: str = "standard"
    gang_test: bool = False


_KEYS = tuple(one.name for one in fields(Team) if one.name != "name")


def read_teams(document: object, users: object, fleet: Fleet) -> tuple[list[Team], list[Mistake]]:
    """The teams, in the inventory's order, and every mistake; teams with a mistake of their own are left out."""
    people, mistakes = read_users(users)
    if not isinstance(document, Mapping):
        return [], [*mistakes, Mistake(f"{TEAMS} is {document!r}", "give a dictionary of teams by name")]
    teams = []
    for name, given in document.items():
        found = list(_team_mistakes(str(name), given, people, fleet))
        mistakes += found
        if not found:
            teams.append(_team(str(name), given, fleet))
    return teams, [*mistakes, *_sums(teams, fleet)]


def read_users(document: object) -> tuple[list[str], list[Mistake]]:
    """The names of users that get certificates, and what is wrong with them."""
    if not isinstance(document, Sequence) or isinstance(document, str):
        return [], [Mistake(f"{USERS} is {document!r}", "give a list of names", USERS)]
    users = [str(name) for name in document]
    return users, [mistake for name, count in Counter(users).items() for mistake in _user_mistakes(name, count)]


def teams_and_fleet(
    document: object, users: object, expects: Mapping[str, Any], places: Mapping[str, Any]
) -> tuple[list[Team], Fleet]:
    """The teams and what the fleet has for them, where all is right. Raises FleetError with every mistake."""
    fleet, mistakes = read_fleet(expects, places) if document else (Fleet({}, {}), [])
    teams, more = read_teams(document, users, fleet)
    if wrong := [*mistakes, *more]:
        raise FleetError("\n".join(one.sentence() for one in wrong))
    return teams, fleet


def admitter_jobs(document: Mapping[str, Any], model: str) -> dict[str, Any]:
    """What the admitter needs to know of teams that the inventory check has let through: its configuration's `jobs`.

    `model` is that of the GPUs of teams that give a number of them. Raises FleetError for teams that cannot be read.
    """
    try:
        one_model = Fleet({model: 0}, {})
        teams = [_team(str(name), given, one_model) for name, given in document.items()]
    except (AttributeError, KeyError, TypeError) as error:
        raise FleetError(
            f"{TEAMS} cannot be read ({error}); run site.yml --tags preflight, which names what is wrong"
        ) from error
    return {
        "queues": {team.name: {"level": team.level, "gang_test": team.gang_test} for team in teams},
        "dedicated": {team.name: dict(team.gpus) for team in teams if team.dedicated},
    }


def _user_mistakes(name: str, count: int) -> Iterator[Mistake]:
    if name in _RESERVED_USERS or name.startswith(_RESERVED_USER_PREFIXES):
        yield Mistake(f"{USERS} names {name}, which is the fleet's own", "give the person another name", USERS)
    elif not _USER.fullmatch(name):
        allowed = "use a-z, digits, -, _, . and @, at most 63 characters"
        yield Mistake(f"{USERS} names {name!r}, which cannot be the name of a user", allowed, USERS)
    if count > 1:
        yield Mistake(f"{USERS} names {name} {count} times", "name each user once", USERS)


def _team_mistakes(name: str, given: Any, users: Collection[str], fleet: Fleet) -> Iterator[Mistake]:
    key = f"{TEAMS}.{name}"
    if name in _RESERVED_TEAMS or name.startswith(_RESERVED_TEAM_PREFIXES):
        yield Mistake(f"{key}: the namespace {name} is not a team's", "give the team another name")
    elif not _DNS_LABEL.fullmatch(name):
        yield Mistake(
            f"{TEAMS} names {name!r}, which cannot be the name of a namespace", "use at most 63 of a-z, digits and -"
        )
    if not isinstance(given, Mapping):
        yield Mistake(f"{key} is {given!r}", "give a dictionary such as {gpus: 64, members: [alice]}")
        return
    for unknown in (str(one) for one in given if one not in _KEYS):
        near = difflib.get_close_matches(unknown, _KEYS, n=1)
        fix = f"did you mean {near[0]}?" if near else f"choose from {', '.join(_KEYS)}"
        yield Mistake(f"{key} has {unknown}, which no team has", fix)
    yield from _quota_mistakes(key, given, fleet)
    yield from _setting_mistakes(key, given)
    yield from _member_mistakes(key, given.get("members") or (), users)


def _quota_mistakes(key: str, given: Mapping[str, Any], fleet: Fleet) -> Iterator[Mistake]:
    if "gpus" not in given:
        yield Mistake(f"{key} has no gpus", "give a number, or GPUs by model")
        return
    quotas = given["gpus"]
    if not fleet.gpus:
        return  # What the GPU nodes lack is a mistake of its own.
    if not isinstance(quotas, Mapping) and len(fleet.gpus) > 1:
        shape = ", ".join(f"{model}: 8" for model in fleet.gpus)
        yield Mistake(
            f"{key}.gpus is {quotas!r}, and the GPU nodes have {len(fleet.gpus)} models",
            f"give {{{shape}}} or a part of it",
        )
        return
    numbers = _by_model(quotas, fleet)
    wrong = False
    for model, count in numbers.items():
        where = f"{key}.gpus.{model}" if isinstance(quotas, Mapping) else f"{key}.gpus"
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            wrong = True
            yield Mistake(f"{where} is {count!r}", "give a whole number of GPUs, 0 or more")
        elif model not in fleet.gpus:
            yield Mistake(f"{key}.gpus names {model}, which no GPU node has", f"choose from {fleet.models}")
        elif given.get("dedicated") is True:
            yield from _whole_nodes(where, count, fleet.sizes[model])
    if not wrong and not sum(numbers.values()) and (given.get("dedicated") is True or given.get("borrow") is False):
        yield Mistake(f"{key} has no GPUs and borrows none", "give it GPUs, or leave it out")


def _whole_nodes(where: str, count: int, sizes: frozenset[int]) -> Iterator[Mistake]:
    """Dedicated are whole nodes: what is left of one would be nobody's."""
    if len(sizes) == 1 and count % (size := next(iter(sizes))):
        below = count // size * size
        yield Mistake(
            f"{where} is {count} and dedicated, and nodes of that model have {size} GPUs each",
            f"give whole nodes, such as {below or size} or {below + size}"
            if below
            else f"give whole nodes, such as {size}",
        )


def _setting_mistakes(key: str, given: Mapping[str, Any]) -> Iterator[Mistake]:
    for name in ("borrow", "dedicated", "gang_test"):
        if not isinstance(given.get(name, False), bool):
            yield Mistake(f"{key}.{name} is {given[name]!r}", "give true or false")
    if (level := given.get("level", Team.level)) not in LEVEL_NAMES:
        yield Mistake(
            f"{key}.level is {level!r}, which is no level of burn-in", f"choose from {', '.join(LEVEL_NAMES)}"
        )
    weight = given.get("weight", Team.weight)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
        yield Mistake(
            f"{key}.weight is {weight!r}", "give a number, 0 or more; a team of weight 2 gets twice that of one of 1"
        )
    elif weight * _WEIGHT_STEPS != round(weight * _WEIGHT_STEPS):
        yield Mistake(f"{key}.weight is {weight!r}", "give at most three digits behind the point")


def _member_mistakes(key: str, members: Any, users: Collection[str]) -> Iterator[Mistake]:
    if not isinstance(members, Sequence) or isinstance(members, str):
        yield Mistake(f"{key}.members is {members!r}", f"give a list of names of {USERS} and of {GROUP}NAME")
        return
    for member in map(str, members):
        group = member.removeprefix(GROUP)
        if not member.startswith(GROUP):
            if member not in users:
                near = difflib.get_close_matches(member, users, n=1)
                fix = f"did you mean {near[0]}?" if near else f"add it there, or write {GROUP}{member} for a group"
                yield Mistake(f"{key}.members names {member}, which {USERS} does not have", fix)
        elif not group or group.startswith(("system:", "muster:")):
            fix = "name a group that your identity provider gives"
            yield Mistake(f"{key}.members names {member}, which is no group of people", fix)


def _team(name: str, given: Mapping[str, Any], fleet: Fleet) -> Team:
    members = tuple(dict.fromkeys(str(member) for member in given.get("members") or ()))
    rest = {key: given[key] for key in _KEYS if key in given and key not in ("gpus", "members")}
    return Team(name, gpus=_by_model(given["gpus"], fleet), members=members, **rest)


def _by_model(quotas: Any, fleet: Fleet) -> dict[str, Any]:
    """GPUs by model; a number is of the fleet's only one."""
    if isinstance(quotas, Mapping):
        return {str(model): count for model, count in quotas.items()}
    return dict.fromkeys(fleet.gpus, quotas)


def _sums(teams: Sequence[Team], fleet: Fleet) -> Iterator[Mistake]:
    for model, there in fleet.gpus.items():
        given = {team.name: count for team in teams if (count := team.gpus.get(model, 0))}
        if (total := sum(given.values())) > there:
            parts = " + ".join(f"{count:,} ({name})" for name, count in given.items())
            yield Mistake(
                f"{TEAMS} gives {total:,} GPUs of {model}, {parts}, and the GPU nodes have {there:,}",
                f"take {total - there:,} away",
            )
