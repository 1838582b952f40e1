"""The figures that the pages give are those of the program and its data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_burnin.admission.service.leader import LEASE_S, WRITE_S
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.evidence import MAX_SKEW_S
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.dcgm.diagnostic import DIAG_LEVELS
from gpu_burnin.checks.gemm.data_path import CLEARLY
from gpu_burnin.checks.power.wave import FREQUENCIES_HZ
from gpu_burnin.engine.deadlines import MOST_LATE_S, deadlines
from gpu_burnin.engine.plan import CLOSING_S
from gpu_burnin.hardware import load_skus
from gpu_burnin.node.store import KEEP_RUNS
from gpu_burnin.report.series import MAX_BUCKETS

ROOT = Path(__file__).resolve().parents[3]
QUICK, STANDARD, EXTENDED = (LEVELS[name] for name in ("quick", "standard", "extended"))
LIMITS = deadlines(QUICK.total_s)


def default(role: str, variable: str) -> int:
    """A role's default."""
    return int(yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())[variable])


def least(level: str) -> list[float]:
    """Least seconds of each check of a level that has a time of its own, in the order of a run."""
    return [check.slots[level].least_s for check in CHECKS.values() if check.slots[level].weight > 0]


TTL_DAYS = default("node_admission", "node_admission_evidence_ttl_s") // 86400
LOW, HIGH = f"{FREQUENCIES_HZ[0]:g}", f"{FREQUENCIES_HZ[-1]:g}"
HBM_FLOORS = sum("hbm_rate" in sku.floors for sku in load_skus().skus.values())
NUMBERS = {5: "five"}
LEADS = "docs/decisions/36-one-admitter-leads.md"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", f"gpu-burnin run --level standard # {NUMBERS[int(STANDARD.total_s // 60)]} minutes"),
        ("docs/data-flow.md", f"({TTL_DAYS} days, up to 10 % less for each node"),
        ("docs/data-flow.md", f"not more than {MAX_SKEW_S:.0f} seconds in the future"),
        ("docs/data-flow.md", f"taints at most {AdmitterConfig.expire_share:.0%} of the nodes".replace("%", " %")),
        ("docs/data-flow.md", f"(root only, newest {KEEP_RUNS} and the pass that stands)"),
        (LEADS, f"It writes until {WRITE_S:.0f} seconds after it sent its last"),
        (LEADS, f"others take the Lease when they have seen no renewal for {LEASE_S:.0f}."),
        ("docs/operations/power-waves.md", f"at {LOW} to {HIGH} Hz"),
        ("docs/reference/checks.md", f"{CLEARLY:g} times as fast as TF32"),
        (
            "docs/reference/checks.md",
            f"level {DIAG_LEVELS['quick']} in quick, {DIAG_LEVELS['standard']} in standard, "
            f"{DIAG_LEVELS['extended']} in extended",
        ),
        (
            "docs/reference/comparison.md",
            f"level standard then asks for `-r {DIAG_LEVELS['standard']}`, extended for `-r {DIAG_LEVELS['extended']}`",
        ),
        ("docs/reference/comparison.md", f"{LOW} to {HIGH} Hz on all GPUs"),
        ("docs/reference/comparison.md", f"{len(load_skus().skus)} models; a rate has one"),
        ("docs/reference/comparison.md", f"a derived floor for {NUMBERS[HBM_FLOORS]} models warns"),
        (
            "docs/reference/levels.md",
            f"quick after {LIMITS.run_s / 60:g} minutes, standard after {deadlines(STANDARD.total_s).run_s / 60:g}, "
            f"extended {MOST_LATE_S / 60:g} minutes after its time",
        ),
        (
            "docs/reference/levels.md",
            f"NVML has {LIMITS.discover_s:g} s to list the GPUs, a worker {LIMITS.open_s:g} s to open its GPU, a "
            f"self-test {LIMITS.selftest_s:g} s, and a check {LIMITS.check_s(10.0) - 10.0:g} s more than its share",
        ),
        (
            "docs/reference/levels.md",
            "then at least `sm` {:g}, `gemm` {:g}, `hbm` {:g}, `pcie` {:g}, `nvlink` {:g}, `nccl` {:g}, `power` {:g}, "
            "and {:g} for closing".format(*least("quick"), CLOSING_S),
        ),
        (
            "docs/reference/levels.md",
            f"the least times {' + '.join(f'{seconds:g}' for seconds in least('standard'))}, closing {CLOSING_S:g}: ",
        ),
        ("docs/reference/report-files.md", f"at most {MAX_BUCKETS} points a GPU"),
    ],
)
def test_figure_of_a_page_is_the_program_s(page: str, words: str) -> None:
    assert words in " ".join((ROOT / page).read_text().split())
