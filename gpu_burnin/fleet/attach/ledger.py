"""The ledger while machines are approved: all of it is much (6 KiB a node), so it is read seldom and believed briefly.

Another command may approve at the same time, and what was sent may have been written though its answer was lost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from gpu_burnin.admission.client import KubeApi, admissions_path
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, parse

# How long all of it is believed once it was read.
_FRESH_S = 30.0


def read_ledger(api: KubeApi, names: Names, **selectors: str) -> dict[str, NodeAdmission]:
    """The ledger by node. Raises ApiError."""
    entries = map(parse, api.items(admissions_path(names), "list the NodeAdmissions", **selectors))
    return {entry.name: entry for entry in entries}


def doubles_of(ledger: Mapping[str, NodeAdmission], nodes: Collection[str]) -> list[str]:
    """Which of these nodes have the key or the machine id of another node, a sentence for all that share one. Pure."""
    keys, machines = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, entry in sorted(ledger.items()):
        keys[entry.spec.identity.host_key].append(name)
        machines[entry.spec.identity.machine_id].append(name)
    again = "`muster attach forget` it, and approve it with --again; until then both count"
    kinds = (
        ("key", f"remove the identity folder of the one that is a copy, {again}", keys),
        ("machine id", f"give the one that is a copy another /etc/machine-id, {again}", machines),
    )
    return [
        f"{' and '.join(same)}: they have the same {what}, since they were approved at the same time; {fix}"
        for what, fix, shared in kinds
        for value, same in shared.items()
        if value and len(same) > 1 and any(name in nodes for name in same)
    ]


class Ledger:
    """The entries by node for a command that approves many. `api` is the provisioner's, `clock` is monotonic."""

    def __init__(self, api: Callable[[], KubeApi], names: Names, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._names, self._clock = api, names, clock
        self._entries: dict[str, NodeAdmission] = {}
        self._read_s: float | None = None
        self._sent = set[str]()
        self._unsure = set[str]()

    def current(self, node: str) -> Mapping[str, NodeAdmission]:
        """This node's entry as it is now, and those of all others as they were a short while ago. Raises ApiError."""
        if self._read_s is None or self._clock() - self._read_s > _FRESH_S:
            self._entries = read_ledger(self._api(), self._names)
            self._read_s = self._clock()
            self._unsure.clear()
            return self._entries
        for name in sorted({node, *self._unsure}):
            found = read_ledger(self._api(), self._names, fieldSelector=f"metadata.name={name}")
            self._entries.pop(name, None)
            self._entries |= found
            self._unsure.discard(name)
        return self._entries

    def write(self, entry: NodeAdmission, send: Callable[[], object]) -> None:
        """`send` an entry. Raises what that raises: the entry may then be there or not, and is read before the next."""
        self._sent.add(entry.name)
        self._unsure.add(entry.name)
        send()
        self._unsure.discard(entry.name)
        self._entries[entry.name] = entry

    def doubles(self) -> list[str]:
        """Which nodes that were written here are now the same machine as another one, a sentence each. Raises ApiError.

        Of two commands at the same time the one that ends last finds what both let in.
        """
        return doubles_of(read_ledger(self._api(), self._names), self._sent) if self._sent else []
