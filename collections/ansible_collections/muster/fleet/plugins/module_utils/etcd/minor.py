"""An etcd cluster's minor, and its own downgrade. Standard library only: this runs on the hosts.

https://etcd.io/docs/v3.7/downgrades/downgrade_3_7/; what members answer: StatusResponse in
api/etcdserverpb/rpc.proto of etcd 3.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.etcd.api import Api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

_INTERVAL_S = 0.2


class Action(StrEnum):
    """What is done to the cluster before its members change."""

    NONE = "none"
    ENABLE = "enable"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Members:
    """An Api for each member by name."""

    apis: Mapping[str, Api]

    def first(self) -> Api:
        """The first member that answers. Raises FleetError when none does."""
        last = FleetError("no member was named")
        for api in self.apis.values():
            try:
                api("/version")
            except FleetError as error:
                last = error
            else:
                return api
        raise last


def minor_of(version: str) -> tuple[int, int]:
    """MAJOR and MINOR as numbers. Raises FleetError for what is no version."""
    try:
        major, minor, *_ = (int(part) for part in version.split("."))
    except ValueError:
        raise FleetError(f"{version!r} is no version of etcd; give one such as 3.6") from None
    return major, minor


def decide(cluster: str, downgrade_to: str, wanted: str) -> Action:
    """From the cluster's version, the target of a downgrade that is under way ("" for none), and the wanted minor."""
    if downgrade_to and minor_of(downgrade_to) < minor_of(wanted):
        return Action.CANCEL
    return Action.ENABLE if minor_of(cluster) > minor_of(wanted) and not downgrade_to else Action.NONE


def prepare(
    members: Members,
    wanted: str,
    timeout_s: float,
    *,
    act: bool = True,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Action:
    """Have the cluster accept members of the wanted minor. Raises FleetError.

    A member that is alone and does not answer is no cluster that could be asked: its own start tells, by what is on its
    disk.
    """
    try:
        api = members.first()
    except FleetError:
        if len(members.apis) == 1:
            return Action.NONE
        raise
    info: Mapping[str, Any] = api("/v3/maintenance/status", {}).get("downgradeInfo") or {}
    target = str(info.get("targetVersion", "")) if info.get("enabled") else ""
    action = decide(str(api("/version")["etcdcluster"]), target, wanted)
    if not act:
        return action
    if action is not Action.NONE:
        body = {"action": action.name} | ({"version": wanted} if action is Action.ENABLE else {})
        api("/v3/maintenance/downgrade", body)
    if action is Action.ENABLE or (target and action is Action.NONE):
        _wait(members, wanted, timeout_s, clock, pause)
    return action


def _wait(
    members: Members, wanted: str, timeout_s: float, clock: Callable[[], float], pause: Callable[[float], None]
) -> None:
    """Until no member keeps its data in a newer format. A member that does not answer is looked at by its restart."""
    deadline = clock() + timeout_s
    while late := _late(members, wanted):
        if clock() >= deadline:
            raise FleetError(
                f"{', '.join(late)} did not bring the data to the format of {wanted} in {timeout_s:g} s; "
                "see `journalctl -u etcd` there and run again: no member was changed"
            )
        pause(_INTERVAL_S)


def _late(members: Members, wanted: str) -> list[str]:
    late = []
    for name, api in members.apis.items():
        try:
            storage = str(api("/v3/maintenance/status", {}).get("storageVersion", ""))
        except FleetError:
            continue
        if storage and minor_of(storage) > minor_of(wanted):
            late.append(name)
    return late
