"""NVML without a driver: unmodified nvidia-ml-py over a library whose answers are data (profiles.py).

It stands where ctypes.CDLL stands, so that functions a driver lacks, versions of structures, ids of fields and error
codes reach the reading code as from a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pynvml

from gpu_burnin.telemetry.simulated_nvml.node import FAKE_SYMBOL, bus, uuid
from gpu_burnin.telemetry.simulated_nvml.profiles import Answer, Profile

_CODES: dict[str, int] = {
    name.removeprefix("NVML_ERROR_").lower(): value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
_OK: int = pynvml.NVML_SUCCESS
_MOST_INSTANCES = 7
_EVERY_EVENT = (1 << 63) - 1
# Calls about two GPUs.
_OF_A_PAIR = frozenset({"nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"})
# The bits of a handle that are the GPU's.
_OF_A_GPU, _OF_AN_INSTANCE = 0xFFFF, 16
_INVALID: int = pynvml.NVML_ERROR_INVALID_ARGUMENT


def _write(target: Any, answer: Answer) -> None:
    """Put an answer where the driver would: into a number, a text or the members of a structure it has."""
    if isinstance(target, ctypes.Array):
        target.value = answer.encode()
    elif isinstance(answer, Mapping):
        for name, value in answer.items():
            if hasattr(target, name):
                setattr(target, name, value)
    else:
        target.value = answer


def _plain(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


class SimulatedNvml:
    """The library with some GPUs, each as its profile says; a name that no GPU answers is not in the library."""

    def __init__(self, gpus: Sequence[Profile]) -> None:
        self.gpus = gpus
        setattr(self, FAKE_SYMBOL, True)

    def __getattr__(self, name: str) -> Any:
        missing = name == "nvmlDeviceGetGpuFabricInfoV" and max(self.gpus[0].fabric_versions) < 2
        if missing or not name.startswith("nvml"):
            raise AttributeError(name)
        own = getattr(type(self), f"_{name}", None)
        if own is not None:
            return partial(own, self)
        if not any(key.split()[0] == name for gpu in self.gpus for key in gpu.calls):
            raise AttributeError(name)
        return partial(self._call, name)

    def _index(self, handle: Any) -> int:
        return (self._number(handle) & _OF_A_GPU) - 1

    def _number(self, handle: Any) -> int:
        """Number of a GPU from 1 on, and above it that of its MIG instance."""
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)

    def _gpu(self, handle: Any) -> Profile:
        return self.gpus[self._index(handle)]

    def _answer(self, gpu: Profile, name: str, selectors: Sequence[int] = ()) -> Answer:
        lost = gpu.calls.get("*")
        if lost:
            return lost
        return gpu.calls.get(" ".join((name, *map(str, selectors))), gpu.calls.get(name, "not_supported"))

    def _call(self, name: str, handle: Any, *arguments: Any) -> int:
        targets = [a if isinstance(a, ctypes.Array) else a._obj for a in arguments if _is_target(a)]
        plain = [a for a in arguments if not _is_target(a) and a is not None]
        # The size of a text's buffer is no selector, nor is a second GPU.
        selects = name not in _OF_A_PAIR and not any(isinstance(a, ctypes.Array) for a in arguments)
        selectors = [_plain(a) for a in plain] if selects else []
        answer = self._answer(self._gpu(handle), name, selectors)
        if isinstance(answer, str) and answer in _CODES:
            return _CODES[answer]
        if answer != "ok":
            for target, value in zip(targets, answer if isinstance(answer, list) else [answer], strict=False):
                _write(target, value)
        return _OK

    # --- system ---

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        return _OK

    def _nvmlShutdown(self) -> int:
        return _OK

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:
        _write(text, self.gpus[0].driver)
        return _OK

    def _nvmlSystemGetNVMLVersion(self, text: Any, _size: Any) -> int:
        _write(text, f"{self.gpus[0].cuda // 1000}.{self.gpus[0].driver}")
        return _OK

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = self.gpus[0].cuda
        return _OK

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return _OK

    # --- identity ---

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        answer = self.gpus[_plain(index)].calls.get("nvmlDeviceGetHandleByIndex_v2", "ok")
        if answer != "ok":
            return _CODES[answer]
        ctypes.c_void_p.from_buffer(device._obj).value = _plain(index) + 1
        return _OK

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> int:
        own, instance = uuid(self._index(handle)), self._number(handle) >> _OF_AN_INSTANCE
        _write(text, f"MIG-{instance:04x}{own[8:]}" if instance else own)
        return _OK

    def _nvmlDeviceGetName(self, handle: Any, text: Any, _size: Any) -> int:
        instance = self._number(handle) >> _OF_AN_INSTANCE
        if not instance:
            return self._call("nvmlDeviceGetName", handle, text, _size)
        gpu = self._gpu(handle)
        _write(text, f"{gpu.name} MIG {gpu.mig[instance - 1][0]}")
        return _OK

    # --- MIG ---

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        count._obj.value = _MOST_INSTANCES
        return _OK

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, device: Any) -> int:
        if _plain(index) >= len(self._gpu(handle).mig):
            return _CODES["not_found"]
        number = self._number(handle) | _plain(index) + 1 << _OF_AN_INSTANCE
        ctypes.c_void_p.from_buffer(device._obj).value = number
        return _OK

    def _nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:
        instance = self._number(handle) >> _OF_AN_INSTANCE
        if not instance:
            return _CODES["not_supported"]
        _, multiprocessors, mib = self._gpu(handle).mig[instance - 1]
        _write(attributes._obj, {"multiprocessorCount": multiprocessors, "memorySizeMB": mib})
        return _OK

    def _nvmlDeviceGetSerial(self, handle: Any, text: Any, _size: Any) -> int:
        _write(text, f"16500000{self._index(handle):05d}")
        return _OK

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        gpu, index = self._gpu(handle), self._index(handle)
        device, subsystem = gpu.calls.get("ids", gpu.ids)
        info._obj.pciDeviceId, info._obj.pciSubSystemId = device << 16 | 0x10DE, subsystem << 16 | 0x10DE
        info._obj.bus = bus(index)
        info._obj.busId = f"00000000:{bus(index):02X}:00.0".encode()
        return _OK

    def _nvmlDeviceGetHandleByUUID(self, wanted: Any, device: Any) -> int:
        for index in range(len(self.gpus)):
            if uuid(index).encode() == getattr(wanted, "value", wanted):
                return self._nvmlDeviceGetHandleByIndex_v2(index, device)
        return _CODES["not_found"]

    # --- fabric ---

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> int:
        return self._fabric(self._gpu(handle), 1, info._obj)

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int:
        return self._fabric(self._gpu(handle), info._obj.version >> 24, info._obj)

    def _fabric(self, gpu: Profile, version: int, info: Any) -> int:
        if version not in gpu.fabric_versions:
            return _CODES["argument_version_mismatch"]
        answer = self._answer(gpu, "fabric") if "*" in gpu.calls else gpu.fabric
        if isinstance(answer, str):
            return _CODES[answer]
        _write(info, answer)
        info.state |= 0x5A5A5A00  # one byte in nvml.h: what is in its padding is nobody's business
        return _OK

    # --- fields ---

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:
        gpu = self._gpu(handle)
        if "*" in gpu.calls:
            return _CODES[gpu.calls["*"]]
        for i in range(_plain(count)):
            value = values._obj[i]
            answer = gpu.fields.get(value.fieldId, "not_supported")
            low, high = gpu.field_gap
            if value.fieldId >= gpu.field_ids or low <= value.fieldId <= high:
                answer = "invalid_argument"
            value.nvmlReturn = _CODES[answer] if isinstance(answer, str) else _OK
            if not isinstance(answer, str):
                value.valueType = (
                    pynvml.NVML_VALUE_TYPE_SIGNED_INT if answer < 0 else pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
                )
                value.value.siVal = answer
        return _OK

    # --- events, of which there never is one ---

    def _nvmlDeviceGetSupportedEventTypes(self, _handle: Any, kinds: Any) -> int:
        kinds._obj.value = _EVERY_EVENT
        return _OK

    def _nvmlEventSetCreate(self, _set: Any) -> int:
        return _OK

    def _nvmlDeviceRegisterEvents(self, _handle: Any, _kinds: Any, _set: Any) -> int:
        return _OK

    def _nvmlEventSetWait_v2(self, _set: Any, _data: Any, timeout_ms: Any) -> int:
        time.sleep(_plain(timeout_ms) / 1000)
        return _CODES["timeout"]

    # --- NVLink ---

    def _link(self, handle: Any, link: Any) -> int:
        gpu = self._gpu(handle)
        if "*" in gpu.calls:
            return _CODES[gpu.calls["*"]]
        if gpu.links is None:
            return _CODES["not_supported"]
        return _INVALID if _plain(link) >= gpu.links["count"] else _OK

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, active: Any) -> int:
        links = self._gpu(handle).links or {}
        active._obj.value = _plain(link) < links.get("active", links.get("count", 0))
        return self._link(handle, link)

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, link: Any, version: Any) -> int:
        version._obj.value = (self._gpu(handle).links or {}).get("version", 0)
        return self._link(handle, link)

    def _nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: Any, _counter: Any, count: Any) -> int:
        count._obj.value = 0
        newer = (self._gpu(handle).links or {}).get("version", 0) >= pynvml.NVML_NVLINK_VERSION_5_0
        return _CODES["not_supported"] if newer else self._link(handle, link)

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, kind: Any) -> int:
        gpu = self._gpu(handle)
        switched = isinstance(gpu.fabric, Mapping) or (gpu.links or {}).get("version") == pynvml.NVML_NVLINK_VERSION_3_0
        kind._obj.value = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switched else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        return self._link(handle, link)


def _is_target(argument: Any) -> bool:
    return isinstance(argument, ctypes.Array) or hasattr(argument, "_obj")


def install(gpus: Sequence[Profile]) -> None:
    """Put these GPUs behind nvidia-ml-py in this process."""
    pynvml.nvmlLib = SimulatedNvml(gpus)
    pynvml._nvmlGetFunctionPointer_cache.clear()


@contextlib.contextmanager
def installed(gpus: Sequence[Profile]) -> Iterator[None]:
    """As install, as long as the context is open."""
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    install(gpus)
    try:
        yield
    finally:
        pynvml.nvmlLib = before[0]
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(before[1])
