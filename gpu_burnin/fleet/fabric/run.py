"""Rounds until nothing is left to test, each handed to an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gpu_burnin.fabric.model import End, Result, Round, State
from gpu_burnin.fleet.fabric.advance import advance
from gpu_burnin.fleet.fabric.planner import next_round


class Executor(Protocol):
    """Runs the tests of a round side by side, and gives what came in time. It verifies the signatures."""

    def __call__(self, made: Round) -> Iterable[Result]: ...


def run(
    state: State,
    execute: Executor,
    after: Callable[[Round, State], None] | None = None,
    stopped: Callable[[], str] = lambda: "",
) -> tuple[State, End]:
    """The state after the last round, and why it was the last. `after` hears of each round; `stopped` says why no
    further one begins."""
    while True:
        made = next_round(state)
        if isinstance(made, End):
            return state, made
        if why := stopped():
            return state, End(why)
        state = advance(state, made, execute(made))
        if after is not None:
            after(made, state)
