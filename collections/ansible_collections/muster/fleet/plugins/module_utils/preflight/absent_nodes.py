"""How many nodes may be silent for a run to go on without them. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem


def most_absent(nodes: int, share: float) -> int:
    """Of so many nodes, how many a run goes on without: this share, one of a small fleet too; none for 0."""
    return max(1, int(nodes * share)) if nodes and share > 0 else 0


def left_out(silent: Iterable[str], nodes: Collection[str], share: float) -> tuple[list[str], list[Problem]]:
    """The silent hosts that the run goes on without: all that are nodes, or none and why not."""
    known = set(nodes)
    absent = [host for host in silent if host in known]
    most = most_absent(len(known), share)
    if len(absent) <= most:
        return absent, []
    if not most:
        return [], []
    return [], [
        Problem(
            f"{len(absent):,} of {len(known):,} nodes do not answer SSH, and a run goes on without {most:,} at most",
            "look at what they share (network, power, the controller), or raise fleet_max_unreachable_share",
        )
    ]
