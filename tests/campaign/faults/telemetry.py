"""Faults that telemetry must see, as data: lines of the kernel log, and what NVML says while the samplers run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.types import Action, Verdict

FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS


@dataclass(frozen=True)
class LogFault:
    """Kernel log lines during a run. {bus} is the faulty GPU's PCI address as the driver writes it, {pid} a process.

    Lines get the kernel's prefix unless they bring their own ("14,": facility user). `lost` messages are missing
    before them. `on_gpu` False: nothing says which GPU, or it is the node's. `own`: {pid} is a worker that the
    executor killed itself. `file` False: the log cannot be read.
    """

    name: str
    code: str | None
    verdict: Verdict
    lines: tuple[str, ...]
    action: Action | None = None
    on_gpu: bool = True
    lost: int = 0
    own: bool = False
    file: bool = True
    also: frozenset[str] = frozenset()


def _xid(code: int, text: str, what: str, verdict: Verdict, action: Action | None = None) -> LogFault:
    """One XID line; `what` is XID_FATAL, XID_SUSPECT or XID_UNKNOWN."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return LogFault(f"xid {code}: {text.split('(')[0].strip()[:44]}", what, verdict, (line,), action)


def _fatal(code: int, text: str, action: Action) -> LogFault:
    return _xid(code, text, "XID_FATAL", FAIL, action)


def _suspect(code: int, text: str, action: Action | None = None) -> LogFault:
    return _xid(code, text, "XID_SUSPECT", INCONCLUSIVE, action)


def _nvlink5(
    code: int, unit: str, severity: str, status: int, what: str, verdict: Verdict, intrinfo: int = 0
) -> LogFault:
    text = f"{unit} {severity} XC1 i0 Link 12 ({intrinfo:#010x} {status:#010x} 0x00000000 0x00000000 0x00000000)"
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return LogFault(f"xid {code}: {unit} {severity} {status:#x}/{intrinfo:#x}", what, verdict, (line,))


def _recovery(value: int, word: str, action: Action) -> LogFault:
    """XID 154 alone: the driver's own verdict, by number as nvml.h has them."""
    text = f"GPU recovery action changed from 0x0 (None) to {value:#x} ({word})"
    return LogFault(
        f"xid 154: {word}", "XID_FATAL", FAIL, (f"NVRM: Xid (PCI:{{bus}}): 154, {text}",), action
    )  # fmt: skip


_PROCESS = "pid={pid}, name=python3, "
_XIDS: tuple[LogFault, ...] = (
    _fatal(46, _PROCESS + "Ch 00000008, GPU stopped processing", Action.RESET_GPU),
    _fatal(48, "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error", Action.RESET_GPU),
    _fatal(61, "pid=1, 0x00001234 internal micro-controller breakpoint", Action.REBOOT),
    _fatal(62, "pid='<unknown>', name=<unknown>, 2a5a0000 00000000", Action.RESET_GPU),
    _fatal(63, "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping", Action.RESET_GPU),
    _fatal(64, "pid='<unknown>', name=<unknown>, Row Remapper: remapping failed", Action.RESET_GPU),
    _fatal(74, "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6", Action.RESET_GPU),
    _fatal(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", Action.POWER_CYCLE),
    _fatal(94, _PROCESS + "Contained: CE User Channel (0x9). RST: No, D-RST: No", Action.RESET_GPU),
    _fatal(95, "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). RST: Yes", Action.RESET_GPU),
    _fatal(109, _PROCESS + "Ch 00000008, errorString CTX SWITCH TIMEOUT", Action.RESET_GPU),
    _fatal(119, _PROCESS + "Timeout after 6s of waiting for RPC response from GPU1 GSP!", Action.RESET_GPU),
    _fatal(120, "pid='<unknown>', name=<unknown>, GSP task exception: misaligned load", Action.RESET_GPU),
    _fatal(136, "NVLink: link training failed on link 3", Action.RESET_GPU),
    _fatal(140, "An uncorrectable ECC error detected (possible firmware handling failure)", Action.RESET_GPU),
    _fatal(143, "GPU Initialization Failure: 0x62", Action.RESET_GPU),
    _fatal(156, "Resource retirement event", Action.RESET_GPU),
    _fatal(158, "GPU fatal timeout", Action.RESET_GPU),
    _fatal(167, "PCIe fatal timeout", Action.REBOOT),
    _fatal(168, "Errors found in WPR (write protected region)", Action.REBOOT),
    _fatal(171, "Uncorrectable DRAM error", Action.RESET_GPU),
    _fatal(173, "C2C fatal link failure", Action.REBOOT),
    _suspect(8, _PROCESS + "Ch 00000008, GPU stopped processing", Action.RETEST),
    _suspect(13, _PROCESS + "Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Misaligned Address", Action.RETEST),
    _suspect(31, _PROCESS + "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS", Action.RETEST),
    _suspect(43, _PROCESS + "Ch 00000008", Action.RETEST),
    _suspect(45, _PROCESS + "Ch 00000008", Action.RETEST),
    _suspect(68, _PROCESS + "NVDEC0 Exception", Action.RETEST),
    _suspect(78, "vGPU start error", Action.HOLD),
    _suspect(157, "Resource retirement failure", Action.HOLD),
    _xid(174, "something that nobody has described yet", "XID_UNKNOWN", INCONCLUSIVE, Action.HOLD),
    _xid(999, "an XID of the future", "XID_UNKNOWN", INCONCLUSIVE, Action.HOLD),
)
_RECOVERY: tuple[LogFault, ...] = (
    _recovery(1, "GPU Reset Required", Action.RESET_GPU),
    _recovery(2, "Node Reboot Required", Action.REBOOT),
    _recovery(3, "Drain P2P", Action.RESET_GPU),
    _recovery(4, "Drain and Reset", Action.RESET_GPU),
    _recovery(6, "Bus Reset", Action.POWER_CYCLE),
    LogFault(
        "xid 154 raises the action of what came before", "XID_FATAL", FAIL,
        (
            "NVRM: Xid (PCI:{bus}): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0)",
            "NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        ),
        Action.REBOOT,
    ),
    LogFault(
        "xid 154 with a demand nobody knows", "XID_SUSPECT", INCONCLUSIVE,
        ("NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x0 (None) to 0x9 (Do Something)",),
        Action.HOLD,
    ),
)  # fmt: skip
_NVLINK5: tuple[LogFault, ...] = (
    _nvlink5(144, "SAW_MVB", "Fatal", 0x2, "XID_FATAL", FAIL),
    _nvlink5(144, "SAW_MVB", "Nonfatal", 0x1, "XID_SUSPECT", INCONCLUSIVE),
    _nvlink5(145, "RLW_REMAP", "Fatal", 0x40, "XID_FATAL", FAIL),
    _nvlink5(145, "RLW_REMAP", "Nonfatal", 0x4, "XID_SUSPECT", INCONCLUSIVE),
    # The unit's known bits do not explain this status, and the line says Nonfatal: a person looks.
    _nvlink5(145, "RLW_REMAP", "Nonfatal", 0x400, "XID_UNKNOWN", INCONCLUSIVE),
    # The table knows this bit as harmless; the driver calls this one fatal: the driver wins.
    _nvlink5(145, "RLW_CTRL", "Fatal", 0x80000000, "XID_FATAL", FAIL),
    _nvlink5(146, "TLW_RX", "Fatal", 0x4, "XID_FATAL", FAIL),
    _nvlink5(146, "TLW_TX", "Nonfatal", 0x2, "XID_SUSPECT", INCONCLUSIVE),
    _nvlink5(147, "TREX", "Fatal", 0x1, "XID_FATAL", FAIL),
    _nvlink5(148, "NVLPW_CTRL", "Fatal", 0x1, "XID_FATAL", FAIL),
    _nvlink5(149, "NETIR_LINK_DOWN", "Link Fatal", 0x0, "XID_FATAL", FAIL, intrinfo=0x4 << 20),
    _nvlink5(149, "NETIR_LINK_EVT", "Nonfatal", 0x0, "XID_SUSPECT", INCONCLUSIVE, intrinfo=0x26 << 20),
    _nvlink5(150, "MSE", "Fatal", 0x0, "XID_FATAL", FAIL),
)
_SWITCH: tuple[LogFault, ...] = (
    LogFault(
        "sxid 20034 fatal", "XID_FATAL", FAIL,
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
         "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00"),
        Action.REBOOT, on_gpu=False,
    ),
    LogFault(
        "sxid 12020 always fatal", "XID_FATAL", FAIL,
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12020, Fatal, Link 33 egress sequence ID error",),
        Action.REBOOT, on_gpu=False,
    ),
    LogFault(
        "sxid nobody knows", "XID_UNKNOWN", INCONCLUSIVE,
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, Link 33 something new",), Action.HOLD, on_gpu=False,
    ),
)  # fmt: skip
_LOG: tuple[LogFault, ...] = (
    LogFault(
        "xid on a MIG instance", "XID_FATAL", FAIL,
        ("NVRM: Xid (PCI:{bus} GPU-I:05): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC TAG",),
    ),
    LogFault(
        "xid of a GPU that is gone", "XID_FATAL", FAIL,
        ("NVRM: Xid (PCI:0000:fe:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",),
        Action.POWER_CYCLE, on_gpu=False,
    ),
    LogFault(
        "suspect, then fatal, on one GPU", "XID_SUSPECT XID_FATAL", FAIL,
        ("NVRM: Xid (PCI:{bus}): 31, pid={pid}, name=python3, MMU Fault",
         "NVRM: Xid (PCI:{bus}): 79, pid={pid}, name=python3, GPU has fallen off the bus."),
        Action.POWER_CYCLE,
    ),
    LogFault("kernel messages lost", "XID_GAP", INCONCLUSIVE, ("usb 1-1: new device",), on_gpu=False, lost=7),
    LogFault("no kernel log", "XID_SOURCE_MISSING", INCONCLUSIVE, (), on_gpu=False, file=False),
)  # fmt: skip

LOG_FAULTS: dict[str, LogFault] = {fault.name: fault for fault in (*_XIDS, *_RECOVERY, *_NVLINK5, *_SWITCH, *_LOG)}
# Lines that mean nothing against the node: a run with them passes.
HARMLESS_LOGS: dict[str, LogFault] = {
    fault.name: fault
    for fault in (
        LogFault("written by a program", None, PASS, ("14;NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus.",)),
        LogFault(
            "of a worker that the executor killed", None, PASS,
            ("NVRM: Xid (PCI:{bus}): 43, pid={pid}, name=python3, Ch 00000008",
             "NVRM: Xid (PCI:{bus}): 45, pid={pid}, name=python3, Ch 00000008"), own=True,
        ),
        LogFault("only talks of XIDs", None, PASS, ("systemd[1]: Xid (PCI:{bus}): 79 was seen last week",)),
        LogFault("corrected switch error", None, PASS,
                 ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20001, Non-fatal, Link 48 TX Replay Error",)),
        LogFault("harmless nvlink 5 status", None, PASS,
                 ("NVRM: Xid (PCI:{bus}): 145, RLW_RSPCOL Nonfatal XC0 i0 Link 02 (0x00000000 0x00000001 0x0 0x0)",)),
    )
}  # fmt: skip


@dataclass(frozen=True)
class SampledFault:
    """What the faulty GPU's NVML says while its sampler runs: scenario lines, with times in seconds after its start.

    `sampler` names a way in which the sampler itself fails (failing_sampler.py). `silent`: the faulty GPU gives no
    samples to wait for. `worked_s` are seconds that the checks worked on each GPU.
    """

    name: str
    code: str
    verdict: Verdict
    lines: Mapping[str, object] = field(default_factory=dict)
    sampler: str = ""
    silent: bool = False
    worked_s: float | None = None
    also: frozenset[str] = frozenset()
    notice: bool = False


def _sampled(name: str, code: str, verdict: Verdict, **lines: object) -> SampledFault:
    """Lines by key, of the faulty GPU, from AT on."""
    return SampledFault(name, code, verdict, {f"{key}@{AT}": value for key, value in lines.items()})


AT = "0.3s"
_TEMPERATURE = "error.nvmlDeviceGetTemperatureV", "error.nvmlDeviceGetTemperature"
_FALLEN = frozenset({"TELEMETRY_LOST"})

SAMPLED_FAULTS: dict[str, SampledFault] = {
    fault.name: fault
    for fault in (
        _sampled("uncorrected dram errors under load", "ECC_UNCORRECTED", FAIL, ecc_uncorrected_volatile=3),
        _sampled("uncorrected sram errors under load", "ECC_UNCORRECTED", FAIL, ecc_uncorrected_volatile_sram=1),
        _sampled("storm of corrected dram errors", "ECC_CORRECTED", FAIL, ecc_corrected_volatile=30_000_000),
        _sampled("storm of corrected sram errors", "ECC_CORRECTED", FAIL, ecc_corrected_volatile_sram=20_000),
        _sampled("row remapped under load", "REMAP_PENDING", FAIL, remapped_uncorrected=1),
        _sampled("remap pending under load", "REMAP_PENDING", FAIL, remap_pending="yes"),
        _sampled("remap failed under load", "REMAP_FAILED", FAIL, remap_failure="yes"),
        _sampled("fatal pcie errors under load", "PCIE_DEGRADED", FAIL, pcie_fatal_errors=1),
        _sampled("nvlink recoveries under load", "NVLINK_ERRORS", FAIL, nvlink_recovery=1),
        _sampled("hardware thermal slowdown", "THROTTLED", FAIL, clocks_event_reasons="0x40"),
        _sampled("hardware slowdown", "THROTTLED", FAIL, clocks_event_reasons="0x8"),
        _sampled("power brake", "THROTTLED", FAIL, clocks_event_reasons="0x84"),
        _sampled("thermal slowdown between samples", "THROTTLED", FAIL, throttle_hw_thermal_ns=2_000_000),
        _sampled("power brake between samples", "THROTTLED", FAIL, throttle_power_brake_ns=2_000_000),
        _sampled("slowdown temperature reached", "TEMPERATURE_HIGH", FAIL, temperature_c=91),
        SampledFault("temperature runs away", "TEMPERATURE_HIGH", FAIL, {"temperature_c@0.1s": "110 over 0.6s"}),
        _sampled("memory too hot", "TEMPERATURE_HIGH", FAIL, temperature_memory_c=98),
        _sampled("thermal margin used up", "TEMPERATURE_HIGH", FAIL, temperature_margin_c=-3),
        SampledFault("counter falls", "COUNTER_LOST", INCONCLUSIVE, {"pcie_replay": 7, f"pcie_replay@{AT}": 0}),
        _sampled("counters vanish", "COUNTER_LOST", INCONCLUSIVE,
                 **{"error.nvmlDeviceGetMemoryErrorCounter": "not_supported"}),
        SampledFault("counters cannot be read", "COUNTER_LOST", INCONCLUSIVE,
                     {"error.nvmlDeviceGetMemoryErrorCounter": "unknown"}),
        SampledFault("gpu falls off the bus", "GPU_LOST", FAIL, {f"lost@{AT}": "calls"}, also=_FALLEN),
        SampledFault("gpu is gone before the samplers start", "GPU_LOST", FAIL, {"lost": "handle"}, silent=True,
                     also=_FALLEN),
        SampledFault("sensor hangs in the driver", "TELEMETRY_LOST", INCONCLUSIVE,
                     {f"hang.nvmlDeviceGetTemperatureV@{AT}": 60}, silent=True),
        SampledFault("temperature cannot be read", "TELEMETRY_LOST", INCONCLUSIVE,
                     dict.fromkeys(_TEMPERATURE, "unknown")),
        SampledFault("sampler dies", "TELEMETRY_LOST", INCONCLUSIVE, sampler="dies", silent=True),
        SampledFault("sampler exits at once", "TELEMETRY_LOST", INCONCLUSIVE, sampler="exits", silent=True),
        SampledFault("sampler is never ready", "TELEMETRY_LOST", INCONCLUSIVE, sampler="sleeps", silent=True),
        SampledFault("sampler babbles", "TELEMETRY_LOST", INCONCLUSIVE, sampler="babbles"),
        SampledFault("nvml event xid 79, not in the log", "XID_FATAL", FAIL, {f"event@{AT}": "xid 79"}),
        SampledFault("nvml event xid 13, not in the log", "XID_SUSPECT", INCONCLUSIVE, {f"event@{AT}": "xid 13"}),
        SampledFault("nvml event xid 999, not in the log", "XID_UNKNOWN", INCONCLUSIVE, {f"event@{AT}": "xid 999"}),
        SampledFault("nvml event double-bit error", "ECC_UNCORRECTED", FAIL, {f"event@{AT}": "double_bit_ecc"}),
        SampledFault("pcie link stays slow under load", "PCIE_DEGRADED", FAIL, {"pcie_generation": 1}, worked_s=20.0),
    )
}  # fmt: skip
# What a person is told though the node passes: figures that are only derived, or a rate under its limit.
WARNED: dict[str, SampledFault] = {
    fault.name: fault
    for fault in (
        _sampled("software thermal slowdown", "THROTTLED", PASS, clocks_event_reasons="0x20"),
        _sampled("close to the slowdown temperature", "TEMPERATURE_HIGH", PASS, temperature_c=86),
        _sampled("nvlink replays", "NVLINK_ERRORS", PASS, nvlink_replay=3),
        _sampled("nonfatal pcie errors", "PCIE_ERRORS", PASS, pcie_nonfatal_errors=1),
        SampledFault("corrected errors", "ECC_CORRECTED", PASS, {f"ecc_corrected_volatile@{AT}": 4000}),
    )
}
