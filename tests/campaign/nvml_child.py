"""A process that has the fake NVML library loaded and runs the real state check in it.

Started as `python -m tests.campaign.nvml_child`.

One JSON request a line: {"scenario": path, "options": {...}, "gpus": [...] | null}. The answer has the node as read,
or NVML's error, and with `gpus` (the plan's) also the result of the state check. The library reads the scenario again
at each nvmlInit, so one process serves many scenarios.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu_burnin.checks import REGISTRY, CheckContext
from gpu_burnin.engine.wire import result_from_json
from gpu_burnin.hardware import load_skus
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.telemetry import node_links
from gpu_burnin.telemetry.state import NodeState
from gpu_burnin.types import JSON, CheckResult, Gpu
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SCENARIO_VARIABLE = "MUSTER_FAKE_NVML_SCENARIO"


class NvmlChild:
    """The parent's side: `with NvmlChild(folder_of_the_library, scratch) as child`."""

    def __init__(self, library: Path, scratch: Path) -> None:
        self._scenario = scratch / "campaign.scenario"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.campaign.nvml_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def node(self, scenario: str) -> NodeState:
        """What NVML says of a scenario's node. Raises RuntimeError when NVML cannot be used."""
        answer = self._ask(scenario, None, {})
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}; the scenario was:\n{scenario}")
        return from_json(NodeState, answer["node"])

    def check(self, scenario: str, gpus: Sequence[Gpu], options: Mapping[str, JSON]) -> CheckResult:
        """The result of the state check of a plan with these GPUs and options."""
        return result_from_json(self._ask(scenario, gpus, options)["result"])

    def _ask(self, scenario: str, gpus: Sequence[Gpu] | None, options: Mapping[str, JSON]) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._scenario.write_text(scenario)
        request = {"scenario": str(self._scenario), "gpus": to_json(gpus), "options": dict(options)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from gpu_burnin.telemetry.nvml import NvmlUnavailableError, read_node

    os.environ[SCENARIO_VARIABLE] = request["scenario"]
    if request["gpus"] is None:
        try:
            return {"node": to_json(read_node())}
        except NvmlUnavailableError as error:
            return {"error": str(error)}
    gpus = tuple(Gpu(**gpu) for gpu in request["gpus"])
    options = {**request["options"], **_planned(request["options"])}
    context = CheckContext(seed=0, level="quick", budget_s=10.0, gpus=gpus, options=options)
    return {"result": to_json(REGISTRY["state"].run(context))}


def _planned(options: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """What a plan of the node as it is now would say of its NVLinks."""
    from gpu_burnin.telemetry.nvml import NvmlUnavailableError, read_node

    try:
        states = read_node().gpus
    except NvmlUnavailableError:
        return {}
    return {node_links.KEY: to_json(node_links.decide(states, expectations_of(options), load_skus()))}


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
