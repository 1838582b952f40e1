"""Functions that people may want to send."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

STEPS = 3


def whole(steps: int, *, rate: float = 0.1, names: list[str] | None = None) -> math.nan:  # type: ignore[valid-type]
    """Everything it needs is inside."""
    import math as mathematics

    def inner(value: float) -> float:
        return mathematics.sqrt(value)

    total: math.inf = sum(inner(step) for step in range(steps))  # type: ignore[valid-type]
    print(f"{total:.3f} {rate} {names}", __name__)


def recursive(depth: int) -> int:
    return depth if depth == 0 else recursive(depth - 1)


def sets_global() -> None:
    global counted
    counted = 1
    print(counted)


def uses_module() -> float:
    return math.sqrt(STEPS)


def with_default(steps: int = STEPS) -> None:
    print(steps)


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    function.noted = True  # type: ignore[attr-defined]
    return function


@functools.cache
def cached() -> None: ...


@_noted
def noted() -> None: ...


async def asynchronous() -> None:
    await asyncio.sleep(0)


def generates() -> Iterator[int]:
    yield 1


class Trainer:
    def train(self) -> None: ...


def closure() -> Callable[[], None]:
    steps = 3

    def inside() -> None:
        print(steps)

    return inside


def plain_inside() -> Callable[[], None]:
    def inside() -> None:
        print("inside")

    return inside


lambda_ = lambda: None  # noqa: E731
