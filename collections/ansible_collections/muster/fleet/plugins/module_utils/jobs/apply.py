"""Having the teams' objects in the cluster: what differs is written, and what has gone is removed.

Whole objects are written, and not by server-side apply, which leaves what others have added to a queue.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.compare import (
    FINALIZER,
    FIXED,
    KINDS,
    NAMESPACES,
    WORK,
    Key,
    content,
    has_ended,
    in_words,
    is_ours,
    key_of,
    merged,
    path_of,
    same,
    shown,
    shown_like,
)
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import TEAMS
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import Object

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.api.jobs import GROUP
from gpu_burnin.api.names import MANAGED_BY, Names

GONE_WITHIN_S = 60.0
POLL_S = 0.5
_MOST_TRIES = 10
_FORBIDDEN = 403


@dataclass(frozen=True)
class Plan:
    """What differs: objects to write, each with what there is now (None: nothing), and objects to remove, in order.

    `release`: namespaces of teams that have left, which become nobody's, so that an admin may empty and remove them.
    """

    write: tuple[tuple[Object, Object | None], ...] = ()
    remove: tuple[Object, ...] = ()
    release: tuple[Object, ...] = ()
    # No team is left: what waits for Kueue to let it go is let go here, since Kueue may be gone already.
    is_last: bool = False
    team_label: str = ""

    @property
    def names(self) -> list[str]:
        """Kind, namespace and name of each object that is to be written."""
        return [shown(key_of(one)) for one in (*(wanted for wanted, _ in self.write), *self.release)]

    @property
    def removed(self) -> list[str]:
        """The same of those that are to be removed."""
        return [shown(key_of(found)) for found in self.remove]

    @property
    def before(self) -> dict[str, Any]:
        """The objects that differ, as they are: of each what is wanted to be otherwise."""
        there = {shown(key_of(wanted)): shown_like(wanted, found) for wanted, found in self.write}
        released = {shown(key_of(found)): {"metadata": {"labels": _labels(found)}} for found in self.release}
        return there | released | {shown(key_of(found)): content(found) for found in self.remove}

    @property
    def after(self) -> dict[str, Any]:
        """The objects that differ, as they are to be."""
        released = {
            shown(key_of(found)): {"metadata": {"labels": _without(found, self.team_label)}} for found in self.release
        }
        return {shown(key_of(wanted)): wanted for wanted, _ in self.write} | released


@dataclass(frozen=True)
class Applier:
    """The API as the provisioner; `clock` and `sleep` are time's."""

    api: KubeApi
    names: Names = field(default_factory=Names)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def plan(self, wanted: Sequence[Object], *, ahead: bool = False) -> Plan:
        """What differs. Only reads. Raises FleetError for what may not be done, ApiError.

        `ahead`: rights and Kueue may be what comes before, as in check mode; what cannot be read then is not there.
        """
        found = self._found(wanted, ahead=ahead)
        self._refuse(wanted, found)
        keys = {key_of(one) for one in wanted}
        gone = [one for key, one in found.items() if key not in keys and key[0] != "Namespace" and is_ours(one)]
        left = [one for key, one in found.items() if key not in keys and key[0] == "Namespace" and self._is_teams(one)]
        self._refuse_work([*gone, *left], wanted)
        order = list(KINDS)
        gone.sort(key=lambda one: (order.index(one["kind"]), key_of(one)))
        differ = [(one, there) for one in wanted if not same(there := found.get(key_of(one)), one)]
        return Plan(tuple(differ), tuple(gone), tuple(left), is_last=not wanted, team_label=self.names.team)

    def carry_out(self, plan: Plan) -> None:
        """Write, remove, and wait until what is removed has gone. Raises FleetError, ApiError."""
        for wanted, there in plan.write:
            self._write(wanted, there)
        for one in plan.remove:
            if not one["metadata"].get("deletionTimestamp"):
                try:
                    self.api.delete(path_of(key_of(one)), f"remove {shown(key_of(one))}")
                except NotFound:
                    continue
            if plan.is_last:
                self._let_go(key_of(one))
        self._wait_until_gone(plan.remove)
        for one in plan.release:
            self._release(key_of(one))

    def _found(self, wanted: Sequence[Object], *, ahead: bool) -> dict[Key, Object]:
        """All objects of the kinds. Raises FleetError where Kueue's are needed and not served, ApiError."""
        label = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
        found: dict[Key, Object] = {}
        for kind, path in {"Namespace": NAMESPACES, **KINDS}.items():
            # Of core kinds Muster's alone count; of Kueue's and of Namespaces also those that stand in the way.
            selectors = {} if kind == "Namespace" or GROUP in path else {"labelSelector": label}
            try:
                for one in self.api.items(path, f"list {path.rpartition('/')[2]}", **selectors):
                    item = {**one, "kind": kind}
                    found[key_of(item)] = item
            except ApiError as error:
                is_missing = isinstance(error, NotFound)
                if is_missing and wanted and not ahead:
                    raise FleetError(f"{error}; {TEAMS} needs Kueue, which site.yml installs before") from error
                if not is_missing and not (ahead and error.status == _FORBIDDEN):
                    raise
        return found

    def _refuse(self, wanted: Sequence[Object], found: Mapping[Key, Object]) -> None:
        """What stands in the way, and what nobody may change."""
        for one in wanted:
            key = key_of(one)
            there = found.get(key)
            if there is None:
                continue
            kind, _, name = key
            if not is_ours(there):
                raise FleetError(
                    f"{self.api.server}: {shown(key)} is there, and it is not Muster's; remove it, or give the team "
                    f"in {TEAMS} another name"
                )
            if there["metadata"].get("deletionTimestamp"):
                raise FleetError(f"{self.api.server}: {shown(key)} is being removed; run this again when it has gone")
            for part in FIXED.get(kind, ()):
                old, new = (there.get("spec") or {}).get(part), one["spec"].get(part)
                if (old or new) and old != new:
                    raise FleetError(
                        f"{self.api.server}: {kind} {name} has {part} {in_words(old)}, the inventory makes them "
                        f"{in_words(new)}, and Kueue lets nobody change them; let the teams' work end, run site.yml "
                        f"with {TEAMS}: {{}}, then with the teams again"
                    )

    def _refuse_work(self, gone: Sequence[Object], wanted: Sequence[Object]) -> None:
        """Teams that have left and still have work."""
        stay = {one["metadata"]["name"] for one in wanted if one["kind"] == "Namespace"}
        left = {one["metadata"]["name"] for one in gone if one["kind"] in ("ClusterQueue", "Namespace")}
        left |= {one["metadata"]["namespace"] for one in gone if "namespace" in one["metadata"]}
        busy = {team: work for team in sorted(left - stay) if (work := self._work(team))}
        if busy:
            said = " and ".join(f"{team} ({work})" for team, work in busy.items())
            raise FleetError(
                f"{self.api.server}: {TEAMS} has no {said} any more, and that work has not ended; let it end "
                f"or delete it (`muster teams` shows it), or put the team back into {TEAMS}"
            )

    def _work(self, namespace: str) -> str:
        counts: Counter[str] = Counter()
        for kind, (group, plural) in WORK.items():
            path = f"{group}/namespaces/{quote(namespace, safe='')}/{plural}"
            try:
                counts[kind] = sum(
                    not has_ended(one) for one in self.api.items(path, f"list the {plural} of {namespace}")
                )
            except NotFound:
                continue
        return ", ".join(f"{count:,} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items() if count)

    def _write(self, wanted: Object, there: Object | None) -> None:
        key = key_of(wanted)
        for _ in range(_MOST_TRIES):
            try:
                if there is None:
                    path = path_of(key).rpartition("/")[0]
                    answer = self.api.create(f"{path}?fieldManager=muster", wanted, f"create {shown(key)}")
                else:
                    path = f"{path_of(key)}?fieldManager=muster"
                    answer = self.api.replace(path, merged(there, wanted), f"write {shown(key)}")
            except Conflict as error:
                # Kueue has written its finalizer meanwhile.
                found = self.api.find(path_of(key), f"read {shown(key)}")
                if found is None or (
                    there and found["metadata"]["resourceVersion"] == there["metadata"]["resourceVersion"]
                ):
                    raise FleetError(f"{error}; correct what it names") from error
                if there is None and not is_ours(found):
                    raise FleetError(f"{error}; it is not Muster's: remove it") from error
                there = dict(found)
                continue
            if not same(answer, wanted):
                raise FleetError(
                    f"{self.api.server}: {shown(key)} was written, and the answer is not what was asked for"
                )
            return
        raise self._always_changing(key)

    def _always_changing(self, key: Key) -> FleetError:
        return FleetError(f"{self.api.server}: {shown(key)} changes all the time; see who writes it in the audit log")

    def _is_teams(self, namespace: Object) -> bool:
        return self.names.team in _labels(namespace) and not namespace["metadata"].get("deletionTimestamp")

    def _release(self, key: Key) -> None:
        """Take the team's label from a namespace. Raises FleetError."""

        def without(found: Object) -> dict[str, Any] | None:
            held = self.names.team in _labels(found)
            return {"labels": _without(found, self.names.team)} if held else None

        self._strip(key, "release", without)

    def _let_go(self, key: Key) -> None:
        """Take away the mark by which Kueue keeps an object: nothing of the teams is left that could use it.

        Raises FleetError.
        """

        def without(found: Object) -> dict[str, Any] | None:
            marks = found["metadata"].get("finalizers") or ()
            return {"finalizers": [one for one in marks if one != FINALIZER]} if FINALIZER in marks else None

        self._strip(key, "free", without)

    def _strip(self, key: Key, what: str, without: Callable[[Object], dict[str, Any] | None]) -> None:
        """Change the metadata of an object as `without` has it, until there is nothing to change."""
        for _ in range(_MOST_TRIES):
            found = self.api.find(path_of(key), f"read {shown(key)}")
            if found is None or (changed := without(found)) is None:
                return
            # Somebody was faster: it is looked at again.
            with contextlib.suppress(Conflict, NotFound):
                freed = {**found, "metadata": {**found["metadata"], **changed}}
                self.api.replace(path_of(key), freed, f"{what} {shown(key)}")
        raise self._always_changing(key)

    def _wait_until_gone(self, removed: Sequence[Object]) -> None:
        waiting = [key_of(one) for one in removed]
        deadline_s = self.clock() + GONE_WITHIN_S
        while waiting := [key for key in waiting if self._is_there(key)]:
            if self.clock() >= deadline_s:
                raise FleetError(
                    f"{self.api.server}: {', '.join(map(shown, waiting))} is still there after {GONE_WITHIN_S:.0f} s; "
                    "Kueue lets it go when nothing uses it: look at Kueue's log, then run this again"
                )
            self.sleep(POLL_S)

    def _is_there(self, key: Key) -> bool:
        return self.api.find(path_of(key), f"read {shown(key)}") is not None


def _labels(item: Mapping[str, Any]) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def _without(item: Mapping[str, Any], label: str) -> dict[str, str]:
    return {key: value for key, value in _labels(item).items() if key != label}
