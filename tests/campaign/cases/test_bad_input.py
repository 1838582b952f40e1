"""Hosts on which something cannot be tested: one sentence with the fix, the right exit code, and nothing left behind.

Real `gpu-burnin run` processes, from the command line to the report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_burnin.report import model
from gpu_burnin.types import Verdict
from tests.campaign.command_node import EXIT_CODES, GPUS, Node, judgement_of, prepare
from tests.campaign.conftest import Record
from tests.campaign.faults.command import CommandFault
from tests.campaign.leftovers import Leftovers
from tests.campaign.model import TOOLS_NOT_TESTED, case_random, case_seed, cases, row
from tests.campaign.node import gpus_of
from tests.campaign.nvml_child import NvmlChild
from tests.campaign.profile import make_profile

PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
_DEADLINE_S = 120.0
_DRIVER = "580.95.05"


@dataclass(frozen=True)
class BadInput:
    """What is in the way, and what has to come of it: `code` with all of `message_parts` in one sentence.

    `lines` are those of the fake NVML's scenario, with {t} for one GPU; `missing` is a key of MISSING.
    `on_gpu`: that GPU is named. With PASS the sentence is a warning. `sku` is the model of the GPUs. `soak`: as in
    CommandFault.
    """

    name: str
    code: str
    verdict: Verdict
    message_parts: tuple[str, ...]
    checks: tuple[str, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    missing: str | None = None
    on_gpu: bool = False
    also: str = ""
    sku: str = "h200-sxm"
    soak: bool = False


def _p2p(status: str) -> dict[str, str]:
    return {f"p2p_{what}_status": status for what in ("read", "write", "nvlink")}


BAD_INPUTS: Mapping[str, BadInput] = {
    bad.name: bad
    for bad in (
        # Cards without NVLink need not reach each other; a board with NVLink to all others has to.
        BadInput("p2p: topology of cards", "P2P_UNAVAILABLE", PASS, ("need not", "put them under one PCIe switch"),
                 ("nvlink",), _p2p("3"), sku="l40s"),
        BadInput("p2p: topology of a board", "P2P_UNAVAILABLE", FAIL, ("should", "fabric manager"), ("nvlink",),
                 _p2p("3")),
        BadInput("p2p: acs", "P2P_UNAVAILABLE", FAIL, ("ACS redirection", "0000:00:01.0", "setpci"), ("nvlink",),
                 missing="peer access, for acs"),
        # As the one before; the transfers name it with its fix, too.
        BadInput("p2p: iommu", "P2P_UNAVAILABLE", FAIL, ("IOMMU", "iommu=pt"), ("nvlink",),
                 missing="peer access, for the iommu", soak=True),
        BadInput("nccl missing", "NCCL_MISSING", INCONCLUSIVE, ("libnccl.so.2", "gpu-burnin[cuda12]"), ("nccl",),
                 missing="nccl"),
        BadInput("nccl of another version", "NCCL_VERSION", INCONCLUSIVE, ("2.99.1", "install the version"), ("nccl",),
                 settings={"expect": {"nccl": "2.99.1"}}),
        BadInput("pinned memory refused", "OUT_OF_MEMORY", INCONCLUSIVE, ("ulimit -l unlimited", "LimitMEMLOCK"),
                 ("pcie",), missing="pinned memory"),
        BadInput("mig on", "MIG_MISMATCH", INCONCLUSIVE, ("MIG", "GPU {t}"), ("hbm",),
                 {"gpu{t}.mig_current": "yes", "gpu{t}.mig_pending": "yes"}, on_gpu=True),
        BadInput("foreign process", "GPU_BUSY", INCONCLUSIVE, ("GPU {t}", "4194303"), ("sm",),
                 {"gpu{t}.processes": "4194303:1024"}, on_gpu=True, also="COVERAGE_LOW"),
        BadInput("dcgm absent", "DCGM_MISSING", INCONCLUSIVE, ("dcgmi",), ("dcgm",)),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", cases(BAD_INPUTS))
def test_what_cannot_be_tested_is_one_sentence(
    name: str, nvml: NvmlChild, fake_nvml: Path, host_key: Path, tmp_path: Path, record: Record
) -> None:
    bad, seed = BAD_INPUTS[name], case_seed("bad input", name)
    target = case_random("bad input", name).randrange(GPUS)
    lines = {key.format(t=target): value for key, value in bad.lines.items()}
    scenario = make_profile("bad input", name, gpus=GPUS, sku=bad.sku, driver=_DRIVER).scenario(lines)
    node = Node(tmp_path, fake_nvml, host_key, scenario)
    gpus = gpus_of(nvml.node(scenario))
    settings = {"checks": ["state", *bad.checks], **bad.settings}
    prepare(node, CommandFault(name, "", bad.verdict, settings=settings), gpus, target)
    program = ("gpu_burnin",) if bad.missing is None else ("tests.campaign.faults.missing_resources", bad.missing)
    with Leftovers(tmp_path) as leftovers:
        process = node.start("--seed", str(seed), program=program, variables=leftovers.variables)
        out, err = process.communicate(timeout=_DEADLINE_S)
        assert leftovers.left() == []
    assert out, f"exit code {process.returncode}, no report: {err}"
    report = json.loads(out)
    model.validate(report)
    judged = judgement_of(report)
    record(row("command", f"cannot test, {name}", seed, judged, tools=TOOLS_NOT_TESTED))
    note = f"seed {seed:#x}, GPU {target}: {report['reasons']} {report['warnings']} {err[-800:]}"
    assert (process.returncode, judged.verdict) == (EXIT_CODES[bad.verdict], bad.verdict), note
    assert {reason.code for reason in judged.reasons} <= {bad.code, *bad.also.split()}, note
    told = [item for item in report["warnings" if bad.verdict is PASS else "reasons"] if item["code"] == bad.code]
    assert told, note
    parts = [part.format(t=target) for part in bad.message_parts]
    assert all(part in item["message"] for item in told for part in parts), note
    assert all("\n" not in item["message"] for item in told), note
    if bad.on_gpu:
        assert {item["gpu"] for item in told} == {gpus[target].uuid}, note
