"""Faults of a fabric that are known, and what the tests between nodes make of them."""
