"""The second opinion: what a dcgmi says, hides or cannot say, by a program in its place, under the real dcgm check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_burnin.checks.dcgm import check as dcgm
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import Gpu, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults.opinion import BUDGET_S, OPINIONS, answer, says
from tests.campaign.model import NOT_TESTED, SEEN, Expect, case_random, case_seed, demand, row
from tests.campaign.node import clean, context_of, made_up_gpus, observe, plan_of, verdict


def _program(place: Path, script: str) -> str:
    path = place / "dcgmi"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def _judge(gpus: tuple[Gpu, ...], program: str, budget_s: float = BUDGET_S) -> Judgement:
    """The verdict when the memory check had nothing to say."""
    context = context_of(gpus, 0, seed=1, level="standard", options={"dcgmi": program}, budget_s=budget_s)
    found = [clean("hbm", gpu) for gpu in gpus]
    tests = [test for _, own in found for test in own]
    results = [dcgm.Check().run(context), *(result for result, _ in found)]
    return verdict(observe(plan_of(gpus, "hbm", "dcgm"), results, tests))


@pytest.fixture(autouse=True)
def _no_gpu_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of the machine that the campaign runs on are not those of the case."""
    monkeypatch.setattr(dcgm, "gpu_addresses", lambda: ())


@pytest.mark.parametrize("name", OPINIONS)
def test_opinion(name: str, tmp_path: Path, record: Record) -> None:
    opinion, seed = OPINIONS[name], case_seed("opinion", name)
    source = case_random("opinion", name)
    gpus = made_up_gpus(source.randint(2, 8))
    faulty = source.randrange(len(gpus))
    program = str(tmp_path / "no-such-dcgmi")
    if opinion.script is not None:
        program = _program(tmp_path, opinion.script(answer(gpus), faulty))
    judged = _judge(gpus, program, opinion.budget_s)
    record(
        row(
            "opinion",
            name,
            seed,
            judged,
            tools={"gpu-burn": NOT_TESTED, "dcgm": SEEN if opinion.on_gpu else NOT_TESTED},
        )
    )
    expect = Expect(frozenset({opinion.code}), opinion.verdict, frozenset({faulty} if opinion.on_gpu else ()))
    demand(expect, judged, gpus, f"seed {seed:#x}, GPU {faulty} of {len(gpus)}")


def test_a_good_opinion_passes(tmp_path: Path) -> None:
    gpus = made_up_gpus(4)
    program = _program(tmp_path, says(json.dumps(answer(gpus))))
    demand(Expect(frozenset(), Verdict.PASS), _judge(gpus, program), gpus, "all passed")
