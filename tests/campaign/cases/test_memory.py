"""Memory: faulty cells of one GPU below the real hbm check; and what the reference tools' patterns see."""

from __future__ import annotations

import pytest

from gpu_burnin.checks import CHECKS, REGISTRY
from gpu_burnin.checks.hbm import check as hbm
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import CheckResult, Gpu, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults import cells as cell_models
from tests.campaign.faults.cells import FAULTY_CELLS, Cells, Fading
from tests.campaign.faults.memory import MEMORY_FAULTS, WORDS, FaultyHbmDevice, wrong_words
from tests.campaign.model import TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import clean, context_of, made_up_gpus, observe, plan_of, verdict
from tests.campaign.reference_tools.memory import dcgm_memory_sees, gpu_burn_sees, memory_view
from tests.support.clocks import HandClock, use

SEEDS = 4
FAIL = Verdict.FAIL
_SHAPES = {"gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "hbm_bytes": 8 * WORDS}
# Seconds that a fading row keeps its data, and for how long the check has it keep them.
_RETENTION_S = 0.5


def _place(*case: object) -> tuple[tuple[Gpu, ...], int]:
    source = case_random("place", *case)
    gpus = made_up_gpus(source.randint(2, 8))
    return gpus, source.randrange(len(gpus))


def _judge(gpus: tuple[Gpu, ...], faulty: int, result: CheckResult) -> Judgement:
    """The verdict when the faulty GPU gave this result and the others are well; its self-test was well before."""
    found = [clean("hbm", gpu) for gpu in gpus]
    results = [result if index == faulty else own for index, (own, _) in enumerate(found)]
    return verdict(observe(plan_of(gpus, "hbm"), results, [test for _, tests in found for test in tests]))


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", MEMORY_FAULTS)
def test_faulty_cells(name: str, index: int, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, seed = MEMORY_FAULTS[name], case_seed("memory", name, index)
    monkeypatch.setattr(hbm.Check, "retention_s", _RETENTION_S)
    gpus, faulty = _place("memory", name, index)
    cells = fault.make(WORDS, seed)
    context = context_of(gpus, faulty, seed=seed, device=FaultyHbmDevice(cells), shapes=_SHAPES, level=fault.level)
    result = REGISTRY["hbm"].run(context)
    judged = _judge(gpus, faulty, result)
    tools = memory_view(fault.make(WORDS, seed), fault.make(WORDS, seed))
    record(row("memory", name, seed, judged, variant=fault.level, tools=tools))
    note = f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, word {cells.word}, bit {cells.bit}: {result.coverage}"
    demand(Expect(frozenset({"HBM_BIT_ERROR"}), FAIL, frozenset({faulty})), judged, gpus, note)
    assert isinstance(result.coverage, HbmCoverage)
    words = wrong_words(result.errors)
    assert words and all(fault.place(cells, word) for word in words), f"named {words}; {note}"
    assert str(result.coverage.shape_words).startswith(fault.shape.format(bit=cells.bit, next=(cells.bit + 1) % 64))


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", CHECKS["hbm"].faults)
def test_injected_memory_faults(name: str, index: int, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults of --inject, which come below the comparison too."""
    monkeypatch.setattr(hbm.Check, "retention_s", _RETENTION_S)
    seed = case_seed("memory", "inject", name, index)
    gpus, faulty = _place("memory", "inject", name, index)
    level = "extended" if name == "fade" else "quick"
    context = context_of(gpus, faulty, seed=seed, inject=(name,), shapes=_SHAPES, level=level)
    judged = _judge(gpus, faulty, REGISTRY["hbm"].run(context))
    record(row("memory", f"injected: {name}", seed, judged, variant=level, tools=TOOLS_NOT_TESTED))
    demand(Expect(frozenset({"HBM_BIT_ERROR"}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}")


def test_healthy_cells_pass_and_no_tool_sees_anything() -> None:
    """What the faults above are measured against: the same way through memory, with cells that keep what they hold."""
    gpus = made_up_gpus(2)
    context = context_of(gpus, 1, seed=5, device=FaultyHbmDevice(Cells(WORDS, 5)), shapes=_SHAPES)
    demand(Expect(frozenset(), Verdict.PASS), _judge(gpus, 1, REGISTRY["hbm"].run(context)), gpus, "healthy cells")
    assert not gpu_burn_sees(Cells(WORDS, 5))
    assert not dcgm_memory_sees(Cells(WORDS, 5))


def test_what_is_known_of_the_reference_tools_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stuck cells show under 0x00 or 0xFF; equal bytes everywhere hide an address line; nothing waits for a fade."""
    use(monkeypatch, HandClock(), cell_models)
    for seed in range(20):
        assert dcgm_memory_sees(FAULTY_CELLS["cell stuck at 0"](WORDS, seed))
        assert dcgm_memory_sees(FAULTY_CELLS["cell stuck at 1"](WORDS, seed))
        assert not dcgm_memory_sees(FAULTY_CELLS["address line stuck"](WORDS, seed))
        assert not dcgm_memory_sees(Fading(WORDS, seed))
