"""Whether the power check may make synchronised waves: the site's word, asked for by one worker for the node.

A check's deadline runs while its worker works, and stands still while it waits in an exchange. The worker that looks
for the grant tells the supervisor for how long it has done so: that is no time of the check's either, neither of its
deadline nor of its budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.checks.together import Group
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.config import ALWAYS, GRANTED, NEVER
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.types import JSON

Tell = Callable[[Mapping[str, JSON]], None]

# Between two looks at the directory, and between two exchanges, by which the others hear that one still waits.
_LOOK_S, _TELL_S = 0.1, 1.0
_WAIT, _YES, _NO = "wait", "yes", "no"


@dataclass(frozen=True)
class Grant:
    """Whether waves may be made, and if not, why. `request` is what was asked, None where nothing had to be.

    `looked_s`: seconds for which this worker looked for the grant itself, beside those it waited in exchanges.
    """

    run: bool
    why: str | None
    directory: Path | None = None
    request: power_grant.Request | None = None
    looked_s: float = 0.0


def ask(
    group: Group,
    options: Mapping[str, JSON],
    waves_s: float,
    tell: Tell = lambda _: None,
) -> Grant:
    """The site's word on waves of `waves_s` seconds; all members call it and get the same answer.

    A plan that does not say may make none. Where waves have to be granted, the first member asks and waits; when it
    dies, the next one asks again, within the same time. `tell` is CheckContext.progress.
    """
    mode = options.get("power_waves", NEVER)
    place = options.get("wave_dir")
    directory = Path(str(place)) if place else None
    if mode == ALWAYS:
        return _announce(group, directory, waves_s)
    if mode != GRANTED or directory is None:
        return Grant(False, "nobody asked for them (--waves never, or power_waves: never in the configuration)")
    return _wait(group, directory, float(str(options.get("wave_wait_s", 0.0))), waves_s, tell)


def over(group: Group, grant: Grant) -> Grant:
    """Say that the waves are over. Nobody is kept from going on by a directory that cannot be written any more."""
    if grant.directory is None or grant.request is None or group.rank != 0:
        return grant
    try:
        return replace(grant, request=power_grant.move(grant.directory, grant.request, power_grant.State.OVER))
    except GpuBurninError as error:
        return replace(grant, why=str(error))


def _announce(group: Group, directory: Path | None, waves_s: float) -> Grant:
    """No grant is needed; an observer learns that waves are under way."""
    if directory is None:
        return Grant(True, None)
    said: JSON = None
    if group.rank == 0:
        try:
            said = _request_json(power_grant.ask(directory, 0.0, waves_s, power_grant.State.RUNNING))
        except GpuBurninError:
            said = None  # nobody has to be asked, so nobody has to be told
    answer = _first(group, said)
    return Grant(True, None, directory, _request(answer) if isinstance(answer, Mapping) else None)


def _wait(group: Group, directory: Path, wait_s: float, waves_s: float, tell: Tell) -> Grant:
    until_s = time.monotonic() + wait_s
    request: power_grant.Request | None = None
    looked_s = 0.0
    while True:
        said: JSON = None
        if group.rank == 0:
            began_s = time.monotonic()
            try:
                request = request or power_grant.ask(directory, wait_s, waves_s)
                said = _poll(directory, request, until_s)
            except GpuBurninError as error:
                said = {"answer": _NO, "why": str(error)}
            waited_s = time.monotonic() - began_s
            looked_s += waited_s
            tell({"phase": "waiting for the grant of power waves", "waited_s": waited_s})
        answer = _first(group, said)
        if not isinstance(answer, Mapping) or answer.get("answer") == _WAIT:
            continue
        if answer["answer"] == _NO:
            return Grant(False, str(answer["why"]), looked_s=looked_s)
        return Grant(True, None, directory, _request(answer), looked_s)


def _poll(directory: Path, request: power_grant.Request, until_s: float) -> JSON:
    """Look for the grant for a while: yes, no when the time is over, else wait."""
    tell_s = min(until_s, time.monotonic() + _TELL_S)
    while not power_grant.granted(directory, request):
        left_s = tell_s - time.monotonic()
        if left_s <= 0:
            break
        time.sleep(min(_LOOK_S, left_s))
    else:
        return {"answer": _YES, **_request_json(power_grant.move(directory, request, power_grant.State.RUNNING))}
    if time.monotonic() < until_s:
        return {"answer": _WAIT}
    power_grant.move(directory, request, power_grant.State.GIVEN_UP)
    return {"answer": _NO, "why": f"no grant for power waves came within {request.wait_s:g} s"}


def _first(group: Group, said: JSON) -> JSON:
    """What the first of those that are left has said."""
    answers = group.gather(said)
    return answers[group.members[0]]


def _request_json(request: power_grant.Request) -> dict[str, JSON]:
    return {"request": to_json(request)}


def _request(answer: Mapping[str, JSON]) -> power_grant.Request:
    fields = answer["request"]
    assert isinstance(fields, Mapping)
    return from_json(power_grant.Request, fields)
