"""The same seed gives the same digests with any number of BLAS threads and in any order of summation.

At hand here: the BLAS that NumPy was built with, run by one thread and by two, each in a process of its own
(the number is read when the library is loaded), which changes how it splits its sums; and no BLAS at all,
np.einsum, whose loop adds in another order. Where the machine has one core, two threads still split the work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_burnin.device.port import read_matrix
from gpu_burnin.device.storage import Buffer, values_from_raw
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.product import ROUND, Expected, ProductUnit, Shape, Stream
from tests.support.devices import ComputingDevice

# Large enough that OpenBLAS uses its second thread.
SHAPE = Shape(128, 112, 384)

_SCRIPT = """
import json, sys
sys.path[:0] = sys.argv[1:]
import test_determinism
print(json.dumps(test_determinism.digests(test_determinism.ComputingDevice())))
"""


def digests(device: ComputingDevice) -> dict[str, list[str]]:
    """The digests of four products in every precision and range, exact and with powers of two, and random ones."""
    made: dict[str, list[str]] = {}
    stream = Stream(device)
    for precision in exact.PRECISIONS:
        unit = ProductUnit(stream, precision, SHAPE)
        for operands in exact.ranges_for(precision):
            unit.load(operands, (3, 4), (5, 6), scaled=exact.can_scale(precision))
            outcomes = unit.run(ROUND, [Expected()] * 4).outcomes
            assert all(o.digest.clean for o in outcomes)
            made[f"{precision} {operands.name}"] = [f"{o.digest.value:#x}" for o in outcomes]
    return made


class _NoBlas(ComputingDevice):
    """Products by einsum's own loops."""

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        self._launches += 1
        left, right = (values_from_raw(read_matrix(self, x), x.storage.name) for x in (a, b))
        kind = np.float64 if precision == "int8" else left.dtype
        product = np.einsum("ik,kj->ij", left.astype(kind), right.astype(kind), optimize=False)
        c.data[...] = product.astype(np.int32 if precision == "int8" else kind).view(c.data.dtype)


@pytest.fixture(scope="module")
def with_one_thread() -> Iterator[dict[str, list[str]]]:
    yield _in_process(1)


def _in_process(threads: int) -> dict[str, list[str]]:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    paths = [str(path) for path in (Path(__file__).parent, Path.cwd())]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *paths], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, list[str]] = json.loads(done.stdout)
    return made


@pytest.mark.slow
def test_two_threads_give_the_same_digests_as_one(with_one_thread: dict[str, list[str]]) -> None:
    assert _in_process(2) == with_one_thread
    assert len(with_one_thread) == sum(len(exact.ranges_for(p)) for p in exact.PRECISIONS)


@pytest.mark.slow
def test_another_order_of_summation_gives_the_same_digests(with_one_thread: dict[str, list[str]]) -> None:
    assert digests(_NoBlas()) == with_one_thread


def test_precisions_that_share_operands_share_digests(with_one_thread: dict[str, list[str]]) -> None:
    for operands in exact.RANGES.values():
        shared = [tuple(d) for name, d in with_one_thread.items() if name.split(" ")[1] == operands.name]
        assert len(set(shared)) == 1, operands.name


def test_the_comparison_can_fail() -> None:
    """Random operands are rounded on the way: there the order of summation shows."""
    results = []
    for device in (ComputingDevice(), _NoBlas()):
        unit = ProductUnit(Stream(device), "fp32", SHAPE)
        device.fill_random(unit.a[0], 1)
        device.fill_random(unit.b[0], 2)
        unit.stream.gemm("fp32", unit.a[0], unit.b[0], unit.c)
        results.append(device.digest_bits(unit.c, 3))
    assert results[0] != results[1]
