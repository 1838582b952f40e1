"""Expectations for fresh seeds: Freivalds values made on the host, ahead of time, by a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from gpu_burnin.exact import freivalds
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.golden import fresh_seeds
from gpu_burnin.exact.operands import OperandRange
from gpu_burnin.exact.product import ROUND, Expected, Pair, Shape

# Sets that wait to be used. Two: one is made while another is in use; more would only hold memory.
_AHEAD = 2


@dataclass(frozen=True)
class FreshSet:
    """Two fresh seeds for A, two for B, and what the four products must give; good for every precision."""

    operands: OperandRange
    seeds_a: tuple[int, int]
    seeds_b: tuple[int, int]
    expected: dict[Pair, Expected]


def make_set(
    operands: OperandRange, shape: Shape, seeds: Iterator[int], ended: Callable[[], bool] = lambda: False
) -> FreshSet | None:
    """A set with the next four seeds; None when `ended` says so on the way. It takes 2 (m k + k n)
    multiplications, no product.

    Raises ValueError for an ieee range: its results are rounded, so no linear check holds.
    """
    if operands.rounds_to is not None:
        raise ValueError(f"range {operands.name} is rounded: Freivalds' check does not hold for it")
    seeds_a, seeds_b = (next(seeds), next(seeds)), (next(seeds), next(seeds))
    w, v = freivalds.challenge(seeds_a[0], shape.m, shape.n)
    left = [np.zeros(shape.k, dtype=np.uint64) for _ in seeds_a]
    right = [np.zeros(shape.k, dtype=np.uint64) for _ in seeds_b]
    for i in (0, 1):
        for rows, block in exact.operand_blocks(exact.operand_for(operands, "a", seeds_a[i]), shape.m, shape.k):
            if ended():
                return None
            left[i] = (left[i] + freivalds.vector_times(w[rows], block)) % np.uint64(exact.PRIME)
        for rows, block in exact.operand_blocks(exact.operand_for(operands, "b", seeds_b[i]), shape.k, shape.n):
            if ended():
                return None
            right[i][rows] = freivalds.times_vector(block, v)
    expected = {(i, j): Expected(bilinear=freivalds.dot(left[i], right[j]), w=w, v=v) for i, j in ROUND}
    return FreshSet(operands, seeds_a, seeds_b, expected)


class FreshSupply:
    """Makes sets for one range after the other in a thread. Use as a context manager: leaving it ends the thread.

    The n-th set depends on the seed and n only, not on timing.
    """

    def __init__(self, ranges: Sequence[OperandRange], shape: Shape, seed: int) -> None:
        self._changed = threading.Condition()
        self._ready: deque[FreshSet] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._make, args=(tuple(ranges), shape, seed), daemon=True)

    def __enter__(self) -> FreshSupply:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def take(self, wait: bool = False) -> FreshSet | None:
        """The next set, None when it is not ready; `wait` waits for it. Raises what the thread raised."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._ready or self._error)
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
            self._changed.notify_all()
            return self._ready.popleft()

    def _make(self, ranges: Sequence[OperandRange], shape: Shape, seed: int) -> None:
        seeds = fresh_seeds(seed)
        try:
            for operands in cycle(ranges):
                made = make_set(operands, shape, seeds, lambda: self._ended)
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or len(self._ready) < _AHEAD)
                    if self._ended or made is None:
                        return
                    self._ready.append(made)
                    self._changed.notify_all()
        except Exception as error:  # handed to the thread that takes
            with self._changed:
                self._error = error
                self._changed.notify_all()
