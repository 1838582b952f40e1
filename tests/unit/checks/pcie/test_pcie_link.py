"""The pcie check's view of the link: generation and width under load, a common start, the replay rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.checks.pcie import check as pcie
from gpu_burnin.checks.pcie import phases as pcie_phases
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.phases import Tally
from gpu_burnin.checks.pcie.port import Direction
from gpu_burnin.checks.together import Clock
from gpu_burnin.hardware.policy import load_policy
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.report.formatting import covered
from gpu_burnin.telemetry.findings import Counter, TelemetryFindings
from gpu_burnin.telemetry.pci import PciLink, current_link
from gpu_burnin.types import CheckResult
from tests.support import coverages
from tests.support.engine_helpers import gpu
from tests.support.observed import observed
from tests.support.pcie_helpers import one, run


class Real(CpuPcie):
    """Says that it is real."""

    simulated = False


def _sysfs(root: Path, speed: str, width: str) -> None:
    device = root / "bus/pci/devices" / gpu().pci_bus_id
    device.mkdir(parents=True)
    for name, text in (
        ("current_link_speed", speed), ("current_link_width", width),
        ("max_link_speed", "32.0 GT/s PCIe"), ("max_link_width", "16"),
    ):  # fmt: skip
        (device / name).write_text(text + "\n")


def test_generation_and_width_are_read_while_copies_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sysfs(tmp_path, "16.0 GT/s PCIe", "8")
    monkeypatch.setattr(pcie_phases, "current_link", lambda address: current_link(address, tmp_path))
    read = pcie.read_link
    monkeypatch.setattr(pcie, "read_link", lambda address: read(address, tmp_path))
    result = one(Real)
    link = coverages.pcie(result).link
    assert link is not None
    assert (link.generation, link.width, link.max_generation, link.max_width) == (4, 8, 5, 16)
    assert "link at generation 4 x8 under load" in covered(result)


def test_a_link_that_has_yet_to_come_up_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It idles at generation 1 until it has carried copies for a while."""
    under_way: list[Direction] = []
    monkeypatch.setattr(pcie_phases, "current_link", lambda address: (5 if "d2h" in under_way else 1, 16))

    class Noted(Real):
        def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
            under_way.extend([direction] if 1 < copies < 256 else [])  # neither a warm-up nor small copies
            super().begin(direction, copies)

    most = PciLink("", 16, 16, 5, None, None, None, "", None)
    monkeypatch.setattr(pcie, "read_link", lambda address: most)
    link = coverages.pcie(one(Noted)).link
    assert link is not None and link.generation == 5


def test_the_worst_link_that_was_seen_is_kept_and_what_is_not_readable_is_left_out(tmp_path: Path) -> None:
    tally = Tally()
    for seen in ((None, None), (5, 16), (4, None), (5, 8), (None, None)):
        tally.link(*seen)
    assert (tally.generation, tally.width) == (4, 8)
    assert current_link(gpu().pci_bus_id, tmp_path) == (None, None)
    _sysfs(tmp_path, "Unknown", "255")
    assert current_link(gpu().pci_bus_id, tmp_path) == (None, None)


def test_real_links_of_all_gpus_copy_from_one_moment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes milliseconds: what did not start together would hardly overlap."""
    waited: list[float] = []

    class Noted(Clock):
        def until(self, at_s: float) -> None:
            waited.append(at_s)

    monkeypatch.setattr(pcie_phases, "Clock", Noted)
    assert all(isinstance(result, CheckResult) for result in run(2, Real).values())
    assert len(waited) == 2 * 2 * pcie_phases._LEAST_ALL
    assert sorted(waited)[::2] == sorted(waited)[1::2], "the same moments on both"


def test_the_replay_rule_counts_by_what_this_check_moved() -> None:
    result = replace(one(), gpu="GPU-0")
    moved = coverages.pcie(result).pcie_bytes_moved
    policy = load_policy()
    (rule,) = (rule for rule in policy.counters if "pcie_replays" in rule.counters)
    assert rule.traffic == "pcie_bytes_moved"
    counter = Counter("GPU-0", "pcie_replays", "events", 0, 1000)
    found = TelemetryFindings(counters=(counter,))

    def codes(size: int) -> list[str]:
        moving = replace(result, coverage=replace(result.coverage, pcie_bytes_moved=size))
        judged = judge_telemetry(observed([moving], [gpu()], telemetry=found))
        return [notice.code for notice in judged.notices if "pcie_replays" in notice.message]

    # 1000 replays are too many for what was moved here, and few enough for 200 TB.
    assert codes(moved) == ["PCIE_ERRORS"]
    assert codes(200 * 10**12) == []
