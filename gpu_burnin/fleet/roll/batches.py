"""How many hosts change at a time, and when no further batch begins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches(begun: int, rest: int, most_hosts: int, canary: int = 1) -> tuple[int, ...]:
    """How many at a time: what was begun before, the canary, then twice as many each time, at most `most_hosts`."""
    return tuple(_batches(begun, rest, max(1, most_hosts), canary))


def stop(failed: Sequence[str], most_failures: int, option: str) -> str:
    """Why no further batch is begun, "" where one may be. `option` is the name of the inventory's limit."""
    if len(failed) < most_failures:
        return ""
    return (
        f"{len(failed)} failed ({', '.join(failed)}) and {option} is {most_failures}: no further batch begins; mend "
        "what they failed of, then go on as the last lines of this run say"
    )


def _batches(begun: int, rest: int, most: int, canary: int) -> Iterator[int]:
    while begun > 0:
        yield min(begun, most)
        begun -= most
    size = max(1, min(canary, most))
    while rest > 0:
        yield min(size, rest)
        rest -= size
        size = min(size * 2, most)
