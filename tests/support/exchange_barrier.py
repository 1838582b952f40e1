"""Checks of several GPUs together without a supervisor: a thread for each GPU, exchanges by a meeting place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpu_burnin.checks import CheckContext
from gpu_burnin.types import JSON, CheckResult
from tests.support.clocks import PATIENCE_S


class ExchangeBarrier:
    """What the executor does for workers in one check: once all that are in it have an offer, each gets all."""

    def __init__(self, members: Sequence[str]) -> None:
        self._present = set(members)
        self._offers: dict[str, JSON] = {}
        self._answers: dict[str, Mapping[str, JSON]] = {}
        self._changed = threading.Condition()

    def exchange(self, uuid: str, data: JSON) -> Mapping[str, JSON]:
        """Offer `data` and wait for the others."""
        with self._changed:
            self._offers[uuid] = data
            self._settle()
            assert self._changed.wait_for(lambda: uuid in self._answers, PATIENCE_S), f"{uuid} waits for ever"
            return self._answers.pop(uuid)

    def leave(self, uuid: str) -> None:
        """The worker has ended or died."""
        with self._changed:
            self._present.discard(uuid)
            self._offers.pop(uuid, None)
            self._settle()

    def _settle(self) -> None:
        if self._present and self._present <= set(self._offers):
            self._answers.update({uuid: dict(self._offers) for uuid in self._present})
            self._offers = {}
        self._changed.notify_all()


def run_together(
    run: Callable[[CheckContext], CheckResult], made: Sequence[CheckContext]
) -> dict[str, CheckResult | Exception]:
    """Run a check on all GPUs at once; the result of each by UUID, or the exception it ended with."""
    meeting = ExchangeBarrier([ctx.gpu.uuid for ctx in made if ctx.gpu])
    results: dict[str, CheckResult | Exception] = {}

    def one(ctx: CheckContext) -> None:
        assert ctx.gpu is not None
        uuid = ctx.gpu.uuid
        try:
            results[uuid] = run(replace(ctx, exchange=lambda data: meeting.exchange(uuid, data)))
        except Exception as error:
            results[uuid] = error
        finally:
            meeting.leave(uuid)

    threads = [threading.Thread(target=one, args=(ctx,)) for ctx in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
