"""Golden digests: the digests of products of fixed seeds, made by integer arithmetic and shipped as data.

Regenerate with `python -m gpu_burnin.exact.golden OUTPUT M,N,K [M,N,K ...]`.
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

from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.digest import digest_integers
from gpu_burnin.exact.integer import integer_product
from gpu_burnin.exact.operands import RANGES, OperandRange
from gpu_burnin.system.files import write_atomic
from gpu_burnin.types import word_text

SCHEMA = "gpu-burnin-golden/v2"
FILE_NAME = "gemm-v2.json"
# Two fixed seeds for A and the same two for B: four products, no two of them alike.
GOLDEN_SEEDS: tuple[int, int] = (0x6D7573746572, 0x6275726E696E)
_FRESH_BIT = 1 << 63
DIGEST_KEY = 0x9E3779B9


def fresh_seeds(seed: int) -> Iterator[int]:
    """Endless seeds from one: none is golden and none comes again, so no product follows itself."""
    start = exact.mix(seed)
    return (_FRESH_BIT | (start + index) % _FRESH_BIT for index in itertools.count())


def golden_digests(operands: OperandRange, m: int, n: int, k: int) -> dict[tuple[int, int], int]:
    """The digests of the right products by (seed of A, seed of B), made on the host."""
    lefts = {seed: exact.operand_a(operands, seed, m, k) for seed in GOLDEN_SEEDS}
    rights = {seed: exact.operand_b(operands, seed, k, n) for seed in GOLDEN_SEEDS}
    return {
        (i, j): digest_integers(integer_product(a, b, operands), DIGEST_KEY)
        for i, a in lefts.items()
        for j, b in rights.items()
    }


@functools.cache
def _shipped() -> dict[tuple[int, int, int, str, int, int], int]:
    resource = importlib.resources.files("gpu_burnin.exact") / "golden" / FILE_NAME
    data = json.loads(resource.read_text())
    seeds = tuple(int(seed, 16) for seed in data["seeds"])
    if data["schema"] != SCHEMA or int(data["digest_key"], 16) != DIGEST_KEY or seeds != GOLDEN_SEEDS:
        raise ValueError(f"{FILE_NAME} is not for this version: reinstall gpu-burnin")
    return {
        (*entry["shape"], entry["range"], *pair): int(value, 16)
        for entry in data["entries"]
        for pair, value in zip(itertools.product(seeds, seeds), entry["digests"], strict=True)
    }


def shipped_digest(operands: OperandRange, seed_a: int, seed_b: int, m: int, n: int, k: int) -> int | None:
    """The shipped digest, or None when there is none for this shape, range and seeds."""
    return _shipped().get((m, n, k, operands.name, seed_a, seed_b))


def shipped_shapes() -> tuple[tuple[int, int, int], ...]:
    """All (m, n, k) that have golden digests."""
    return tuple(sorted({key[:3] for key in _shipped()}))


def generate(shapes: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """The content of the golden file for these shapes: digests in the order of the seeds, A's first."""
    entries = [
        {
            "shape": [m, n, k],
            "range": operands.name,
            "digests": [word_text(value) for value in golden_digests(operands, m, n, k).values()],
        }
        for m, n, k in shapes
        for operands in RANGES.values()
    ]
    seeds = [f"{seed:#x}" for seed in GOLDEN_SEEDS]
    return {"schema": SCHEMA, "digest_key": f"{DIGEST_KEY:#x}", "seeds": seeds, "entries": entries}


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
