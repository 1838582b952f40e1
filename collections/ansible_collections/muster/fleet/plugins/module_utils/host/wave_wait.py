"""How long a node of a play waits for its turn to make power waves. Pure."""

from __future__ import annotations

# Ten minutes are more than a run of quick or standard takes; a quarter of a run is more than its waves take.
RUN_S = 600
WAVES_PART = 4
# More than it takes to start the runs of as many hosts as Ansible works on at a time.
START_S = 30


def wave_wait_s(asked_s: int, *, hosts: int, forks: int, wave_nodes: int, extended_s: int = 0) -> int:
    """Seconds until the last of `hosts` has had its waves, or `asked_s` where that is more.

    Runs are started in batches of `forks`, and go on beside each other; then `wave_nodes` at a time make waves, and
    never more than Ansible works on. `extended_s` is what an extended run adds.
    """
    run_s = RUN_S + extended_s
    batches, turns = -(-hosts // forks), -(-hosts // min(wave_nodes, forks))
    return max(asked_s, run_s + START_S * batches + run_s // WAVES_PART * turns)
