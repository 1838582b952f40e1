"""What the hbm check covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.types import Coverage


@dataclass(frozen=True, kw_only=True)
class HbmCoverage(Coverage):
    """`covered_bytes` of the GPU's memory were tested in `pieces`, `unreachable_bytes` could not be had.

    `patterns` are the tests that went over all of it, `passes` how often each test did. `sweep_seconds` is the device's
    time for the first round, `retention_s` the longest wait between writing and reading. `wrong_words_at_least`: there
    were more than could be told apart. `shape_words` says in words how the wrong words lie.
    """

    memory: str
    covered_bytes: int
    gpu_memory_bytes: int | None
    unreachable_bytes: int | None
    reserve_bytes: int
    pieces: int
    bytes_written: int
    bytes_read_back: int
    bytes_moved: int
    rounds: int
    patterns: tuple[str, ...]
    passes: Mapping[str, int]
    sweep_seconds: float
    verified_s: float
    retention_s: float
    wrong_words: int
    wrong_words_at_least: bool
    wrong_reads: int
    wrong_words_by_pattern: Mapping[str, int]
    wrong_reads_by_lane: Mapping[str, int]
    shape_words: str
    word_bytes: int
    ecc: str
    simulated: bool
