"""One thing that happened, whoever tells of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpu_burnin.hardware import load_xids

_XID = re.compile(r"\bS?Xid:?\s*(?:\([^)]*\):?\s*)?(\d{1,5})\b", re.IGNORECASE)


class Source(StrEnum):
    """Who tells of it. All before the agent are by the clock of the API servers and their hosts, or of kubelet."""

    ADMISSION = "admission"
    SCALER = "scaler"
    EVENT = "event"
    POD = "pod"
    JOB = "job"
    KUEUE = "kueue"
    AUDIT = "audit"
    AGENT = "agent"
    REPORT = "report"
    PLAY = "play"


class What(StrEnum):
    """What kind of thing it is: the rules for the first cause are made of these."""

    ENDED = "ended"  # a pod's end
    OUT_OF_MEMORY = "out of memory"  # the kernel killed a process at its limit
    PREEMPTED = "preempted"  # for a pod of a higher priority
    PRESSURE = "node pressure"  # evicted by kubelet for disk or memory
    DRAINED = "drained"  # evicted by the API, or asked to leave
    QUARANTINED = "quarantined"  # the admitter took the node out for a finding, which it names
    DOUBTED = "doubted"  # the admitter took the node out for want of something that it needs to know
    XID = "xid"  # an error of a GPU, by the driver
    AFTERMATH = "aftermath"  # an XID that also follows when a process on the GPU is killed
    FAULT = "fault"  # a burn-in or the agent found a fault
    LOST = "node lost"  # kubelet has stopped reporting
    BOOTED = "booted"  # the node has booted again
    REBOOT = "reboot"  # a play had the machine boot
    MAINTENANCE = "maintenance"  # a window of the cloud or the calendar
    PERSON = "person"  # a person did or asked for something
    PLAY = "play"  # a play changed something, or failed
    WAITS = "waits"  # a job has no nodes, or its pods do not run on them
    EVICTED = "evicted"  # Kueue took a job off its nodes, but for another one's sake
    REFUSED = "refused"  # a policy or a limit of the namespace refuses the pods
    IMAGE = "no image"  # kubelet cannot have the image
    UNPLACED = "not placed"  # the scheduler finds no node
    DEADLINE = "deadline"  # of the job
    EXITED = "exited"  # a program ended itself, with an exit code that says of no signal
    TOLD = "told"  # it explains nothing, but it happened


@dataclass(frozen=True)
class Entry:
    """`at` is the time by the source's own clock. `quiet`: shown to programs alone. `routine`: of such as come by the
    dozen whenever a kubelet starts; shown to people as one line."""

    at: datetime
    source: Source
    what: What
    message: str
    code: str = ""
    who: str = ""
    node: str = ""
    pod: str = ""
    quiet: bool = False
    routine: bool = False

    @property
    def sentence(self) -> str:
        """Code, message and who, as far as they are known."""
        code = f"{self.code}: " if self.code and self.code not in self.message else ""
        who = f" (by {self.who})" if self.who and self.who not in self.message else ""
        return f"{code}{self.message}{who}"


def kind_of_finding(code: str, message: str) -> What:
    """A finding of a run or of the agent: an XID where its code or its words say so."""
    if not code.startswith("XID") and not _XID.search(message):
        return What.FAULT
    numbers = [int(number) for number in _XID.findall(message)]
    table = load_xids()
    policies = [policy for number in numbers if (policy := table.policy(number, sxid=False))]
    return What.AFTERMATH if policies and all(policy.own_kill for policy in policies) else What.XID
