"""Faults as data, and the broken hardware, workers and hosts that bring them about below the detectors."""
