"""PCIe rates of the link as the pcie check uses it, beside plain pinned copies by CuPy in the same run."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from gpu_burnin.checks.pcie.port import MOST_COPY_BYTES, Direction, PciePort, pcie_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.engine.plan import CUDA_SHAPES

_LEAST_S = 1.0
_SMALL_BYTES, _SMALL_COPIES = 4096, 256
_DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h", "duplex")


def measure_pcie(device: CudaDevice, cupy: Any) -> dict[str, Any]:
    """Bytes per second by direction: of the link (batches of the check, verified outside of the time) and plain.

    `copying_share` is the part of the time of a direction that its copies take: the rest is what verifying all of them
    costs. `verified_share` is verified to moved copies; `small_copy_s` are seconds of one 4 KiB copy among many.
    """
    size_bytes = min(CUDA_SHAPES["transfer_bytes"], MOST_COPY_BYTES)
    found: dict[str, Any] = {
        "size_bytes": size_bytes,
        "plain": _plain(cupy, size_bytes),
        "link": {},
        "copying_share": {},
        "small_copy_s": {},
    }
    with closing(pcie_port(device)) as link:
        slots = link.open(size_bytes).slots
        link.fill(3)
        moved_copies = verified_copies = wrong = 0
        for direction in _DIRECTIONS:
            link.begin(direction, slots)
            link.finish()
            link.verify()
            size, seconds, began_s = 0, 0.0, time.perf_counter()
            while seconds < _LEAST_S:
                link.begin(direction, slots)
                moved = link.finish()
                size, seconds = size + moved.bytes, seconds + moved.seconds
                verified = link.verify()
                moved_copies += slots * (2 if direction == "duplex" else 1)
                verified_copies, wrong = verified_copies + verified.copies, wrong + len(verified.wrong)
            found["link"][direction] = size / seconds
            found["copying_share"][direction] = seconds / (time.perf_counter() - began_s)
        found |= {"verified_share": verified_copies / moved_copies, "wrong_copies": wrong, "place": vars(link.pinned())}
    with closing(pcie_port(device)) as link:
        link.open(_SMALL_BYTES)
        link.fill(4)
        for direction in _DIRECTIONS[:2]:
            found["small_copy_s"][direction] = _small(link, direction)
    return found


def _small(link: PciePort, direction: Direction) -> float:
    for _ in range(2):  # the first batch warms up
        link.begin(direction, _SMALL_COPIES)
        moved = link.finish()
        link.verify()
    return moved.seconds / _SMALL_COPIES


def _plain(cupy: Any, size_bytes: int) -> dict[str, float]:
    """cudaMemcpyAsync between one pinned and one device buffer, in one stream, by events."""
    host = cupy.cuda.alloc_pinned_memory(size_bytes)
    device = cupy.empty(size_bytes, dtype=cupy.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    ways = {"h2d": (device.data.ptr, host.ptr, 1), "d2h": (host.ptr, device.data.ptr, 2)}
    rates = {}
    for name, (to, origin, kind) in ways.items():
        start, end, seconds, copies = cupy.cuda.Event(), cupy.cuda.Event(), 0.0, 8
        while seconds < _LEAST_S:
            start.record(stream)
            for _ in range(copies):
                cupy.cuda.runtime.memcpyAsync(to, origin, size_bytes, kind, stream.ptr)
            end.record(stream)
            end.synchronize()
            seconds = cupy.cuda.get_elapsed_time(start, end) / 1000.0
            rates[name] = copies * size_bytes / seconds
            copies *= 2
    return rates
