"""NVML events of one GPU: XIDs and memory errors as the driver reports them. Only sampler processes import this."""

from __future__ import annotations

import math
import time
from typing import Any

import pynvml as n

from gpu_burnin.telemetry.nvml_reader import error_name

# Changes of clocks and performance state are not asked for: a power-capped GPU changes its clocks hundreds of
# times a second, and the samples show them.
KINDS: dict[int, str] = {
    n.nvmlEventTypeXidCriticalError: "xid",
    n.nvmlEventTypeDoubleBitEccError: "ecc_double_bit",
    n.nvmlEventTypeSingleBitEccError: "ecc_single_bit",
    n.nvmlEventTypeSingleBitEccErrorStorm: "ecc_single_bit_storm",
    n.nvmlEventTypeDramRetirementEvent: "dram_retirement",
    n.nvmlEventTypeDramRetirementFailure: "dram_retirement_failure",
    n.nvmlEventTypeNonFatalPoisonError: "poison_nonfatal",
    n.nvmlEventTypeFatalPoisonError: "poison_fatal",
    n.nvmlEventTypeGpuUnavailableError: "gpu_unavailable",
    n.nvmlEventTypeGpuRecoveryAction: "recovery_action",
}
# A storm of events must not keep the samples from being taken.
_MOST_PER_WAIT = 200


class EventWatch:
    """Waits for the events of one GPU. Where NVML has none, `why` says so and waiting only sleeps."""

    def __init__(self, handle: Any) -> None:
        self.kinds: tuple[str, ...] = ()
        self.why = ""
        self._set: Any = None
        try:
            wanted = n.nvmlDeviceGetSupportedEventTypes(handle) & sum(KINDS)
            if wanted & n.nvmlEventTypeXidCriticalError:
                self._set = n.nvmlEventSetCreate()
                n.nvmlDeviceRegisterEvents(handle, wanted, self._set)
                self.kinds = tuple(name for kind, name in KINDS.items() if wanted & kind)
            else:
                self.why = "the GPU reports no XID events"
        except n.NVMLError as error:
            self._failed(error)

    def wait(self, until_s: float) -> list[tuple[str, int]]:
        """Sleep until `until_s` (CLOCK_MONOTONIC, seconds); the events that came meanwhile: kind and data.

        NVML may report XID 0, which means nothing (leptonai/gpud issue 164): it is passed over.
        """
        found: list[tuple[str, int]] = []
        while (left_s := until_s - time.monotonic()) > 0:
            if self._set is None or len(found) >= _MOST_PER_WAIT:
                time.sleep(left_s)
                break
            try:
                data = n.nvmlEventSetWait_v2(self._set, math.ceil(left_s * 1000))
            except n.NVMLError as error:
                if error.value != n.NVML_ERROR_TIMEOUT:
                    self._failed(error)
                continue
            kind = KINDS.get(int(data.eventType))
            if kind and (kind != "xid" or data.eventData):
                found.append((kind, int(data.eventData)))
        return found

    def _failed(self, error: Any) -> None:
        self._set = None
        self.why = f"NVML events failed with {error_name(error.value)}"
