"""Benchmarks: figures of one run on one machine, printed, never asserted."""
