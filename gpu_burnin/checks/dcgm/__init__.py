"""The dcgm check: NVIDIA's own diagnostic as one more opinion."""
