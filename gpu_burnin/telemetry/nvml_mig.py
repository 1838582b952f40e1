"""The MIG instances of one GPU, as nvidia-ml-py tells them."""

from __future__ import annotations

from typing import Any

import pynvml

from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.state import MigInstances, Unsupported
from gpu_burnin.types import MigInstance


def read_instances(reader: Reader, mode: Any | Unsupported) -> MigInstances:
    """The MIG devices of a GPU whose mode is on; one that cannot be read leaves nothing to compare."""
    if isinstance(mode, Unsupported) or not mode[0]:
        return ()
    most = reader.number(pynvml.nvmlDeviceGetMaxMigDeviceCount)
    if isinstance(most, Unsupported):
        return most
    found: list[MigInstance] = []
    for number in range(most):
        instance = _mig_instance(reader, number)
        if isinstance(instance, MigInstance):
            found.append(instance)
        elif instance.why != "not_found":  # numbers without an instance lie between those that have one
            return instance
    return tuple(found)


def _mig_instance(reader: Reader, number: int) -> MigInstance | Unsupported:
    handle = reader.get(lambda gpu: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
    if isinstance(handle, Unsupported):
        return handle
    own = Reader(handle)
    uuid, name = own.text(pynvml.nvmlDeviceGetUUID), own.text(pynvml.nvmlDeviceGetName)
    parts = own.get(pynvml.nvmlDeviceGetAttributes_v2)
    if isinstance(uuid, Unsupported) or isinstance(name, Unsupported) or isinstance(parts, Unsupported):
        return next(value for value in (uuid, name, parts) if isinstance(value, Unsupported))
    # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    profile = name.partition(" MIG ")[2] or name
    return MigInstance(uuid, profile, int(parts.multiprocessorCount), int(parts.memorySizeMB) << 20)
