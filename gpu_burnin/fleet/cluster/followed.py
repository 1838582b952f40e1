"""What has come of an ask, as the ledger and the Node show it; and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide import gated
from gpu_burnin.admission.decide.finding import ASKED_CODES
from gpu_burnin.admission.decide.nodes import effects, labelled_ready
from gpu_burnin.admission.decide.outlook import TAKEN_OUT
from gpu_burnin.admission.decide.retest import why_asked
from gpu_burnin.admission.view import Node
from gpu_burnin.admission.waiting import read
from gpu_burnin.api.names import NO_SCHEDULE, Names
from gpu_burnin.api.record import Ask, Next, NodeAdmission, State
from gpu_burnin.fleet.cluster.asks import Asked, Verb

_POLL_S = 0.5
_OUT = (State.HELD, State.QUARANTINED, State.REPAIRING)


def wait_for(
    api: KubeApi,
    names: Names,
    asked: Sequence[Asked],
    verb: Verb,
    ask: Ask,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Asked]:
    """Each ask as soon as it is done, and those that are not after `wait_s` with what is known of them.

    Raises ApiError and RecordError.
    """
    began_s = clock()
    open_ = {one.node: one for one in asked}
    while open_:
        records, nodes = read(api, names, open_)
        late = clock() - began_s >= wait_s
        for name, one in list(open_.items()):
            record = records.get(name)
            told = followed(record, nodes.get(name), verb, ask, names) if record is not None else ""
            if told:
                after = f"done after {clock() - began_s:.0f} s: " if one.changed else ""
                yield replace(one, done=True, followed=f"{after}{told}")
            elif late:
                yield replace(one, followed=f"not done after {wait_s:.0f} s{_why(record)}; look at `muster why {name}`")
            else:
                continue
            del open_[name]
        if open_:
            sleep(_POLL_S)


def followed(record: NodeAdmission, node: Node | None, verb: Verb, ask: Ask, names: Names) -> str:
    """What has come of an ask, "" while nothing has. Pure."""
    status = record.status
    if verb is Verb.RETEST:
        return _test(record, ask)
    if verb is Verb.RELEASE:
        if status.code in ASKED_CODES:
            return ""
        if node is not None and status.state is State.READY and not _takes_work(node, names):
            return ""  # the ledger is written first
        return f"it is {_stands(record)}"
    if status.state not in _OUT or (node is not None and _takes_work(node, names)):
        return ""
    if verb is Verb.HOLD or status.state is State.REPAIRING:
        return f"it takes no new work; it is {_stands(record)}"
    if node is not None and NO_SCHEDULE not in effects(node, names.quarantine):
        return ""
    leave = status.leave
    asked = f"its work is asked to leave, at the latest by {leave.deadline}" if leave else "no pod is asked to leave"
    return f"it takes no new work; {asked}; it is {_stands(record)}"


def _takes_work(node: Node, names: Names) -> bool:
    return labelled_ready(node) or not gated(node, names)


def _test(record: NodeAdmission, ask: Ask) -> str:
    status = record.status
    standing = record.spec.retest or ask
    if status.retested == standing.since:
        return f"it was tested; it is {_stands(record)}"
    if status.request is not None and status.request.why == why_asked(standing):
        return f"the test has begun (level {status.request.level})"
    # The admitter has looked: it says what stands in the way.
    return f"it waits: {_coming(status.next)}" if status.next is not None and status.next.what == "tested" else ""


def _stands(record: NodeAdmission) -> str:
    """State, reason and what comes next, where that is not the usual."""
    status = record.status
    message = status.message.removeprefix(f"{record.name}: ")
    why = ": ".join(part for part in (status.code, message) if part)
    coming = status.next
    waits = coming is not None and (status.state is not State.READY or coming.what == TAKEN_OUT)
    stands = f"{status.state} ({why})" if why else str(status.state)
    return stands + (f"; next: {_coming(coming)}" if waits else "")


def _coming(coming: Next | None) -> str:
    if coming is None:
        return ""
    at = f" (at {coming.at})" if coming.at else ""
    return f"{coming.what}: {coming.why}{at}"


def _why(record: NodeAdmission | None) -> str:
    return f"; it is {_stands(record)}" if record is not None else "; its NodeAdmission is gone"
