"""Command line: faulty nodes from `gpu-burnin run` to the report, with real processes all the way.

The same node without a fault is in test_leftovers.py: it passes with the usual checks, and leaves nothing behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.report import model
from gpu_burnin.types import Action, Verdict
from tests.campaign.command_node import EXIT_CODES, GPUS, Node, judgement_of, prepare
from tests.campaign.conftest import Record
from tests.campaign.faults.command import COMMAND_FAULTS
from tests.campaign.model import TOOLS_NOT_TESTED, Expect, case_random, case_seed, cases, demand, row
from tests.campaign.node import gpus_of
from tests.campaign.nvml_child import NvmlChild
from tests.support.clocks import PATIENCE_S

SEEDS = 1
_FULL = "full disk"


def _at(process: subprocess.Popen[str], words: str) -> None:
    """Returns when the run is as far as this line of its progress."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", cases(COMMAND_FAULTS))
def test_command_fault(
    name: str, index: int, nvml: NvmlChild, fake_nvml: Path, host_key: Path, tmp_path: Path, record: Record
) -> None:
    fault, seed = COMMAND_FAULTS[name], case_seed("command", name, index)
    faulty = case_random("command", name, index).randrange(GPUS)
    start = f"identity = command-{index}\ngpus = {GPUS}\n"
    gpus = gpus_of(nvml.node(start))
    lines = {key.format(t=faulty): value for key, value in fault.lines.items()}
    node = Node(tmp_path, fake_nvml, host_key, start + "".join(f"{key} = {value}\n" for key, value in lines.items()))
    prepare(node, fault, gpus, faulty)
    arguments = [argument.format(t=faulty) for argument in fault.arguments]
    clock = tmp_path / "clock"
    variables = {"MUSTER_FAKE_NVML_CLOCK": str(clock)} if any("@" in key for key in lines) else {}
    process = node.start("--seed", str(seed), *arguments, variables=variables)
    if variables:
        _at(process, "state PASS")
        clock.touch()
    if fault.interrupt_at:
        _at(process, fault.interrupt_at)
        process.send_signal(signal.SIGINT)
    code, out, err = _finish(process)
    assert out, f"exit code {code}, no report: {err}"
    report = json.loads(out)
    model.validate(report)
    judged = judgement_of(report)
    record(row("command", name, seed, judged, tools=TOOLS_NOT_TESTED))
    expect = Expect(
        codes=frozenset(fault.codes.split()),
        verdict=fault.verdict,
        gpus=frozenset({faulty}) if fault.on_gpu else frozenset(),
        also=frozenset(fault.also.split()),
        node_codes=frozenset(fault.node_codes.split()),
    )
    with_verified = tuple(gpu for gpu in gpus if gpu.index in expect.gpus) if fault.cut_short else gpus
    demand(expect, judged, with_verified, f"seed {seed:#x}, faulty GPU {faulty}; {err[-800:]}")
    assert code == EXIT_CODES[fault.verdict]
    assert report["sequence"] == (1 if fault.journal is None else 2)
    assert any(fault.says in reason["message"] for reason in report["reasons"]), report["reasons"]


@pytest.mark.parametrize("most_bytes", [500, 5000])
def test_full_disk(
    most_bytes: int, nvml: NvmlChild, fake_nvml: Path, host_key: Path, tmp_path: Path, record: Record
) -> None:
    """No room for the journal, or later for the report: the verdict all the same, and no evidence of it."""
    seed = case_seed("command", _FULL, most_bytes)
    scenario = f"identity = full\ngpus = {GPUS}\n"
    node = Node(tmp_path, fake_nvml, host_key, scenario)
    prepare(node, COMMAND_FAULTS["simulated, and not allowed to pass"], gpus_of(nvml.node(scenario)), 0)
    node.settings["checks"] = ["state"]
    code, out, err = _finish(node.start("--seed", str(seed), most_bytes=most_bytes))
    judged = Judgement(Verdict.INCONCLUSIVE, Action.RETEST, ())
    record(row("command", _FULL, seed, judged, variant=f"{most_bytes} bytes", tools=TOOLS_NOT_TESTED))
    assert (code, json.loads(out)["verdict"]) == (3, "INCONCLUSIVE"), err
    assert "make room" in err and "the gate stays closed" in err.strip().splitlines()[-1], err
    assert "Traceback" not in err
    assert not list(node.store.runs_dir.glob("*/evidence.json"))


@pytest.mark.parametrize(
    ("limit", "named"),
    [("--as=83886080", "RLIMIT_AS is 80 MiB"),
     pytest.param("--as=115343360", "RLIMIT_AS is 110 MiB", marks=pytest.mark.soak),
     ("--nofile=17", "RLIMIT_NOFILE is 17")],
)  # fmt: skip
def test_a_limit_of_the_host(
    limit: str, named: str, nvml: NvmlChild, fake_nvml: Path, host_key: Path, tmp_path: Path, record: Record
) -> None:
    """Too little for the workers, though enough for who started them: the limit is named, and no GPU fails."""
    seed = case_seed("command", "limit", limit)
    scenario = f"identity = limit\ngpus = {GPUS}\n"
    nvml.node(scenario)
    node = Node(tmp_path, fake_nvml, host_key, scenario)
    node.settings |= {"checks": ["gemm", "hbm"]}
    node.kernel_log.write_text("6,0,100,-;Linux version 6.1\n")
    process = node.start("--seed", str(seed), limit=("prlimit", limit))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_CODES[Verdict.INCONCLUSIVE], err
    report = json.loads(out)
    record(row("command", f"limit {limit}", seed, judgement_of(report), tools=TOOLS_NOT_TESTED))
    assert {reason["severity"] for reason in report["reasons"]} == {"INCONCLUSIVE"}
    assert any(reason["code"] == "HOST_LIMIT" and named in reason["message"] for reason in report["reasons"]), report
