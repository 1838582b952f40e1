"""NVLinks of one GPU through nvidia-ml-py: which are up, and what they count. NVML may hang: see nvml.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pynvml as n

from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.state import Links, Unsupported, Whole

_MISSING = Unsupported("not_supported")
_COUNTERS = {
    "nvlink_replays": n.NVML_NVLINK_ERROR_DL_REPLAY,
    "nvlink_recoveries": n.NVML_NVLINK_ERROR_DL_RECOVERY,
    "nvlink_crc_errors": n.NVML_NVLINK_ERROR_DL_CRC_FLIT,
}
_FIELDS = {
    "nvlink_failed_recoveries": n.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    "nvlink_receive_errors": n.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
}
LINK_COUNTERS = (*_COUNTERS, *_FIELDS)


def read_links(reader: Reader) -> tuple[Links, Links]:
    """Numbers of active and inactive links. Links beyond the last say invalid argument, unpopulated ones
    not supported."""
    active: list[int] = []
    inactive: list[int] = []
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        state = reader.number(partial(link_state, link=link))
        if not isinstance(state, Unsupported):
            (active if state else inactive).append(link)
        elif state.why == "invalid_argument":
            break
        elif state.why != "not_supported":
            return state, state
    return (tuple(active), tuple(inactive)) if active or inactive else (_MISSING, _MISSING)


def link_state(handle: Any, link: int) -> int:
    """NVML_FEATURE_ENABLED when the link is up. Raises NVMLError."""
    return int(n.nvmlDeviceGetNvLinkState(handle, link))


class LinkCounters:
    """What these links of one GPU count."""

    def __init__(self, reader: Reader, links: Sequence[int]) -> None:
        self._reader, self._links = reader, links
        self._nvlink5 = self._is_nvlink5()

    def read(self) -> dict[str, Whole]:
        """The sum of each of LINK_COUNTERS, and each link's, "NAME_link3"; or why there is none."""
        found: dict[str, Whole] = {}
        for name, counter in _COUNTERS.items():
            read: Callable[[int], Whole] = partial(self._counter, counter=counter)
            if self._nvlink5:
                # The counters of older links read 0 or nothing there: not supported is not 0.
                field = n.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
                read = partial(self._field, field=field) if name == "nvlink_recoveries" else _not_supported
            found |= self._over_links(name, read)
        for name, field in _FIELDS.items():
            found |= self._over_links(name, partial(self._field, field=field))
        return found

    def _counter(self, link: int, counter: int) -> Whole:
        return self._reader.number(lambda h: n.nvmlDeviceGetNvLinkErrorCounter(h, link, counter))

    def _field(self, link: int, field: int) -> Whole:
        return self._reader.field(field, link)

    def _over_links(self, name: str, read: Callable[[int], Whole]) -> dict[str, Whole]:
        """The sum and each link; one unreadable link makes the sum unreadable."""
        assert name in UNITS
        total = 0
        found: dict[str, Whole] = {name: _MISSING}
        for link in self._links:
            value = read(link)
            if isinstance(value, Unsupported):
                return {name: value}
            total += value
            found[f"{name}_link{link}"] = value
            found[name] = total
        return found

    def _is_nvlink5(self) -> bool:
        version = self._reader.number(lambda h: n.nvmlDeviceGetNvLinkVersion(h, self._links[0])) if self._links else 0
        return not isinstance(version, Unsupported) and version >= n.NVML_NVLINK_VERSION_5_0


def _not_supported(_link: int) -> Whole:
    return _MISSING
