"""policy.yaml: what is shipped is read, and mistakes in it are named by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.hardware import HardwareDataError
from gpu_burnin.hardware.policy import DEFAULT_PATH, Weight, load_policy
from gpu_burnin.hardware.skus import Confidence
from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.events import KINDS
from gpu_burnin.telemetry.sampler_columns import COLUMNS


def test_what_is_shipped_fits_what_is_sampled() -> None:
    policy = load_policy()
    assert set(policy.needed_columns) <= set(COLUMNS)
    assert {name for rule in policy.counters for name in rule.counters} <= set(UNITS)
    assert set(policy.events) == set(KINDS.values()) - {"xid"}
    assert all(
        rule.meaning.source for rule in (*policy.counters, *policy.thermal, *policy.events.values(), *policy.power)
    )


def test_power_limit_is_normal_and_slowdowns_of_the_hardware_fail() -> None:
    throttle = load_policy().throttle
    assert throttle[0x4].meaning.weight is Weight.NORMAL
    assert {bit for bit, rule in throttle.items() if rule.meaning.weight is Weight.FAIL} == {0x8, 0x40, 0x80}
    assert throttle[0x20].meaning.weight is Weight.WARN


def test_derived_figures_never_fail_a_node() -> None:
    policy = load_policy()
    rules = (*policy.counters, *policy.throttle.values(), *policy.thermal, *policy.events.values())
    assert not [r for r in rules if r.meaning.weight is Weight.FAIL and r.meaning.confidence is Confidence.DERIVED]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("bit: 0x008", "bit: 0x00C", "must be a single bit, not 0xc"),
        ("bit: 0x008", "bit: 0", "must be a single bit"),
        ("bit: 0x008", "bit: 0x004", "bit 0x4 is described twice"),
        ("least_samples: 5", "least_samples: 0", "must be 1 or more"),
        ("least_samples: 5", "least_samples: few", "must be a whole number"),
        ("quantity: memory_headroom_c", "quantity: humidity", "must be one of"),
        ("at_most: 5", "at_most: cold", "must be a number"),
        ("at_most: 5", "at_most: nan", "must be a finite number"),
        ("    at_most: 5\n", "", "needs one of at_most, more_than"),
        ("at_most: 5\n", "at_most: 5\n    more_than: 3\n", "needs one of"),
        ("    traffic: pcie_bytes_moved\n", "", "belong to more_than_per_tb"),
        ("more_than: 20000000", "more_than: 20000000\n    least: 3", "belong to more_than_per_tb"),
        ("    less_than: 0.85", "    less_than: lots", "must be a number"),
        ("    less_than: 0.85\n", "", "needs one of less_than, more_than"),
        ("quantity: power_share", "quantity: noise", "must be one of"),
        ("event: poison_fatal", "event: ecc_double_bit", "described twice"),
        ("needed_share: 0.9", "needed_share: 9", "from 0 to 1"),
        ("    code: PCIE_DEGRADED", "    code: PCIE_SAD", "not in reasons.yaml"),
        ("    code: PCIE_DEGRADED\n", "", "code missing"),
        ("  least_seconds: 5", "  least_seconds: 5\n  colour: red", "unknown key 'colour'"),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = DEFAULT_PATH.read_text()
    assert old in text
    broken = tmp_path / "policy.yaml"
    broken.write_text(text.replace(old, new, 1))
    with pytest.raises(HardwareDataError, match=rf"policy\.yaml:\d+: .*{complaint}") as caught:
        load_policy(broken)
    line = int(str(caught.value).split(":")[1])
    first = text[: text.index(old)].count("\n") + 1
    assert first - 12 <= line <= first + 6


def test_a_derived_figure_may_not_fail(tmp_path: Path) -> None:
    text = DEFAULT_PATH.read_text()
    broken = tmp_path / "policy.yaml"
    broken.write_text(text.replace("verdict: warn\n    code: THROTTLED", "verdict: fail\n    code: THROTTLED", 1))
    with pytest.raises(HardwareDataError, match="may only warn"):
        load_policy(broken)


def test_a_normal_state_needs_no_code(tmp_path: Path) -> None:
    text = DEFAULT_PATH.read_text()
    broken = tmp_path / "policy.yaml"
    broken.write_text(text.replace("verdict: normal\n", "verdict: normal\n    code: THROTTLED\n", 1))
    with pytest.raises(HardwareDataError, match="makes no sense"):
        load_policy(broken)
