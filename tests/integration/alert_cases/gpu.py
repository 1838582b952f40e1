"""Alerts of GPUs, by the numbers of DCGM's exporter and, where it says nothing, by those of the agent."""

from __future__ import annotations

from .case import GPU, Case

_ONE = {**GPU, "gpu": "3"}


def _of(field: str, values: str, gpu: str = "3", **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {f'{field}{{instance="gpu-1",gpu="{gpu}"{more}}}': values}


def _agent(sees: bool = True) -> dict[str, str]:
    """An agent that lives, and whether it can read where XIDs are told."""
    look = {'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}': "0+30x60"}
    return look | {'gpu_burnin_watch_source_up{instance="gpu-1",source="kernel_log"}': f"{int(sees)}x60"}


def _counted(seen: int) -> dict[str, str]:
    name = "gpu_burnin_watch_gpus"
    return {f'{name}{{instance="gpu-1"}}': f"{seen}x60", f'{name}_expected{{instance="gpu-1"}}': "8x60"}


def _source(values: str) -> dict[str, str]:
    return {'gpu_burnin_watch_source_up{instance="gpu-1",source="nvml"}': values}


def _errors(kind: str, values: str) -> dict[str, str]:
    return _of("gpu_burnin_watch_nvlink_errors_total", values, kind=kind)


def _xids(kind: str, values: str) -> dict[str, str]:
    return _of("gpu_burnin_watch_xids_total", values, **{"class": kind})


def _reasons(bits: int) -> dict[str, str]:
    return _of("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", f"{bits}x60")


def _seen(dcgm: int, burnin: int) -> dict[str, str]:
    seen = {key: "40x60" for gpu in range(dcgm) for key in _of("DCGM_FI_DEV_GPU_TEMP", "", str(gpu))}
    verdicts = {"PASS": 1, "FAIL": 0, "INCONCLUSIVE": 0}
    return seen | {
        f'gpu_burnin_gpu_verdict{{instance="gpu-1",gpu="GPU-{gpu}",verdict="{verdict}"}}': f"{value}x60"
        for gpu in range(burnin)
        for verdict, value in verdicts.items()
    }


_EXPORTER = 'up{instance="gpu-1",job="gpu"}'
_BURNING = 'gpu_burnin_watch_burnin_running{instance="gpu-1"}'
_REVOKE = {"class": "revoke"}
_REVOKED = _xids("revoke", "2x60")
# The newest alone, which may be of no weight; 0 after a start of its engine.
_NEWEST = "DCGM_FI_DEV_XID_ERRORS"
_SILENT = {'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}': "0x60"}
_UNATTENDED = (
    "GPU 3 of gpu-1 has had an XID that takes a node from work, and the agent that does so is silent: "
    "work may run on it."
)
_AGENTS_XIDS = "GPU 3 of gpu-1 has had 2 XIDs in this boot that take the node from work."
_DCGMS_XID = "The newest XID of GPU 3 of gpu-1 is 79, which takes the node from work."
_FAILED = "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"
_DOWN = "gpu_burnin_watch_nvlinks_down"
_BROKEN = _of(_FAILED, "0x20 1x40")
_LINK_DOWN = "An NVLink of GPU 3 of gpu-1 is down or went down in the last hour."
_MANAGER = "DCGM_FI_DEV_FABRIC_MANAGER_STATUS"
_FABRIC = "GPU 3 of gpu-1 is not on its NVLink fabric, or the fabric calls it unhealthy."

CASES = (
    Case(
        "MusterXidFatal",
        _of(_NEWEST, "79x60"),
        # Of a program that reads beyond its memory.
        _of(_NEWEST, "31x60"),
        "1m",
        _DCGMS_XID,
        _ONE,
    ),
    # The first of a boot, with which its count begins; a later one.
    *(
        Case(
            "MusterXidWarned",
            _xids(kind, values),
            # More than an hour ago; what is not told, and what is told elsewhere.
            _xids(kind, "1x400") | _xids("log", "0x100 5x300") | _xids("revoke", "0x100 1x300"),
            "65m",
            f"GPU 3 of gpu-1 has had an XID in the last hour {why}: the node is tested when it is idle.",
            {**_ONE, "class": kind},
        )
        for kind, why in (
            ("unknown", "which the policy does not know"),
            ("warn", "which its work or the GPU may have caused"),
        )
        for values in ("_x100 1x300", "3x100 4x300")
    ),
    Case(
        "MusterEccUncorrected",
        _of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "2x60"),
        _of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has had 2 uncorrected memory errors since its driver was loaded.",
        _ONE,
    ),
    Case(
        "MusterRemapPending",
        _of("DCGM_FI_DEV_ROW_REMAP_PENDING", "1x60"),
        _of("DCGM_FI_DEV_ROW_REMAP_PENDING", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has a row of memory to remap, and does so at its next reset.",
        _ONE,
    ),
    Case(
        "MusterRemapFailed",
        _of("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x60"),
        _of("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x60"),
        "1m",
        "GPU 3 of gpu-1 could not remap a row of its memory: replace it.",
        _ONE,
    ),
    Case(
        "MusterGpuHot",
        _reasons(0x20 + 0x4),
        # At the power limit and by the power brake, which is no heat.
        _reasons(0x80 + 0x4),
        "6m",
        "GPU 3 of gpu-1 is slowed down by heat.",
        _ONE,
    ),
    Case(
        "MusterPowerBrake",
        _reasons(0x80 + 0x4),
        _reasons(0x40 + 0x4),
        "6m",
        "GPU 3 of gpu-1 is slowed down by the machine's power brake.",
        _ONE,
    ),
    Case(
        "MusterNvlinkDown",
        _BROKEN,
        # Long ago.
        _of(_FAILED, "1x60"),
        "15m",
        _LINK_DOWN,
        _ONE,
    ),
    Case(
        "MusterFabricNotCompleted",
        _of(_MANAGER, "4x60"),
        _of(_MANAGER, "3x60"),
        "11m",
        _FABRIC,
        _ONE,
    ),
    Case(
        "MusterGpusMissing",
        _seen(dcgm=7, burnin=8),
        _seen(dcgm=8, burnin=8),
        "3m",
        "7 GPUs answer on gpu-1, fewer than its newest burn-in saw.",
        GPU,
    ),
    # The agent has counted what DCGM has forgotten; where both know of one fault it is one alert.
    *(
        Case(
            "MusterXidFatal",
            _REVOKED | _agent() | dcgm,
            # The burn-in has judged DCGM's, or it is of the boot before.
            _agent() | _of(_NEWEST, "79x60"),
            "3m",
            _AGENTS_XIDS,
            {**_ONE, **_REVOKE},
        )
        for dcgm in ({}, _of(_NEWEST, "79x2 45x58"), _of(_NEWEST, "79x2 0x58"), _of(_NEWEST, "79x60"))
    ),
    # What an agent that is gone has counted stays told, once.
    Case("MusterXidFatal", _REVOKED | _of(_NEWEST, "79x60"), {}, "3m", _AGENTS_XIDS, {**_ONE, **_REVOKE}),
    # DCGM is asked where the agent is gone or blind.
    *(
        Case("MusterXidFatal", agent | _of(_NEWEST, "79x60"), agent, "4m", _DCGMS_XID, _ONE)
        for agent in (
            {**_agent(), 'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}': "0x60"},
            _agent(False),
        )
    ),
    # Whoever saw it: an agent that is silent, or of which nothing was ever heard, takes no node from work.
    *(
        Case("MusterXidUnattended", wrong, fine, "5m", _UNATTENDED, {**_ONE, **labels})
        for wrong, fine, labels in (
            (_of(_NEWEST, "79x60"), _of(_NEWEST, "79x60") | _agent(False), {}),
            (_of(_NEWEST, "79x60") | _SILENT, _of(_NEWEST, "31x60") | _SILENT, {}),
            (_REVOKED | _SILENT, _REVOKED | _agent(), _REVOKE),
        )
    ),
    # Where DCGM says nothing the agent does, and where DCGM says all is well the agent is not asked.
    Case(
        "MusterEccUncorrected",
        _of("gpu_burnin_watch_ecc_uncorrected_total", "2x60"),
        _of("gpu_burnin_watch_ecc_uncorrected_total", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has had 2 uncorrected memory errors since its driver was loaded.",
        _ONE,
    ),
    Case(
        "MusterRemapPending",
        _of("gpu_burnin_watch_remap_pending", "1x60"),
        _of("gpu_burnin_watch_remap_pending", "1x60") | _of("DCGM_FI_DEV_ROW_REMAP_PENDING", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has a row of memory to remap, and does so at its next reset.",
        _ONE,
    ),
    Case(
        "MusterRemapFailed",
        _of("gpu_burnin_watch_remap_failed", "1x60"),
        _of("gpu_burnin_watch_remap_failed", "0x60"),
        "1m",
        "GPU 3 of gpu-1 could not remap a row of its memory: replace it.",
        _ONE,
    ),
    Case(
        "MusterGpuHot",
        _of("gpu_burnin_watch_clocks_event_reasons", f"{0x40 + 0x4}x60"),
        _of("gpu_burnin_watch_clocks_event_reasons", f"{0x80 + 0x4}x60"),
        "6m",
        "GPU 3 of gpu-1 is slowed down by heat.",
        _ONE,
    ),
    Case(
        "MusterPowerBrake",
        _of("gpu_burnin_watch_clocks_event_reasons", f"{0x80 + 0x4}x60"),
        _of("gpu_burnin_watch_clocks_event_reasons", f"{0x40 + 0x4}x60"),
        "6m",
        "GPU 3 of gpu-1 is slowed down by the machine's power brake.",
        _ONE,
    ),
    # DCGM counts recoveries, and a link that is simply down is none.
    *(
        Case(
            "MusterNvlinkDown",
            _of(_DOWN, "2x60") | dcgm | agent,
            # The agent reads the links, and its own counts say that none went down.
            _of(_DOWN, "0x60") | _BROKEN | _agent(),
            "15m",
            _LINK_DOWN,
            _ONE,
        )
        for dcgm in ({}, _of(_FAILED, "0x60"), _BROKEN)
        for agent in ({}, _agent())
    ),
    # An agent that cannot read links, and one that is gone.
    Case("MusterNvlinkDown", _BROKEN | _agent(), _agent(), "15m", _LINK_DOWN, _ONE),
    Case("MusterNvlinkDown", _BROKEN | _of(_DOWN, "0x60"), _of(_DOWN, "0x60"), "15m", _LINK_DOWN, _ONE),
    Case(
        "MusterNvlinkDown",
        _errors("failed_recoveries", "0x20 1x40"),
        # Since NVLink 5 a recovery is no fault; nor is a frame that was sent again.
        _errors("recoveries", "0x20 1x40") | _errors("failed_recoveries", "0x60") | _errors("replays", "0x20 9x40"),
        "15m",
        _LINK_DOWN,
        _ONE,
    ),
    Case(
        "MusterNvlinkDown",
        _errors("recoveries", "0x20 1x40"),
        _errors("recoveries", "1x60") | _of(_DOWN, "0x60"),
        "15m",
        _LINK_DOWN,
        _ONE,
    ),
    Case(
        "MusterFabricNotCompleted",
        _of("gpu_burnin_watch_fabric_state", "2x60"),
        _of("gpu_burnin_watch_fabric_state", "3x60") | _of("gpu_burnin_watch_fabric_healthy", "1x60"),
        "11m",
        _FABRIC,
        _ONE,
    ),
    # The fabric's complaint is none that DCGM knows; where both know of one fault it is one alert.
    *(
        Case(
            "MusterFabricNotCompleted",
            _of("gpu_burnin_watch_fabric_state", "3x60")
            | _of("gpu_burnin_watch_fabric_healthy", "0x60")
            | dcgm
            | agent,
            _of("gpu_burnin_watch_fabric_state", "3x60") | _of(_MANAGER, "2x60") | _agent(),
            "11m",
            _FABRIC,
            _ONE,
        )
        for dcgm in ({}, _of(_MANAGER, "3x60"), _of(_MANAGER, "4x60"))
        for agent in ({}, _agent())
    ),
    # An agent that cannot read the fabric.
    Case("MusterFabricNotCompleted", _of(_MANAGER, "4x60") | _agent(), _agent(), "11m", _FABRIC, _ONE),
    Case(
        "MusterGpusMissing",
        _counted(7),
        _counted(8),
        "3m",
        "7 GPUs answer on gpu-1, fewer than its newest burn-in saw.",
        GPU,
    ),
    *(
        Case(
            "MusterDcgmBlind",
            {_EXPORTER: "1x60"} | seen,
            {_EXPORTER: "1x60"} | fine,
            "3m",
            "DCGM's exporter on gpu-1 answers, and shows no GPU: what DCGM alone sees goes unseen.",
            {**GPU, "job": "gpu"},
        )
        for seen, fine in (
            ({}, _seen(dcgm=1, burnin=8)),
            # Of another host.
            ({'DCGM_FI_DEV_GPU_TEMP{instance="gpu-2",gpu="0"}': "40x60"}, _agent() | {_BURNING: "1x60"}),
            # No burn-in runs, or none that a living agent tells of.
            (_agent() | {_BURNING: "0x60"}, {_EXPORTER: "0x60"}),
            ({_BURNING: "1x60"}, {_EXPORTER: "1x3 0x57"}),
        )
    ),
    Case(
        "MusterAgentSilent",
        {'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}': "0x60"},
        # It writes each 30 s, and so does the test.
        {'gpu_burnin_watch_last_look_timestamp_seconds{instance="gpu-1"}': "0+30x60"},
        "3m",
        "The agent on gpu-1 has told nothing for 3m 0s: its GPUs are not watched.",
        GPU,
    ),
    Case(
        "MusterAgentBlind",
        _source("0x60"),
        _source("1x60"),
        "3m",
        "The agent on gpu-1 cannot read its source nvml: faults that show only there go unseen.",
        {**GPU, "source": "nvml"},
    ),
)
