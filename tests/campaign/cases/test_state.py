"""State: faulty nodes through the fake NVML library, the real nvidia-ml-py, the real check and the real verdict."""

from __future__ import annotations

import pytest

from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import CheckResult, Gpu, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults.state import STATE_FAULTS, StateFault
from tests.campaign.model import TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import clean, gpus_of, observe, plan_of, verdict
from tests.campaign.nvml_child import NvmlChild
from tests.campaign.profile import Profile, make_profile

SEEDS = 3


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", STATE_FAULTS)
def test_state_fault(name: str, index: int, nvml: NvmlChild, record: Record) -> None:
    fault, seed = STATE_FAULTS[name], case_seed("state", name, index)
    profile = _fitting_profile(fault, index)
    source = case_random("state", name, index, "target")
    target = profile.gpus - 1 if fault.target_last else source.randrange(profile.gpus)
    gpus = gpus_of(nvml.node(profile.scenario()))
    lines = fault.scenario_lines(source, profile, target)
    result = nvml.check(profile.scenario(lines), gpus, fault.options(profile))
    judged = _judged(gpus, result)
    record(
        row(
            "state", name, seed, judged, variant=f"{profile.gpus} x {profile.sku.key}",
            tools=TOOLS_NOT_TESTED,
        )
    )  # fmt: skip
    expect = Expect(
        codes=fault.codes,
        verdict=fault.verdict,
        gpus=frozenset({target}) if fault.on_gpu else frozenset(),
        also=fault.also,
        node_codes=fault.node_codes,
        action=fault.action,
    )
    demand(expect, judged, gpus, f"seed {seed:#x}, faulty GPU {target} of {profile.gpus} {profile.sku.key}: {lines}")


@pytest.mark.parametrize("index", range(10))
def test_the_same_nodes_without_a_fault_pass(index: int, nvml: NvmlChild) -> None:
    """A fault is seen for what it changes, not for how the made-up node looks."""
    profile = make_profile("state", "healthy", index)
    gpus = gpus_of(nvml.node(profile.scenario()))
    result = nvml.check(profile.scenario(), gpus, {"expect": {"gpus": profile.gpus}})
    judged = _judged(gpus, result)
    assert (judged.verdict, judged.reasons) == (Verdict.PASS, ()), profile.scenario()


def _judged(gpus: tuple[Gpu, ...], state: CheckResult) -> Judgement:
    """The verdict when the memory check had nothing to say, so that a GPU's verdict is not for want of a result."""
    found = [clean("hbm", gpu) for gpu in gpus]
    tests = [test for _, own in found for test in own]
    return verdict(observe(plan_of(gpus, "state", "hbm"), [state, *(result for result, _ in found)], tests))


def _fitting_profile(fault: StateFault, index: int) -> Profile:
    """The first node drawn for this case whose model can have the fault."""
    for attempt in range(1000):
        case = ("state", fault.name, index, attempt)
        profile = make_profile(*case, driver=fault.driver)
        if fault.fits(profile.sku) and fault.least_gpus <= profile.gpus <= fault.most_gpus:
            return profile
    raise AssertionError(f"no model of skus.yaml can have the fault {fault.name}")
