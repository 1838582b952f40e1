"""The bench of a fleet that comes back at once: who is tested, who is let in, and how fast."""

from __future__ import annotations

from collections import Counter

from gpu_burnin.admission.fabric_config import Admission, Alone, FabricRules
from tests.bench.fabric.power_cut import back, row

REQUIRED = FabricRules(admission=Admission.REQUIRED)


def test_all_are_tested_first_and_then_let_in_at_the_pace_of_joins() -> None:
    cut = back(20, REQUIRED, seed=1)
    cut.run()
    assert cut.tested_s.keys() == cut.open_s.keys() == cut.cluster.hosts.keys() and not cut.alone
    assert all(cut.tested_s[name] <= at_s for name, at_s in cut.open_s.items())
    assert max(Counter(cut.open_s.values()).values()) <= 5
    assert min(cut.tested_s.values()) >= REQUIRED.seconds, "a test takes its time"


def test_those_without_a_test_in_time_are_let_in_alone_or_held() -> None:
    cut = back(3, FabricRules(Admission.REQUIRED, wait_s=10.0), seed=1)
    cut.run()
    assert len(cut.alone) == 1
    held = back(3, FabricRules(Admission.REQUIRED, wait_s=10.0, alone=Alone.HOLD), seed=1)
    held.run()
    assert not held.alone and held.tested_s.keys() == held.cluster.hosts.keys()


def test_a_row_of_its_table() -> None:
    assert row(4, seed=1).startswith("| 4 | 1 | 4 | ")
