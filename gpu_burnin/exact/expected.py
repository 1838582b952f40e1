"""Expected digests: the shipped ones, and for other shapes those of products made on the host."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_burnin.exact.digest import digest_integers
from gpu_burnin.exact.golden import DIGEST_KEY, shipped_digest
from gpu_burnin.exact.integer import integer_product
from gpu_burnin.exact.product import Case, Expected, Pair


def expected_digests(cases: Mapping[Pair, Case]) -> dict[Pair, Expected]:
    """What each of these products must give.

    A shape without golden digests costs whole products on the host: seconds where it is large, so only what
    Freivalds' check cannot verify, and small products, should come here with such a shape.
    """
    return {pair: Expected(digest=_digest(case)) for pair, case in cases.items()}


def _digest(case: Case) -> int:
    shape = case.shape
    shipped = shipped_digest(case.operands, case.seed_a, case.seed_b, shape.m, shape.n, shape.k)
    if shipped is not None:
        return shipped
    return digest_integers(integer_product(*case.host_operands(), case.operands), DIGEST_KEY)
