"""Which NVLinks a node should have: each shape through the fake NVML, the decision, the state check, and what nvlink
and nccl make of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.nccl.judge import multicast_expected
from gpu_burnin.checks.state.check import expected_from
from gpu_burnin.checks.state.node import judge_state
from gpu_burnin.checks.state.rules import Expected
from gpu_burnin.hardware import Sku, load_skus
from gpu_burnin.node.prepare import RunOptions, plan_options
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.telemetry import discover as discovery
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.telemetry.node_links import GpuLinks, NodeLinks, Source, absent, by_model, decide, node_links_of
from gpu_burnin.telemetry.pci import switch_addresses
from gpu_burnin.telemetry.state import GpuState, NodeState, Unsupported, to_gpu
from tests.support.clocks import PATIENCE_S
from tests.support.telemetry_helpers import NOT_SUPPORTED, healthy, in_any_slot, pci_device

Run = Callable[..., subprocess.CompletedProcess[str]]
SXM = "model = h100-sxm\n"
# Cards with bridges, and a board of another generation, that the fake has no model for.
NVL = "name = NVIDIA H100 NVL\npci_device_id = 0x2321\npci_subsystem_id = 0x1839\nmemory_bytes = 100931731456\n"
PCIE = "name = NVIDIA H100 PCIe\npci_device_id = 0x2331\npci_subsystem_id = 0x1626\nmemory_bytes = 85899345920\n"
L40S = "name = NVIDIA L40S\npci_device_id = 0x26B9\npci_subsystem_id = 0x1851\nmemory_bytes = 51539607552\n"
NO_FABRIC = "fabric_state = 0\n"
DARK_18 = "nvlink_down = " + ", ".join(map(str, range(18))) + "\n"

# Scenario, expectations, codes of the state check by GPU index (None: the node), GPUs that talk over NVLink, source.
SHAPES: dict[str, tuple[str, Expectations, list[tuple[str, int | None]], bool, Source]] = {
    "1 of a board, linked (a container)": (SXM + "gpus = 1\n", Expectations(), [], True, Source.MODEL),
    "1 of a board, no links": (
        SXM + "gpus = 1\nnvlink_links = 0\n" + NO_FABRIC, Expectations(), [], False, Source.SHAPE,
    ),
    "1 of a board, all links inactive": (
        SXM + "gpus = 1\n" + DARK_18 + NO_FABRIC, Expectations(), [], False, Source.SHAPE,
    ),
    "1 of a board, no links, fabric not known to the driver": (
        SXM + "gpus = 1\nnvlink_links = 0\nerror.nvmlDeviceGetGpuFabricInfoV = not_supported\n",
        Expectations(), [], False, Source.SHAPE,
    ),
    "1 of a board, no links, but a fabric waits for it": (
        SXM + "gpus = 1\n" + DARK_18 + "fabric_state = 2\n",
        Expectations(), [("NVLINK_DOWN", 0), ("FABRIC_NOT_READY", 0)], True, Source.MODEL,
    ),
    "1 of a board, where 8 are expected": (
        SXM + "gpus = 1\n" + DARK_18, Expectations(gpus=8),
        [("GPU_COUNT", None), ("NVLINK_DOWN", 0)], True, Source.MODEL,
    ),
    "1 of a board, no links, and the operator says that it has them": (
        SXM + "gpus = 1\nnvlink_down = 3\n" + NO_FABRIC, Expectations(nvlink_links=18),
        [("NVLINK_DOWN", 0), ("FABRIC_NOT_READY", 0)], True, Source.EXPECTATION,
    ),
    "2 of a board, no links": (
        SXM + "gpus = 2\n" + DARK_18, Expectations(), [("NVLINK_DOWN", 0), ("NVLINK_DOWN", 1)], True, Source.MODEL,
    ),
    "4 linked directly": (SXM + "gpus = 4\n" + NO_FABRIC, Expectations(), [], True, Source.SHAPE),
    "4 linked directly, one without": (
        SXM + "gpus = 4\n" + NO_FABRIC + "gpu2." + DARK_18, Expectations(), [("NVLINK_DOWN", 2)], True, Source.SHAPE,
    ),
    "4 of a board in a fabric": (SXM + "gpus = 4\n", Expectations(), [], True, Source.MODEL),
    "8": (SXM + "gpus = 8\n", Expectations(), [], True, Source.MODEL),
    "8, one without links": (
        SXM + "gpus = 8\ngpu5." + DARK_18, Expectations(), [("NVLINK_DOWN", 5)], True, Source.MODEL,
    ),
    "8, one that reports no links": (
        SXM + "gpus = 8\ngpu5.nvlink_links = 0\n", Expectations(), [("NVLINK_DOWN", 5)], True, Source.MODEL,
    ),
    "8, one lost": (SXM + "gpus = 8\ngpu3.lost = calls\n", Expectations(), [("GPU_LOST", 3)], True, Source.MODEL),
    "8, none with links": (
        SXM + "gpus = 8\n" + DARK_18, Expectations(), [("NVLINK_DOWN", n) for n in range(8)], True, Source.MODEL,
    ),
    "8, none with links, as the operator says": (
        SXM + "gpus = 8\n" + DARK_18 + NO_FABRIC, Expectations(nvlink_links=0), [], False, Source.EXPECTATION,
    ),
    "8 without fabric": (
        SXM + "gpus = 8\n" + NO_FABRIC, Expectations(), [("FABRIC_NOT_READY", n) for n in range(8)], True, Source.MODEL,
    ),
    "8 in MIG mode, as the operator says": (
        SXM + "gpus = 8\nmig_current = yes\nmig_pending = yes\n" + DARK_18,
        Expectations(mig=True), [], False, Source.EXPECTATION,
    ),
    "1 card without a bridge": (NVL + "gpus = 1\n" + DARK_18 + NO_FABRIC, Expectations(), [], False, Source.SHAPE),
    "2 cards without bridges": (
        NVL + "gpus = 2\nnvlink_links = 0\n" + NO_FABRIC, Expectations(), [], False, Source.SHAPE,
    ),
    "2 bridged cards": (NVL + "gpus = 2\nnvlink_links = 12\n" + NO_FABRIC, Expectations(), [], True, Source.SHAPE),
    "2 bridged cards of a model that mostly has none": (
        PCIE + "gpus = 2\nnvlink_links = 12\n" + NO_FABRIC, Expectations(), [], True, Source.SHAPE,
    ),
    "2 bridged cards, one link down": (
        PCIE + "gpus = 2\nnvlink_links = 12\ngpu1.nvlink_down = 3\n" + NO_FABRIC,
        Expectations(), [("NVLINK_DOWN", 1)], True, Source.SHAPE,
    ),
    "2 bridged cards, one end dark": (
        NVL + "gpus = 2\nnvlink_links = 12\ngpu0." + DARK_18 + NO_FABRIC,
        Expectations(), [("NVLINK_DOWN", 0)], True, Source.SHAPE,
    ),
    "2 cards without the bridge that the operator expects": (
        NVL + "gpus = 2\nnvlink_links = 12\n" + DARK_18 + NO_FABRIC,
        Expectations(nvlink_links=12), [("NVLINK_DOWN", 0), ("NVLINK_DOWN", 1)], True, Source.EXPECTATION,
    ),
    "4 cards, 2 bridged": (
        NVL + "gpus = 4\nnvlink_links = 12\ngpu2." + DARK_18 + "gpu3." + DARK_18 + NO_FABRIC,
        Expectations(), [], False, Source.SHAPE,
    ),
    "4 cards, 3 with links": (
        NVL + "gpus = 4\nnvlink_links = 12\ngpu2." + DARK_18 + NO_FABRIC,
        Expectations(), [("NVLINK_DOWN", 2)], False, Source.SHAPE,
    ),
    "4 cards, 1 with links": (
        NVL + "gpus = 4\nnvlink_links = 12\n" + "".join(f"gpu{n}.{DARK_18}" for n in range(3)) + NO_FABRIC,
        Expectations(), [("NVLINK_DOWN", None)], False, Source.SHAPE,
    ),
    "8 cards that never have NVLink": (
        L40S + "gpus = 8\nnvlink_links = 0\npcie_max_generation = 4\n" + NO_FABRIC,
        Expectations(), [], False, Source.MODEL,
    ),
}  # fmt: skip

READ = """
import json, os, sys
from gpu_burnin.telemetry.nvml import read_node
from gpu_burnin.system.codec import to_json, from_json
path, found = os.environ["MUSTER_FAKE_NVML_SCENARIO"], {}
for name, text in json.load(sys.stdin).items():
    with open(path, "w") as scenario:
        scenario.write(text)
    found[name] = to_json(read_node())
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def shapes(fake_nvml: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, NodeState]:
    """Each shape as unmodified nvidia-ml-py and gpu_burnin read it, all in one process."""
    import os
    import sys

    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(fake_nvml),
            "MUSTER_FAKE_NVML_SCENARIO": str(tmp_path_factory.mktemp("shapes") / "scenario"),
            "PYTHONPATH": str(root),
        },
        input=json.dumps({name: shape[0] for name, shape in SHAPES.items()}),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: from_json(NodeState, node) for name, node in json.loads(done.stdout).items()}


def found_of(node: NodeState, **changes: Any) -> Found:
    """What a run finds on that node."""
    gpus = tuple(to_gpu(state, sku.key if (sku := model(state)) else "") for state in node.gpus)
    return replace(Found(gpus=gpus, simulated=False, states=node.gpus), **changes)


def model(state: GpuState) -> Sku | None:
    return load_skus().find(state.pci_device_id, state.pci_subsystem_id)


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_judged_for_what_it_is(name: str, shapes: Mapping[str, NodeState]) -> None:
    _, said, codes, joined, source = SHAPES[name]
    node = shapes[name]
    found = found_of(node)
    options = plan_options(RunOptions(config=Config(expect=said)), found)
    expected, _ = expected_from(options, found.gpus, frozenset())
    index = {gpu.uuid: gpu.index for gpu in found.gpus}
    reasons = judge_state(node.gpus, replace(expected, host_links=in_any_slot(*node.gpus)))
    assert [(reason.code, index.get(reason.gpu or "")) for reason in reasons] == codes
    links = node_links_of(options)
    assert links == expected.links and links.source is source, links.why
    # nvlink and nccl agree with it.
    ranks = {state.uuid: model(state) for state in node.gpus}
    assert links.joined(ranks) is joined
    board = any(sku.fabric for sku in ranks.values() if sku)
    assert all(links.of(uuid, sku).to_all is (board and joined) for uuid, sku in ranks.items())
    assert multicast_expected(ranks, links) is (joined and board and len(ranks) > 2 and "directly" not in name)
    judged_by_floor = all(links.why_no_floor(uuid, sku) is None for uuid, sku in ranks.items())
    assert judged_by_floor is all(links.of(uuid, sku) == by_model(sku) for uuid, sku in ranks.items())
    told = absent(links, found.gpus, load_skus())
    fewer = any(links.of(uuid, sku).links < (sku.nvlink_links if sku else 0) for uuid, sku in ranks.items())
    assert (told is not None) is (fewer and source is Source.SHAPE)
    assert told is None or told.code == "NVLINK_ABSENT"


def alone(**changes: Any) -> GpuState:
    """One GPU of a board that shows no NVLink."""
    return healthy(0, **{"nvlink_active": NOT_SUPPORTED, "nvlink_inactive": NOT_SUPPORTED, "fabric_state": 0} | changes)


@pytest.mark.parametrize(
    ("state", "node", "links"),
    [
        (alone(), {}, 0),
        (alone(fabric_state=NOT_SUPPORTED), {}, 0),
        (alone(fabric_state=3), {}, 0),
        (alone(), {"on_bus": 1}, 0),
        (alone(), {"on_bus": 8}, 18),
        (alone(), {"switches": 4}, 18),
        (alone(fabric_state=1), {}, 18),
        (alone(fabric_state=3, fabric_status=999), {}, 18),
        # What could not be read is no word for a machine without NVLink.
        (alone(nvlink_active=Unsupported("unknown")), {}, 18),
        (alone(fabric_state=Unsupported("timeout")), {}, 18),
    ],
)
def test_only_what_shows_no_sign_of_nvlink_is_a_machine_without(
    state: GpuState, node: dict[str, int], links: int
) -> None:
    decided = decide((state,), Expectations(), load_skus(), **node)
    assert decided.gpus[state.uuid].links == links
    assert ("no NVLink" in decided.why) is (links == 0)
    codes = [reason.code for reason in judge_state((state,), Expected(links=decided, host_links=in_any_slot(state)))]
    assert (codes == []) is (links == 0), codes


def test_switches_on_the_bus_mean_a_fabric() -> None:
    silent = [healthy(index, fabric_state=0) for index in range(4)]
    assert not decide(silent, Expectations(), load_skus()).gpus["GPU-0000"].switched
    assert decide(silent, Expectations(), load_skus(), switches=6).gpus["GPU-0000"].switched
    assert decide(silent, Expectations(), load_skus(), on_bus=8).gpus["GPU-0000"].switched


def test_a_card_whose_links_could_not_be_read_is_not_one_without() -> None:
    h100_nvl = {"pci_device_id": 0x232110DE, "pci_subsystem_id": 0x183910DE, "memory_bytes": 100931731456}
    blind = healthy(0, nvlink_active=Unsupported("unknown"), **h100_nvl)
    dark = healthy(1, nvlink_active=(), nvlink_inactive=tuple(range(12)), **h100_nvl)
    links = decide((blind, dark), Expectations(), load_skus())
    assert [links.gpus[state.uuid].links for state in (blind, dark)] == [12, 0]
    expected = Expected(links=links, host_links=in_any_slot(blind, dark))
    assert [reason.code for reason in judge_state((blind, dark), expected)] == ["UNSUPPORTED_FIELD"]


def test_a_decision_travels_whole() -> None:
    links = NodeLinks({"GPU-1": GpuLinks(12, True, False)}, Source.SHAPE, "bridges", ("GPU-2",))
    assert node_links_of({"node_links": json.loads(json.dumps(to_json(links)))}) == links
    assert node_links_of({}) == NodeLinks()


def test_the_bus_is_asked_for_gpus_and_switches_only_on_real_hardware(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pci_device(tmp_path, "0000:05:00.0", **{"class": "0x068000"})
    pci_device(tmp_path, "0000:06:00.0", **{"class": "0x068000", "vendor": "0x8086"})
    pci_device(tmp_path, "0000:10:00.0")
    assert switch_addresses(tmp_path) == ("0000:05:00.0",)
    monkeypatch.setattr(discovery, "gpu_addresses", lambda: ("a", "b"))
    monkeypatch.setattr(discovery, "switch_addresses", lambda: ("c",))
    for simulated, counts in ((False, (2, 1)), (True, (0, 0))):
        node = NodeState(simulated, "580.95.05", "13.0", "13.580", (healthy(0),))
        monkeypatch.setattr(discovery, "read_inventory_in_child", lambda timeout_s, node=node: node)
        found = discovery.discover()
        assert (found.on_bus, found.switches) == counts
        assert found.states == node.gpus
