"""Faults that are followed end to end, from the command line to the report, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.checks import USUAL_CHECKS
from gpu_burnin.types import Verdict

FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class CommandFault:
    """One faulty node and the run on it.

    `lines` are those of the fake NVML's scenario, with {t} for the faulty GPU; `arguments` of `gpu-burnin run` and
    `log` lines of the kernel log with {t} and {bus}; `settings` change the configuration. `journal` is what a run
    before left behind, `says` words of a reason. `interrupt_at` is the line of the progress at which Ctrl-C comes.
    Seconds in a key of `lines` count from the end of the state check, when the samplers have been ready for a while.
    `soak`: a case beside it shows the way from the same source to the report, and another area names the fault itself.
    """

    name: str
    codes: str
    verdict: Verdict
    lines: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    on_gpu: bool = True
    also: str = ""
    node_codes: str = ""
    no_log: bool = False
    journal: bytes | None = None
    interrupt_at: str = ""
    cut_short: bool = False
    says: str = ""
    soak: bool = False


_DIED = (
    b'{"n":1,"at":"2026-01-02T03:04:05Z","boot_id":"other","event":"run_started"}\n'
    b'{"n":2,"at":"2026-01-02T03:04:06Z","boot_id":"other","event":"check_started","check":"gemm","gpu":"GPU-x"}\n'
)
_DAMAGED = b'{"n":1,"at":"2026-01-02T03:04:05Z","boot_id":"other"\n' + _DIED
_INJECTED = "INJECTED"
# Most cases have the node's own few checks (command_node.py).
_USUAL: Mapping[str, object] = {"checks": list(USUAL_CHECKS)}
_PEERS: Mapping[str, object] = {"checks": ["state", "nvlink"]}


def _inject(spec: str, codes: str, verdict: Verdict = FAIL, also: str = "", soak: bool = False) -> CommandFault:
    """A fault of --inject: found like a real one, and the run, of this check alone, says that it was put in."""
    return CommandFault(
        f"--inject {spec}", f"{codes} {_INJECTED}", verdict, arguments=("--inject", f"{spec}:gpu={{t}}"),
        node_codes=_INJECTED, also=also, settings={"checks": ["state", spec.split(":")[0]]},
        soak=soak,
    )  # fmt: skip


COMMAND_FAULTS: dict[str, CommandFault] = {
    fault.name: fault
    for fault in (
        # Here the others of the usual checks go on beside the fault.
        CommandFault("row remap pending", "REMAP_PENDING", FAIL, {"gpu{t}.remap_pending": "yes"}, settings=_USUAL),
        CommandFault("gpu lost before the run", "GPU_LOST", FAIL, {"gpu{t}.lost": "calls"}),
        CommandFault("gpu lost during the run", "GPU_LOST", FAIL, {"gpu{t}.lost@0.1s": "calls"},
                     also="TELEMETRY_LOST COUNTER_LOST"),
        CommandFault("gpu missing", "GPU_COUNT", FAIL, settings={"expect": {"gpus": 4}}, on_gpu=False),
        CommandFault("driver and library differ", "NVML_UNAVAILABLE COVERAGE_LOW", INCONCLUSIVE,
                     {"init_error": "version_mismatch"}, on_gpu=False, cut_short=True),
        CommandFault("ecc errors during the run", "ECC_UNCORRECTED", FAIL,
                     {"gpu{t}.ecc_uncorrected_volatile@0.1s": 2}),
        CommandFault("too hot during the run", "TEMPERATURE_HIGH", FAIL, {"gpu{t}.temperature_c@0.1s": 93},),
        CommandFault("xid 79 by nvml event", "XID_FATAL", FAIL, {"gpu{t}.event@0.1s": "xid 79"}),
        CommandFault("xid 48 in the kernel log", "XID_FATAL", FAIL,
                     log=("3,1,2000,-;NVRM: Xid (PCI:{bus}): 48, pid='<unknown>', name=<unknown>, DBE",)),
        CommandFault("unknown xid in the kernel log", "XID_UNKNOWN", INCONCLUSIVE,
                     log=("3,1,2000,-;NVRM: Xid (PCI:{bus}): 998, something new",), soak=True),
        CommandFault("gap in the kernel log", "XID_GAP", INCONCLUSIVE, log=("6,9,2000,-;usb 1-1: new device",),
                     on_gpu=False, soak=True),
        CommandFault("no kernel log", "XID_SOURCE_MISSING", INCONCLUSIVE, on_gpu=False, no_log=True),
        CommandFault("simulated, and not allowed to pass", "SIMULATED", INCONCLUSIVE, on_gpu=False,
                     settings={"allow_simulated": False}),
        _inject("gemm:low_mantissa", "GEMM_MISMATCH"),
        _inject("sm:stuck_bit", "SM_MISMATCH"),
        _inject("hbm:stuck", "HBM_BIT_ERROR"),
        *(_inject(f"hbm:{fault}", "HBM_BIT_ERROR", soak=True) for fault in ("alias", "lane", "row_burst", "coupling")),
        _inject("pcie:corrupted", "PCIE_DATA"),
        _inject("pcie:reordered", "PCIE_DATA", soak=True),
        _inject("nccl:wrong_element", "NCCL_DATA"),
        _inject("nccl:stale", "NCCL_DATA", soak=True),
        _inject("power:wrong_edge", "POWER_MISMATCH"),
        _inject("power:wrong_transfer", "PCIE_DATA", soak=True),
        CommandFault("peer access switched off", "P2P_UNAVAILABLE", FAIL,
                     {f"gpu{{t}}.p2p_{what}_status": 4 for what in ("read", "write", "nvlink")}, settings=_PEERS),
        CommandFault("mig on", "MIG_MISMATCH P2P_UNAVAILABLE", FAIL,
                     {"gpu{t}.mig_current": "yes", "gpu{t}.mig_pending": "yes",
                      **{f"gpu{{t}}.p2p_{what}_status": 5 for what in ("read", "write", "nvlink")}}, settings=_PEERS),
        CommandFault("power brake during the run", "THROTTLED", FAIL, {"gpu{t}.clocks_event_reasons@0.1s": "0x80"},
                     also="POWER_BRAKE", settings=_USUAL, soak=True),
        CommandFault("counters vanish during the run", "COUNTER_LOST", INCONCLUSIVE,
                     {"gpu{t}.error.nvmlDeviceGetMemoryErrorCounter@0.1s": "not_supported"}, settings=_USUAL,
                     soak=True),
        _inject("gemm:crash", "WORKER_DIED"),
        _inject("sm:crash_once", "WORKER_DIED", INCONCLUSIVE),
        _inject("hbm:out_of_memory", "OUT_OF_MEMORY", INCONCLUSIVE),
        CommandFault("host died during a check", "DIED_DURING_CHECK", FAIL, on_gpu=False, journal=_DIED, says="gemm"),
        CommandFault("host died, torn journal", "DIED_DURING_CHECK", FAIL, on_gpu=False, journal=_DIED + b'{"n":3,"at'),
        CommandFault("host died, damaged journal", "DIED_DURING_CHECK", FAIL, on_gpu=False, journal=_DAMAGED,
                     says="the journal of run 1 is damaged"),
        CommandFault("interrupted", "INTERRUPTED", INCONCLUSIVE, on_gpu=False, interrupt_at="gemm started",
                     settings={"level": "standard", "checks": ["gemm", "hbm"]}, cut_short=True),
    )
}  # fmt: skip
