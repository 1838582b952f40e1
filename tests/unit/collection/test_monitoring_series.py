"""A node of 8 GPUs shows no more series than files/series.yaml declares: by the agent's and the burn-in's own pages."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from collections.abc import Callable

import jinja2
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.dcgm import COUNTER_TABLE

from gpu_burnin.hardware.xid import Runtime
from gpu_burnin.node.watch.numbers import Readings, page
from gpu_burnin.report.openmetrics import to_openmetrics
from gpu_burnin.telemetry.vitals import Vital, Vitals
from tests.support.sample_nodes import SAMPLES
from tests.support.series_budget import DECLARED, FLEET_NODES, FLEET_SERIES, NODE_SERIES, ROLE, kept, of_page, too_many

HOST_METRICS = ROLE.parent / "host_metrics"
GPUS = 8
CODE = """
import json
from dataclasses import asdict
from gpu_burnin.telemetry.nvml import Nvml
from gpu_burnin.telemetry.vitals import read_vitals
with Nvml() as nvml:
    print(json.dumps([asdict(gpu) for gpu in read_vitals(nvml).gpus]))
"""
# Boards with NVSwitches: what counts the links differs with NVLink 5.
BOARDS = {"NVLink 4": "model = h200-sxm\ngpus = 8\n", "NVLink 5": "model = h200-sxm\ngpus = 8\nnvlink_version = 7\n"}
# Each GPU of the node has had an XID of each.
CLASSES = (*Runtime, "unknown")


@pytest.fixture(params=BOARDS)
def agent(request: pytest.FixtureRequest, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Counter[str]:
    """What the agent of such a node writes, by its own readings of NVML."""
    done = run_python(BOARDS[request.param], CODE)
    assert done.returncode == 0, done.stderr
    gpus = tuple(Vital(**gpu) for gpu in json.loads(done.stdout))
    readings = Readings(
        Vitals("580", gpus, simulated=True, at_s=0),
        {"kernel_log": True, "nvml": True, "nvml_events": True},
        GPUS,
        {(gpu.pci_bus_id, kind): 1 for gpu in gpus for kind in CLASSES},
        {gpu.uuid: 18 for gpu in gpus},
        burning=True,
    )
    return of_page(page(readings, 0))


def test_an_agent_shows_what_is_declared_at_most(agent: Counter[str]) -> None:
    assert agent["gpu_burnin_watch_ecc_uncorrected_total"] == GPUS
    assert too_many("node", agent) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if name.endswith(f"-{GPUS}")))
def test_a_burnin_shows_what_is_declared_at_most(name: str) -> None:
    shown = of_page(to_openmetrics(SAMPLES[name]()[0]))
    assert shown["gpu_burnin_gpu_verdict"] == 3 * GPUS
    assert too_many("node", shown) == []


GROUPS = ("etcd", "kube_apiserver", "api_loadbalancer", "gpu_nodes", "system_nodes", "monitoring")


@pytest.mark.parametrize("group", GROUPS)
def test_a_host_has_no_more_units_and_certificates_than_are_declared(group: str) -> None:
    variables = yaml.safe_load((HOST_METRICS / "vars/main.yml").read_text())
    environment = jinja2.Environment()
    environment.filters["intersect"] = lambda one, other: [name for name in one if name in other]
    text = environment.from_string(variables["__host_metrics_units"]).render(
        group_names=[group], fleet_api_local_balancer=True, fleet_traffic={"all": "rest"}
    )
    units = ast.literal_eval(text.strip())
    files = variables["__host_metrics_certificates_of"]
    certificates = len(files["all"]) + len(files[group])
    shown = {
        "node_systemd_unit_state": len(units),
        "muster_certificate_expires_timestamp_seconds": certificates,
        "muster_certificate_issued_timestamp_seconds": certificates,
    }
    assert too_many("node", shown) == []


def test_dcgms_exporter_shows_what_is_declared_at_most() -> None:
    assert too_many("gpu", {counter.field: GPUS for counter in COUNTER_TABLE}) == []


@pytest.mark.slow
def test_what_a_node_shows_of_its_gpus_and_the_rest_as_declared_keep_the_budget(agent: Counter[str]) -> None:
    burnin = max((of_page(to_openmetrics(make()[0])) for name, make in SAMPLES.items() if name.endswith(f"-{GPUS}")),
                 key=lambda shown: kept("node", shown))  # fmt: skip
    rest = sum(entry["series"] for entry in DECLARED["node"] if not entry["names"].startswith("gpu_burnin_"))
    dcgm = kept("gpu", {counter.field: GPUS for counter in COUNTER_TABLE})
    series = kept("node", agent) + kept("node", burnin) + rest + dcgm
    assert series <= NODE_SERIES
    assert series * FLEET_NODES <= FLEET_SERIES


def test_more_than_is_declared_is_told_by_name() -> None:
    page = b'# HELP node_load1 x\nnode_load1{a="1"} 1\nnode_load1{a="2"} 1\nnode_load5 1\n'
    shown = of_page(page)
    assert shown == {"node_load1": 2, "node_load5": 1}
    assert kept("node", shown) == 2
    assert too_many("node", shown) == ["node_load1: 2 series are shown, 1 are declared"]
