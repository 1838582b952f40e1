"""Exact products: operands, digests, golden digests, Freivalds checks, locating errors."""
