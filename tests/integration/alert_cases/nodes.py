"""Alerts of hosts and what runs on them."""

from __future__ import annotations

from .case import E1, GPU, Case

_GPU_SILENT = {'up{job="gpu",instance="gpu-1"}': "0x60"}
_RUNNING = 'gpu_burnin_watch_burnin_running{instance="gpu-1"}'
_TIME, _SYNCHRONISED = 'node_time_seconds{instance="gpu-1"}', 'node_timex_sync_status{instance="gpu-1"}'
_BURNING = {_RUNNING: "1x60"}
_LAST_LOOK = 'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}'

_SESSION = 'muster_pod_network_bgp_session_timestamp_seconds{instance="gpu-1"}'
_TRAFFIC_LIMIT = 'muster_node_traffic_limit_bits_per_second{instance="gpu-1",class="internet"}'


def _traffic(direction: str, path: str, family: str) -> str:
    labels = f'class="internet",direction="{direction}",path="{path}",family="{family}"'
    return f'muster_node_traffic_bytes_total{{instance="gpu-1",{labels}}}'


CASES = (
    Case(
        "MusterPlaceDown",
        {
            'up{job="node",instance="gpu-1",rack="r1"}': "0x60",
            'up{job="node",instance="gpu-2",rack="r1"}': "0x60",
            'up{job="node",instance="gpu-3",rack="r1"}': "1x60",
        },
        {
            'up{job="node",instance="gpu-1",rack="r1"}': "0x60",
            'up{job="node",instance="gpu-2",rack="r1"}': "1x60",
            'up{job="node",instance="gpu-3",rack="r1"}': "1x60",
        },
        "2m",
        "66.67% of the hosts of rack r1 do not answer.",
        {"rack": "r1", "place": "rack", "name": "r1"},
    ),
    Case(
        "MusterHostDown",
        {'up{job="node",instance="gpu-1"}': "0x60"},
        {'up{job="node",instance="gpu-1"}': "1x60"},
        "90s",
        "gpu-1 does not answer its monitoring.",
        {**GPU, "job": "node", "severity": "ticket"},
    ),
    # A machine that the scaler has switched off is missed by nobody, also while the next scaler stands for election.
    Case(
        "MusterHostDown",
        {'up{job="node",instance="gpu-1"}': "0x60"},
        {
            'up{job="node",instance="gpu-1"}': "0x60",
            'muster_scaler_leader{instance="api-1"}': "1x10 0x50",
            'muster_scaler_off{instance="api-1",node="gpu-1"}': "1x10 _x50",
        },
        "90s",
        "gpu-1 does not answer its monitoring.",
        {**GPU, "job": "node", "severity": "ticket"},
        not_replayed="the host stands in a label of another one's numbers, and is off by what these were before",
    ),
    # Nobody else wakes somebody for it: the page of what runs there is held back.
    *(
        Case(
            "MusterHostDown",
            {f'up{{job="node",instance="etcd-1",group="{group}"}}': "0x60"},
            {f'up{{job="node",instance="etcd-1",group="{group}"}}': "1x60"},
            "90s",
            "etcd-1 does not answer its monitoring.",
            {**E1, "job": "node", "group": group, "severity": severity},
        )
        for group, severity in (
            ("etcd", "page"),
            ("etcd_events", "page"),
            ("kube_apiserver", "page"),
            ("gpu_nodes", "ticket"),
        )
    ),
    Case(
        "MusterExporterDown",
        {'up{job="gpu",instance="gpu-1"}': "0x60"},
        {'up{job="gpu",instance="gpu-1"}': "1x60"},
        "3m",
        "gpu-1 answers, and shows no numbers of gpu.",
        {**GPU, "job": "gpu"},
    ),
    # It pauses for a burn-in, also a long one, and not for one that an agent told of which is gone.
    Case(
        "MusterExporterDown",
        _GPU_SILENT | _BURNING | {_LAST_LOOK: "0+30x10 300x50"},
        _GPU_SILENT | _BURNING | {_LAST_LOOK: "0+30x60"},
        "15m",
        "gpu-1 answers, and shows no numbers of gpu.",
        {**GPU, "job": "gpu"},
    ),
    # An exporter that does not come back after it.
    Case(
        "MusterExporterDown",
        _GPU_SILENT | {**_BURNING, _RUNNING: "1x11 0x49", _LAST_LOOK: "0+30x60"},
        {'up{job="gpu",instance="gpu-1"}': "0x11 1x49", **_BURNING, _LAST_LOOK: "0+30x60"},
        "9m",
        "gpu-1 answers, and shows no numbers of gpu.",
        {**GPU, "job": "gpu"},
    ),
    *(
        Case(
            "MusterExporterDown",
            {f'up{{job="{job}",instance="gpu-1"}}': "0x60"},
            {f'up{{job="{job}",instance="gpu-1"}}': "1x60"},
            "3m",
            f"gpu-1 answers, and shows no numbers of {job}.",
            {**GPU, "job": job},
        )
        for job in ("dns", "balancer")
    ),
    Case(
        "MusterNodeDnsDown",
        {'up{job="node_dns",instance="gpu-1"}': "0x60"},
        {'up{job="node_dns",instance="gpu-1"}': "0x1 1x59"},
        "3m",
        "gpu-1 answers, and its name server does not: its pods ask those of the API servers' hosts.",
        {**GPU, "job": "node_dns"},
    ),
    Case(
        "MusterPodRoutesNoSession",
        {_SESSION: "0x60"},
        {_SESSION: "0+30x60"},
        "7m",
        "gpu-1 has no BGP session, or nobody has looked for five minutes: it hears of no new node's pods.",
        GPU,
    ),
    Case(
        "MusterNodeDnsUpstreams",
        {'coredns_forward_healthcheck_broken_total{job="node_dns",instance="gpu-1"}': "0+3x60"},
        # Those of the API servers' hosts are told of otherwise.
        {
            'coredns_forward_healthcheck_broken_total{job="node_dns",instance="gpu-1"}': "7x60",
            'coredns_forward_healthcheck_broken_total{job="dns",instance="api-1"}': "0+3x60",
        },
        "12m",
        "Pods of gpu-1 ask for names, and none of the servers that know them answers its name server.",
        {**GPU, "job": "node_dns"},
    ),
    Case(
        "MusterUnitFailed",
        {'node_systemd_unit_state{instance="gpu-1",name="kubelet.service",state="failed"}': "1x60"},
        {'node_systemd_unit_state{instance="gpu-1",name="kubelet.service",state="failed"}': "0x60"},
        "2m",
        "kubelet.service on gpu-1 has failed.",
        {**GPU, "name": "kubelet.service", "state": "failed"},
    ),
    Case(
        "MusterDiskFull",
        {
            'node_filesystem_avail_bytes{instance="gpu-1",mountpoint="/var"}': "5e9x60",
            'node_filesystem_size_bytes{instance="gpu-1",mountpoint="/var"}': "1e11x60",
            'node_filesystem_readonly{instance="gpu-1",mountpoint="/var"}': "0x60",
        },
        {
            'node_filesystem_avail_bytes{instance="gpu-1",mountpoint="/var"}': "5e10x60",
            'node_filesystem_size_bytes{instance="gpu-1",mountpoint="/var"}': "1e11x60",
            'node_filesystem_readonly{instance="gpu-1",mountpoint="/var"}': "0x60",
        },
        "6m",
        "/var on gpu-1 has 5% left.",
        {**GPU, "mountpoint": "/var"},
    ),
    Case(
        "MusterDiskReadOnly",
        {'node_filesystem_readonly{instance="etcd-1",mountpoint="/var/lib/etcd"}': "1x60"},
        {'node_filesystem_readonly{instance="etcd-1",mountpoint="/var/lib/etcd"}': "0x60"},
        "2m",
        "/var/lib/etcd on etcd-1 is read-only: the kernel has found an error on it.",
        {**E1, "mountpoint": "/var/lib/etcd"},
    ),
    Case(
        "MusterMemoryLow",
        {
            'node_memory_MemAvailable_bytes{instance="gpu-1"}': "1e9x60",
            'node_memory_MemTotal_bytes{instance="gpu-1"}': "1e11x60",
            'node_pressure_memory_stalled_seconds_total{instance="gpu-1"}': "0+15x60",
        },
        {
            'node_memory_MemAvailable_bytes{instance="gpu-1"}': "1e9x60",
            'node_memory_MemTotal_bytes{instance="gpu-1"}': "1e11x60",
            'node_pressure_memory_stalled_seconds_total{instance="gpu-1"}': "0x60",
        },
        "11m",
        "gpu-1 has 1% of its memory left, and everything on it waits for memory.",
        GPU,
    ),
    *(
        Case(
            "MusterClockSkew",
            {_TIME: time, _SYNCHRONISED: f"{synchronised}x60"},
            # As right as a scrape can tell that takes its time.
            {_TIME: "0.8+30x60", _SYNCHRONISED: "1x60"},
            "11m",
            "The clock of gpu-1 is not right: evidence of a clock that is off by a minute is refused.",
            GPU,
        )
        # A clock that is behind is seen less so by a read that takes its time; a replay gives one up after 2 s.
        for time, synchronised in (("-3.1+30x60", 1), ("70+30x60", 1), ("0+30x60", 0))
    ),
    # A container has its machine's clock, and no word of its own for whether somebody keeps it.
    Case(
        "MusterClockSkew",
        {_TIME: "70+30x60"},
        {_TIME: "0.8+30x60"},
        "11m",
        "The clock of gpu-1 is not right: evidence of a clock that is off by a minute is refused.",
        GPU,
    ),
    Case(
        "MusterTextfileBroken",
        {'node_textfile_scrape_error{instance="gpu-1"}': "1x60"},
        {'node_textfile_scrape_error{instance="gpu-1"}': "0x60"},
        "6m",
        "gpu-1 cannot read the numbers that the burn-in leaves.",
        GPU,
    ),
    # Own traffic and that of pods, of IPv4 and IPv6, are one class: 1.6e9 bytes in 30 s. Directions are apart.
    Case(
        "MusterTrafficOverLimit",
        {
            **{_traffic("in", path, family): "0+4e8x60" for path in ("own", "pods") for family in ("ipv4", "ipv6")},
            _traffic("out", "own", "ipv4"): "0+3e8x60",
            _TRAFFIC_LIMIT: "1e8x60",
        },
        {
            **{_traffic("in", path, family): "0+9e7x60" for path in ("own", "pods") for family in ("ipv4", "ipv6")},
            _traffic("out", "own", "ipv4"): "0+3e8x60",
            _TRAFFIC_LIMIT: "1e8x60",
        },
        "16m",
        "gpu-1 has 426.7Mbit/s of traffic of class internet (in), more than its limit.",
        {**GPU, "class": "internet", "direction": "in"},
    ),
    Case(
        "MusterBurninFailed",
        {'gpu_burnin_verdict{instance="gpu-1",verdict="FAIL"}': "1x60"},
        {
            'gpu_burnin_verdict{instance="gpu-1",verdict="FAIL"}': "0x60",
            'gpu_burnin_verdict{instance="gpu-1",verdict="PASS"}': "1x60",
        },
        "1m",
        "gpu-1 failed its burn-in. `muster why gpu-1` says why.",
        {**GPU, "verdict": "FAIL"},
    ),
)
