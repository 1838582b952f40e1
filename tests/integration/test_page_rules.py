"""What the rules for pages make of the series of a small fleet (the real promtool).

Only here: the value of every record for pages, computed by promtool.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.lab.image import ensure_image

from .prometheus import readings

RULES = Path(__file__).resolve().parents[2] / "roles" / "fleet_monitoring" / "files" / "rules" / "pages.yml"
_DAY_S = 86400
# Two hours of readings each 30 s; time begins at 0, so at the end it is 7200 s.
_END = "2h"
_STEPS = 240


def _traffic(host: str, direction: str, path: str, family: str) -> str:
    labels = f'class="internet",direction="{direction}",path="{path}",family="{family}"'
    return f'muster_node_traffic_bytes_total{{instance="{host}",{labels}}}'


SERIES: Mapping[str, str] = {
    'up{job="node",instance="gpu-1"}': "1",
    'up{job="node",instance="gpu-2"}': "0",
    'up{job="etcd",instance="etcd-1"}': "1",
    'ALERTS{alertname="MusterHostDown",severity="ticket",alertstate="firing",instance="gpu-2"}': "1",
    'ALERTS{alertname="MusterHostDown",severity="ticket",alertstate="firing",instance="gpu-3"}': "1",
    'ALERTS{alertname="MusterDiskFull",severity="ticket",alertstate="pending",instance="gpu-1"}': "1",
    'node_systemd_unit_state{instance="gpu-1",name="a.service",state="failed"}': "1",
    'node_systemd_unit_state{instance="gpu-1",name="b.service",state="failed"}': "0",
    'node_filesystem_avail_bytes{instance="gpu-1",mountpoint="/"}': "9",
    'node_filesystem_size_bytes{instance="gpu-1",mountpoint="/"}': "100",
    'node_filesystem_avail_bytes{instance="gpu-1",mountpoint="/var"}': "10",
    'node_filesystem_size_bytes{instance="gpu-1",mountpoint="/var"}': "100",
    # Wrong in two ways, and one host; right; not synchronised.
    'node_time_seconds{instance="gpu-1"}': "-1.5+30",
    'node_timex_sync_status{instance="gpu-1"}': "0",
    'node_time_seconds{instance="gpu-2"}': "1+30",
    'node_timex_sync_status{instance="gpu-2"}': "1",
    'node_time_seconds{instance="gpu-3"}': "0+30",
    'node_timex_sync_status{instance="gpu-3"}': "0",
    # Wrong, of a host that does not tell whether it is synchronised; and right.
    'node_time_seconds{instance="etcd-1"}': "-1.5+30",
    'node_time_seconds{instance="etcd-2"}': "0+30",
    'muster_certificate_expires_timestamp_seconds{group="gpu_nodes",instance="gpu-1",file="a"}': "8200",
    'muster_certificate_expires_timestamp_seconds{group="gpu_nodes",instance="gpu-2",file="a"}': "7300",
    _traffic("gpu-1", "in", "own", "ipv4"): "0+300",
    _traffic("gpu-1", "in", "pods", "ipv6"): "0+600",
    _traffic("gpu-2", "in", "own", "ipv4"): "0+30",
    _traffic("gpu-2", "out", "own", "ipv4"): "0+60",
    'DCGM_FI_DEV_GPU_TEMP{instance="gpu-1",gpu="0",modelName="H100"}': "40",
    'DCGM_FI_DEV_GPU_TEMP{instance="gpu-1",gpu="1",modelName="H100"}': "60",
    'DCGM_FI_DEV_GPU_TEMP{instance="gpu-2",gpu="0",modelName="B200"}': "90",
    'DCGM_FI_DEV_XID_ERRORS{instance="gpu-1",gpu="0"}': "0",
    'DCGM_FI_DEV_XID_ERRORS{instance="gpu-1",gpu="1"}': "79",
    'DCGM_FI_DEV_XID_ERRORS{instance="gpu-2",gpu="0"}': "79",
    'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{instance="gpu-1",gpu="0"}': "0",
    'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{instance="gpu-1",gpu="1"}': "5",
    'DCGM_FI_DEV_ROW_REMAP_PENDING{instance="gpu-1",gpu="0"}': "1",
    'DCGM_FI_DEV_ROW_REMAP_PENDING{instance="gpu-1",gpu="1"}': "1",
    'DCGM_FI_DEV_ROW_REMAP_FAILURE{instance="gpu-1",gpu="0"}': "0",
    # Heat, both kinds at once; the power limit alone; the power brake.
    'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{instance="gpu-1",gpu="0"}': str(0x20 | 0x40),
    'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{instance="gpu-1",gpu="1"}': str(0x04),
    'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{instance="gpu-2",gpu="0"}': str(0x80 | 0x04),
    'DCGM_FI_DEV_POWER_USAGE{instance="gpu-1",gpu="0"}': "100",
    'DCGM_FI_DEV_POWER_USAGE{instance="gpu-1",gpu="1"}': "650",
    'DCGM_FI_DEV_GPU_UTIL{instance="gpu-1",gpu="0"}': "0",
    'DCGM_FI_DEV_GPU_UTIL{instance="gpu-1",gpu="1"}': "100",
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance="gpu-1",gpu="0"}': "0.25",
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance="gpu-1",gpu="1"}': "0.75",
    'gpu_burnin_verdict{instance="gpu-1",verdict="PASS"}': "1",
    'gpu_burnin_verdict{instance="gpu-1",verdict="FAIL"}': "0",
    'gpu_burnin_verdict{instance="gpu-2",verdict="PASS"}': "0",
    'gpu_burnin_verdict{instance="gpu-2",verdict="FAIL"}': "1",
    'gpu_burnin_gpu_verdict{instance="gpu-1",gpu="a",verdict="PASS"}': "1",
    'gpu_burnin_gpu_verdict{instance="gpu-1",gpu="b",verdict="PASS"}': "1",
    'gpu_burnin_gpu_verdict{instance="gpu-2",gpu="c",verdict="FAIL"}': "1",
    'gpu_burnin_finished_timestamp_seconds{instance="gpu-1"}': "6200",
    'gpu_burnin_finished_timestamp_seconds{instance="gpu-2"}': str(7200 - 40 * _DAY_S),
    # Two GPUs of a node with one code are one node.
    'gpu_burnin_reasons{instance="gpu-2",code="HBM_WRONG",gpu="c"}': "3",
    'gpu_burnin_reasons{instance="gpu-2",code="HBM_WRONG",gpu="d"}': "1",
    'gpu_burnin_simulated{instance="gpu-1"}': "0",
    'gpu_burnin_simulated{instance="gpu-2"}': "1",
    'gpu_burnin_info{instance="gpu-1",run_id="a",version="1",driver="580",level="full"}': "1",
    'gpu_burnin_info{instance="gpu-2",run_id="b",version="1",driver="580",level="full"}': "1",
    'etcd_network_peer_round_trip_time_seconds_bucket{instance="etcd-1",group="etcd",To="x",le="0.1"}': "0+10",
    'etcd_network_peer_round_trip_time_seconds_bucket{instance="etcd-1",group="etcd",To="x",le="0.2"}': "0+20",
    'etcd_network_peer_round_trip_time_seconds_bucket{instance="etcd-1",group="etcd",To="x",le="+Inf"}': "0+20",
    'apiserver_request_total{instance="api-1",code="200",verb="GET"}': "0+60",
    'apiserver_request_total{instance="api-1",code="200",verb="LIST"}': "0+30",
    'apiserver_request_total{instance="api-1",code="429",verb="GET"}': "0+15",
    'coredns_dns_responses_total{instance="api-1",rcode="NOERROR"}': "0+30",
    'coredns_dns_responses_total{instance="api-1",rcode="SERVFAIL"}': "0+10",
    'coredns_dns_responses_total{instance="api-2",rcode="NOERROR"}': "0+30",
    'haproxy_frontend_current_sessions{instance="lb-1",proxy="kube-apiserver"}': "50",
    'haproxy_frontend_limit_sessions{instance="lb-1",proxy="kube-apiserver"}': "200",
    'muster_admitter_leader{instance="api-1"}': "1",
    'muster_admitter_leader{instance="api-2"}': "0",
    'muster_admitter_joins_total{instance="api-1"}': "0+3",
    # One each 30 s.
    'muster_admitter_transitions_total{instance="api-1",from="ready",to="suspect",code="XID_79"}': "0+1",
    'muster_admitter_transitions_total{instance="api-1",from="testing",to="ready",code="PASSED"}': "0+2",
}
EXPECTED: Mapping[str, Mapping[str, float]] = {
    "muster:hosts:total": {"{}": 2},
    "muster:hosts_down:total": {"{}": 1},
    "muster:targets_down": {'{job="node"}': 1, '{job="etcd"}': 0},
    "muster:alerts_firing": {'{alertname="MusterHostDown",severity="ticket"}': 2},
    "muster:units_failed:total": {"{}": 1},
    "muster:disks_full:total": {"{}": 1},
    "muster:clocks_off:total": {"{}": 3},
    "muster:certificate_left_seconds:min": {'{group="gpu_nodes"}': 100},
    "muster:traffic_bits:rate5m": {
        '{class="internet",direction="in"}': 248,
        '{class="internet",direction="out"}': 16,
    },
    "muster:gpus": {'{modelName="H100"}': 2, '{modelName="B200"}': 1},
    "muster:gpu_celsius": {'{quantile="0.5"}': 60, '{quantile="0.99"}': 89.4, '{quantile="1"}': 90},
    "muster:gpus_with_xid:total": {"{}": 2},
    "muster:gpus_with_xid": {'{xid="79"}': 2},
    "muster:gpus_ecc_uncorrected:total": {"{}": 1},
    "muster:gpus_remap": {'{remap="pending"}': 2, '{remap="failed"}': 0},
    "muster:gpus_throttled": {'{reason="thermal"}': 1, '{reason="power"}': 1},
    "muster:gpu_watts:total": {"{}": 750},
    "muster:gpu_busy:avg": {"{}": 0.5},
    "muster:gpu_tensor:avg": {"{}": 0.5},
    "muster:burnin_nodes": {'{verdict="PASS"}': 1, '{verdict="FAIL"}': 1},
    "muster:burnin_gpus": {'{verdict="PASS"}': 2, '{verdict="FAIL"}': 1},
    "muster:burnin_age_seconds": {
        '{quantile="0.5"}': (1000 + 40 * _DAY_S) / 2,
        '{quantile="0.99"}': 1000 + 0.99 * (40 * _DAY_S - 1000),
        '{quantile="1"}': 40 * _DAY_S,
    },
    "muster:burnin_older": {'{days="7"}': 1, '{days="30"}': 1, '{days="90"}': 0},
    "muster:burnin_ended_in_1h": {'{verdict="PASS"}': 1, '{verdict="FAIL"}': 0},
    "muster:burnin_reason_nodes": {'{code="HBM_WRONG"}': 1},
    "muster:burnin_simulated:total": {"{}": 1},
    "muster:burnin_versions": {'{version="1",driver="580",level="full"}': 2},
    "muster:etcd_peer_seconds:p99": {'{instance="etcd-1",group="etcd"}': 0.198},
    "muster:api_requests_by_code:rate5m": {
        '{instance="api-1",code="200"}': 3,
        '{instance="api-1",code="429"}': 0.5,
    },
    "muster:dns_errors:share": {'{instance="api-1"}': 0.25, '{instance="api-2"}': 0},
    "muster:balancer_sessions:share": {'{instance="lb-1",proxy="kube-apiserver"}': 0.25},
    "muster:admitter_leaders:total": {"{}": 1},
    "muster:joins:increase1h": {"{}": 360},
    "muster:transitions:increase1h": {'{from="ready",to="suspect"}': 120, '{from="testing",to="ready"}': 240},
    "muster:taken_from_work:increase1h": {'{code="XID_79"}': 120},
}


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Debian's, from the root file system of the lab's hosts."""
    return ensure_image() / "usr" / "bin" / "promtool"


def test_each_record_has_the_value_that_its_name_says(promtool: Path, tmp_path: Path) -> None:
    tests = [
        {
            # A thousandth is enough: what is interpolated is not exact.
            "expr": f"round({record}, 0.001)",
            "eval_time": _END,
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
        }
        for record, samples in EXPECTED.items()
    ]
    file = {"interval": "30s", "input_series": readings(SERIES, _STEPS), "promql_expr_test": tests}
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [file]})
    )

    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_no_record_is_without_a_value() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["record"] for rule in rules} == set(EXPECTED)


def test_nothing_is_recorded_twice() -> None:
    seen: list[tuple[str, str]] = []
    for path in RULES.parent.glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            seen += [
                (rule["record"], json.dumps(rule.get("labels", {}), sort_keys=True))
                for rule in group["rules"]
                if "record" in rule
            ]
            seen += [("expression", rule["expr"]) for rule in group["rules"] if "record" in rule]
    assert len(seen) == len(set(seen))
