"""Runs in each pod of a job: unpacks the source, starts a process for each GPU, and ends as they end.

Standard library alone, and of this package this folder alone (one zip file in the pod), so that any image with python3
(3.8 or newer) will do. The processes have torchrun's variables. A process that fails ends the others; its exit code is
the pod's. Exit code 42 says "saved, start me again". SIGTERM (somebody else gets the nodes, or the node is drained)
becomes a leave file that gpu_burnin.job.asked_to_leave() reads, as does what the node itself asks; the processes then
have the grace period.
"""

from __future__ import annotations

import os
import socket
import time

from gpu_burnin.launch.pod.output import note, say
from gpu_burnin.launch.pod.ranks import AGAIN, Ranks
from gpu_burnin.launch.pod.setup import Refused, Setup
from gpu_burnin.launch.pod.signals import Signals
from gpu_burnin.launch.pod.source import prepare

_LOOK_S = 1.0
_MASTER_S = 600.0


def main() -> int:
    """The pod's exit code."""
    signals = Signals()
    try:
        setup = Setup(os.environ)
    except Refused as error:
        say(str(error))
        return 1
    try:
        entry = prepare(setup)
        await_master(setup, signals)
    except Refused as error:
        say(str(error))
        note(setup.termination_log, str(error))
        return 1
    signals.wait(0)
    if signals.asked_to_end:
        return AGAIN
    say(f"node {setup.node} of {setup.nodes}: {setup.processes} processes of {setup.entry}")
    return Ranks(setup, signals).run(entry)


def await_master(setup: Setup, signals: Signals) -> None:
    """Wait until the name of the first node's pod has an address: it has none before that pod has one.

    Raises Refused where it gets none.
    """
    end = time.monotonic() + _MASTER_S
    told = False
    while not signals.asked_to_end:
        try:
            socket.getaddrinfo(setup.master, None)
            return
        except OSError as error:
            if time.monotonic() > end:
                raise Refused(
                    f"{setup.master} (MASTER_ADDR) has no address after {_MASTER_S:.0f} s ({error}); look at the pod "
                    "of node 0 and at the cluster's DNS"
                ) from error
        if not told:
            say(f"waits for {setup.master} to have an address")
            told = True
        signals.wait(_LOOK_S)
