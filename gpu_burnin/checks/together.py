"""The GPUs that are in a check at the same time: who takes part, turns in peace, a common start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.checks import CheckContext
from gpu_burnin.device.port import DeviceError
from gpu_burnin.types import JSON

# Sleeping ends up to some 0.1 ms late, more on a busy host: the last bit before a moment is waited for in a loop.
_SPIN_S = 0.001


class Group:
    """The workers of one TOGETHER check, as one of them sees the others.

    Every member has to make the same calls in the same order: each is an exchange through the supervisor. One that
    dies or is ended falls out of `members` at the next call; the others go on. `members` are UUIDs in the order of
    the plan. Raises DeviceError when the members do not make the same calls.
    """

    def __init__(self, ctx: CheckContext) -> None:
        if ctx.gpu is None:
            raise DeviceError("a check of GPUs together needs a GPU: this is a fault of the caller")
        self._ctx, self._step = ctx, 0
        self.uuid = ctx.gpu.uuid
        self.members: tuple[str, ...] = tuple(gpu.uuid for gpu in ctx.gpus)
        self.budget_s = self.least(ctx.budget_s)

    @property
    def rank(self) -> int:
        """Position of this GPU among the members."""
        return self.members.index(self.uuid)

    @property
    def lost(self) -> tuple[str, ...]:
        """UUIDs of the plan's GPUs that do not take part any more, or never did."""
        return tuple(gpu.uuid for gpu in self._ctx.gpus if gpu.uuid not in self.members)

    def gather(self, data: JSON) -> Mapping[str, JSON]:
        """Give `data` (at most 3 KB of JSON) and wait for that of all others: values by UUID of the members left."""
        self._step += 1
        offers = self._ctx.exchange({"step": self._step, "data": data})
        if self.uuid not in offers:
            raise DeviceError(f"{self.uuid} has no part in this exchange: this is a fault of the caller")
        found: dict[str, JSON] = {}
        for uuid in self.members:
            offer = offers.get(uuid)
            if offer is None:
                continue
            if not isinstance(offer, Mapping) or offer.get("step") != self._step:
                raise DeviceError(
                    f"{self.uuid} and {uuid} are out of step with each other: this is a fault of the check"
                )
            found[uuid] = offer["data"]
        self.members = tuple(found)
        return found

    def least(self, number: float) -> float:
        """The least of the numbers that the members give, the same for all."""
        return min(float(str(given)) for given in self.gather(number).values())

    def barrier(self) -> None:
        """Wait until all members have come here."""
        self.gather(None)

    def turns(self) -> Iterator[str]:
        """The members one after the other; each has peace until its turn is over. All iterate, only one works."""
        done: set[str] = set()
        self.barrier()
        while left := [uuid for uuid in self.members if uuid not in done]:
            done.add(left[0])
            yield left[0]
            self.barrier()

    def start_s(self, lead_s: float) -> float:
        """A moment of CLOCK_MONOTONIC, the same for all members, at least `lead_s` seconds after the last has asked."""
        return self.latest_s(time.monotonic()) + lead_s

    def latest_s(self, at_s: float) -> float:
        """The latest of the moments of CLOCK_MONOTONIC that the members give, the same for all."""
        return max(float(str(given)) for given in self.gather(at_s).values())


@dataclass(frozen=True)
class Clock:
    """The host's clock (CLOCK_MONOTONIC, seconds) and a way to wait; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def until(self, at_s: float) -> None:
        """Wait for a moment. A moment that has passed is not waited for."""
        while (left_s := at_s - self.now()) > 0:
            if left_s > _SPIN_S:
                self.pause(left_s - _SPIN_S)
