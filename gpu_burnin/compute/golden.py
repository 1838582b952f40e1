"""Golden digests: the digests of products of fixed seeds, made by integer arithmetic and shipped as data.

Regenerate with `python -m gpu_burnin.compute.golden OUTPUT M,N,K [M,N,K ...]`.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_burnin.compute import exact
from gpu_burnin.compute.exact import I64, RANGES, OperandRange
from gpu_burnin.files import write_atomic

SCHEMA = "gpu-burnin-golden/v1"
FILE_NAME = "gemm-v1.json"
# Two fixed seeds a range: products into one buffer alternate between them, so each expects another digest.
GOLDEN_SEEDS: tuple[int, int] = (0x6D7573746572, 0x6275726E696E)
_FRESH_BIT = 1 << 63
DIGEST_KEY = 0x9E3779B9
# Above this many multiplications a plain int64 product takes minutes; see integer_product.
_DIRECT_LIMIT = 1 << 28


def fresh_seeds(seed: int) -> Iterator[int]:
    """Endless seeds from one: none is golden and none comes again, so no product follows itself."""
    start = exact.mix(seed)
    return (_FRESH_BIT | (start + index) % _FRESH_BIT for index in itertools.count())


def integer_product(a: I64, b: I64, operands: OperandRange) -> I64:
    """A B in exact integers.

    Small products by int64 multiplication. Large dense ones in FP64, where every partial sum is an integer
    below 2^53 (bound proved by OperandRange.bound), and then certified in integer arithmetic by Freivalds'
    check on four challenges: a wrong product is accepted with probability below 2^-120. Raises
    ArithmeticError when the certificate fails.
    """
    m, k = a.shape
    n = b.shape[1]
    if m * n * k <= _DIRECT_LIMIT or operands.bound(k) > exact.EXACT_LIMIT:
        return a @ b
    product = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    for seed in range(4):
        w, v = exact.challenge(seed, m, n)
        if exact.bilinear(product, w, v) != exact.expected_bilinear(a, b, w, v):
            raise ArithmeticError(f"product {m}x{n}x{k} of range {operands.name} failed its certificate")
    return product


def golden_digest(operands: OperandRange, seed: int, m: int, n: int, k: int) -> int:
    """The digest of the exact product for a seed."""
    a, b = exact.operand_a(operands, seed, m, k), exact.operand_b(operands, seed, k, n)
    return exact.digest_integers(integer_product(a, b, operands), DIGEST_KEY)


@functools.cache
def _shipped() -> dict[tuple[int, int, int, str, int], int]:
    resource = importlib.resources.files("gpu_burnin.compute") / "golden" / FILE_NAME
    data = json.loads(resource.read_text())
    if data["schema"] != SCHEMA or int(data["digest_key"], 16) != DIGEST_KEY:
        raise ValueError(f"{FILE_NAME} is not for this version: reinstall gpu-burnin")
    return {(e["m"], e["n"], e["k"], e["range"], int(e["seed"], 16)): int(e["digest"], 16) for e in data["entries"]}


def shipped_digest(operands: OperandRange, seed: int, m: int, n: int, k: int) -> int | None:
    """The shipped digest, or None when there is none for this shape, range and seed."""
    return _shipped().get((m, n, k, operands.name, seed))


def shipped_shapes() -> tuple[tuple[int, int, int], ...]:
    """All (m, n, k) that have golden digests."""
    return tuple(sorted({key[:3] for key in _shipped()}))


def generate(shapes: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """The content of the golden file for these shapes."""
    entries = [
        {
            "m": m,
            "n": n,
            "k": k,
            "range": operands.name,
            "seed": f"{seed:#x}",
            "digest": f"{golden_digest(operands, seed, m, n, k):#018x}",
        }
        for m, n, k in shapes
        for operands in RANGES.values()
        for seed in GOLDEN_SEEDS
    ]
    return {"schema": SCHEMA, "digest_key": f"{DIGEST_KEY:#x}", "entries": entries}


def main(arguments: Sequence[str]) -> None:
    """Write the golden file: OUTPUT M,N,K [M,N,K ...]."""
    output = Path(arguments[0])
    shapes = [tuple(int(x) for x in text.split(",")) for text in arguments[1:]]
    content = generate([(m, n, k) for m, n, k in shapes])
    entries = ",\n".join("  " + json.dumps(entry) for entry in content["entries"])
    head = json.dumps({k: v for k, v in content.items() if k != "entries"})[:-1]
    write_atomic(output, f'{head}, "entries": [\n{entries}\n]}}\n'.encode(), mode=0o644)


if __name__ == "__main__":
    main(sys.argv[1:])
