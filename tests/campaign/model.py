"""What the areas of the campaign share: what a fault has to lead to, seeds, and the row a case leaves in the matrix."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import Action, Gpu, Verdict

SEED_VARIABLE = "MUSTER_CAMPAIGN_SEED"
DEFAULT_SEED = 2026
# What a reference tool's rule says of a fault: a verdict on the same outputs, or that it does not look there at all.
SEEN, MISSED, NOT_TESTED = "seen", "missed", "not tested"
# What no reference tool looks at.
TOOLS_NOT_TESTED: Mapping[str, str] = {"gpu-burn": NOT_TESTED, "dcgm": NOT_TESTED}


def base_seed() -> int:
    """The seed of the whole campaign, from the environment."""
    return int(os.environ.get(SEED_VARIABLE, DEFAULT_SEED))


def case_seed(*parts: object) -> int:
    """64 bits for one case, a function of the campaign's seed and the case's name."""
    text = "/".join(map(str, (base_seed(), *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def case_random(*parts: object) -> random.Random:
    """A random source of one case."""
    return random.Random(case_seed(*parts))


@dataclass(frozen=True)
class Expect:
    """What a fault has to lead to.

    Each of `codes` must be among the reasons, each reason's code in `codes` or `also`. `gpus` are indices of the
    GPUs that must be blamed, by a reason for each of `codes` unless it is in `node_codes` (a reason about the node);
    no other GPU may be blamed. `action` is the outcome's action where the fault defines it.
    """

    codes: frozenset[str]
    verdict: Verdict
    gpus: frozenset[int] = frozenset()
    also: frozenset[str] = frozenset()
    node_codes: frozenset[str] = frozenset()
    action: Action | None = None


def problems(expect: Expect, judged: Judgement, gpus: Sequence[Gpu]) -> list[str]:
    """What is wrong with an outcome, in sentences; empty when it is right."""
    found = [f"{reason.code} on {reason.gpu or 'the node'}: {reason.message}" for reason in judged.reasons]
    codes = {reason.code for reason in judged.reasons}
    wrong: list[str] = []
    if judged.verdict is not expect.verdict:
        wrong.append(f"verdict {judged.verdict}, expected {expect.verdict}")
    if expect.codes - codes:
        wrong.append(f"not seen: {', '.join(sorted(expect.codes - codes))}")
    if codes - expect.codes - expect.also:
        wrong.append(f"not expected: {', '.join(sorted(codes - expect.codes - expect.also))}")
    if expect.action is not None and judged.action is not expect.action:
        wrong.append(f"action {judged.action}, expected {expect.action}")
    blamed = {gpu.uuid for gpu in gpus if gpu.index in expect.gpus}
    for code in sorted(expect.codes & codes):
        at = {reason.gpu for reason in judged.reasons if reason.code == code}
        wanted: set[str | None] = {None} if code in expect.node_codes or not expect.gpus else {*blamed}
        if not wanted <= at:
            wrong.append(f"{code} is on {sorted(map(str, at))}, expected on {sorted(map(str, wanted))}")
    for gpu in gpus:
        verdict = judged.gpus.get(gpu.uuid, Verdict.PASS)
        accused = any(reason.gpu == gpu.uuid for reason in judged.reasons)
        if gpu.uuid not in blamed and (accused or verdict is not Verdict.PASS):
            wrong.append(f"GPU {gpu.index} is blamed ({verdict}) and has nothing")
    return [*wrong, *found] if wrong else []


def demand(expect: Expect, judged: Judgement, gpus: Sequence[Gpu], note: str) -> None:
    """Fail the test with what is wrong with an outcome; `note` is what a person needs to look into it."""
    wrong = problems(expect, judged, gpus)
    if wrong:
        pytest.fail("\n".join([*wrong, note]), pytrace=False)


@dataclass(frozen=True)
class Row:
    """One case in the matrix. `tools` says for each tool's rule SEEN, MISSED or NOT_TESTED."""

    area: str
    fault: str
    seed: int
    variant: str = ""
    codes: Sequence[str] = ()
    verdict: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def row(area: str, fault: str, seed: int, judged: Judgement, **more: Any) -> Row:
    """The row of a judged case."""
    codes = sorted({reason.code for reason in judged.reasons})
    return Row(area, fault, seed, codes=codes, verdict=str(judged.verdict), **more)


def cases(faults: Mapping[str, Any]) -> list[Any]:
    """The names of faults, for parametrize; those that repeat what others show have the mark soak."""
    return [pytest.param(name, marks=pytest.mark.soak if fault.soak else ()) for name, fault in faults.items()]
