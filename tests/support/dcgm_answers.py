"""Answers of dcgmi diag for tests: the recorded ones, and one in their shape in which all passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.engine_helpers import gpu

OUTPUTS = Path(__file__).with_name("dcgm_outputs")
NVVS_ERROR = 226  # DCGM_ST_NVVS_ERROR = -30
GPUS = tuple(gpu(index) for index in range(3))
Document = dict[str, Any]


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text(encoding="utf-8")


def answer(gpus: int = 3, release: str = "4.5.2", serials: bool = True) -> Document:
    """An answer of level 2 in which all passes, in the shape of the recorded ones."""

    def test(category: str, name: str) -> Document:
        results = [
            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": i, "status": "Pass", "info": ["fine"]}
            for i in range(gpus)
        ]
        summary = {"status": "Pass"}
        return {"category": category, "tests": [{"name": name, "results": results, "test_summary": summary}]}

    categories = [test("Deployment", "software"), test("Hardware", "memory"), test("Integration", "pcie")]
    # DCGM's numbers are its own: the last GPU of the plan is its first.
    entities = [
        {"device_id": "2330", "entity_id": i, "serial_num": f"S{gpus - 1 - i}" if serials else "<<<NOT_SUPPORTED>>>"}
        for i in range(gpus)
    ]
    return {
        "DCGM Diagnostic": {"test_categories": categories},
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": "580.82.09", "version": release},
    }


def results_of(document: Document, name: str) -> list[Document]:
    """The results of one test."""
    for category in document["DCGM Diagnostic"]["test_categories"]:
        for test in category["tests"]:
            if test["name"] == name:
                found: list[Document] = test["results"]
                return found
    raise AssertionError(name)


def spoil(document: Document, name: str, entity: int, status: str, *warnings: tuple[str, int]) -> None:
    """One GPU's result, and with it the test's summary, as DCGM writes them."""
    result = results_of(document, name)[entity]
    said = [
        {"error_category": 10, "error_id": 47, "error_severity": severity, "warning": text}
        for text, severity in warnings
    ]
    result.update(status=status, **({"warnings": said} if said else {}))
