"""Answers of a program in dcgmi's place, good and bad, as data."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_burnin.types import Gpu, Verdict
from tests.campaign.nvml_child import ROOT

FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE
# An answer of level 2 that was recorded on a machine with one GPU.
_RECORDED = ROOT / "tests/support/dcgm_outputs/level2-allowed-4.5.2.json"
_NVVS_ERROR, _NO_CONNECTION = 226, 235
BUDGET_S = 20.0
_CONFIG, _ISOLATE = 5, 2
Document = dict[str, Any]


def answer(gpus: tuple[Gpu, ...]) -> Document:
    """The recorded answer as it would be on these GPUs, all well; DCGM numbers them the other way round."""
    document: Document = json.loads(_RECORDED.read_text(encoding="utf-8"))
    for test in _tests(document):
        template = {"entity_group": "GPU", "entity_group_id": 1, "status": "Pass", "info": ["fine"]}
        test["results"] = [{**template, "entity_id": number} for number in range(len(gpus))]
        test["test_summary"] = {"status": "Pass"}
    document["entity_groups"][0]["entities"] = [
        {"device_id": "2335", "entity_id": number, "serial_num": gpu.serial}
        for number, gpu in enumerate(reversed(gpus))
    ]
    return document


def _tests(document: Document) -> list[Document]:
    return [test for part in document["DCGM Diagnostic"]["test_categories"] for test in part["tests"]]


def _result(document: Document, faulty: int, **changes: Any) -> Document:
    """Changes what the memory test says of one GPU of the plan."""
    memory = next(test for test in _tests(document) if test["name"] == "memory")
    memory["results"][len(memory["results"]) - 1 - faulty].update(changes)
    if changes.get("status") == "Fail":
        memory["test_summary"]["status"] = "Fail"
    return document


def _warned(severity: int) -> list[Document]:
    text = "A memory mismatch was detected on GPU 0, but no error was reported by CUDA."
    return [{"error_category": 10, "error_id": 33, "error_severity": severity, "warning": text}]


def _statuses(document: Document, status: str) -> Document:
    for test in _tests(document):
        for result in test["results"]:
            result["status"] = status
        test["test_summary"]["status"] = status
    return document


def _released(document: Document, release: str) -> Document:
    document["metadata"]["version"] = release
    return document


def _fewer(document: Document) -> Document:
    document["entity_groups"][0]["entities"].pop()
    for test in _tests(document):
        test["results"].pop()
    return document


def says(text: str, status: int = 0) -> str:
    return f"printf %s {shlex.quote(text)}\nexit {status}\n"


@dataclass(frozen=True)
class Opinion:
    """A program in dcgmi's place: its script, made of a good answer and the faulty GPU; None: there is none."""

    name: str
    script: Callable[[Document, int], str] | None
    code: str
    verdict: Verdict
    on_gpu: bool = False
    budget_s: float = BUDGET_S


def _json(change: Callable[[Document, int], Document], status: int = 0) -> Callable[[Document, int], str]:
    return lambda document, faulty: says(json.dumps(change(copy.deepcopy(document), faulty)), status)


OPINIONS: dict[str, Opinion] = {
    opinion.name: opinion
    for opinion in (
        Opinion("absent", None, "DCGM_MISSING", INCONCLUSIVE),
        Opinion(
            "host engine is not running",
            lambda _, __: says("Error: unable to establish a connection to the specified host: a", _NO_CONNECTION),
            "DCGM_MISSING", INCONCLUSIVE,
        ),
        Opinion("unknown release", _json(lambda d, _: _released(d, "5.0.1")), "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion("unknown status", _json(lambda d, s: _result(d, s, status="Maybe")), "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion("text and no json", lambda _, __: says("Successfully ran diagnostic for group."), "DCGM_UNKNOWN",
                INCONCLUSIVE),
        Opinion("half an answer", lambda d, _: says(json.dumps(d)[:-40]), "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion("no answer", lambda _, __: "exit 0\n", "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion("error status and nothing failed", _json(lambda d, _: d, _NVVS_ERROR), "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion("hangs", lambda _, __: "exec sleep 600\n", "DCGM_UNKNOWN", INCONCLUSIVE, budget_s=0.5),
        Opinion("is killed", lambda _, __: "kill -9 $$\n", "DCGM_UNKNOWN", INCONCLUSIVE),
        Opinion(
            "one gpu failed a test",
            _json(lambda d, s: _result(d, s, status="Fail", warnings=_warned(_ISOLATE)), _NVVS_ERROR),
            "DCGM_FAILED", FAIL, on_gpu=True,
        ),
        Opinion(
            "one gpu failed for a setting",
            _json(lambda d, s: _result(d, s, status="Fail", warnings=_warned(_CONFIG)), _NVVS_ERROR),
            "DCGM_FAILED", INCONCLUSIVE, on_gpu=True,
        ),
        # NVIDIA/DCGM issue 284: the error is there and the result is a pass.
        Opinion("passed with an error beside it", _json(lambda d, s: _result(d, s, warnings=_warned(_ISOLATE))),
                "DCGM_FAILED", INCONCLUSIVE, on_gpu=True),
        Opinion("everything was skipped", _json(lambda d, _: _statuses(d, "Skip")), "COVERAGE_LOW", INCONCLUSIVE),
        Opinion("knows one gpu less", _json(lambda d, _: _fewer(d)), "COVERAGE_LOW", INCONCLUSIVE),
    )
}  # fmt: skip
