"""Ranks of the CPU device's ring in one process: a thread for each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.device.port import DeviceError
from tests.support.clocks import PATIENCE_S

Work = Callable[[CpuNccl, int], Any]


def ring(ranks: int, work: Work, size_bytes: int = 100_000) -> list[Any]:
    """Run `work` on each rank in a thread of its own: its answers, or exceptions.

    A rank that fails gives up for all at once; one that is done closes when all are, since others may still wait for
    what it sent.
    """
    ports = [CpuNccl() for _ in range(ranks)]
    offers = [port.offer(rank, ranks) for rank, port in enumerate(ports)]
    answers: list[Any] = [None] * ranks

    def one(rank: int) -> None:
        try:
            ports[rank].open(size_bytes)
            ports[rank].join(offers, rank, "ring", PATIENCE_S)
            answers[rank] = work(ports[rank], rank)
        except DeviceError as error:
            answers[rank] = error
            ports[rank].close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for port in ports:
        port.close()
    return answers
