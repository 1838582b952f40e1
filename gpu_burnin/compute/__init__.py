"""Compute layer: exact operands and digests, the backend protocol and its CPU and CUDA implementations."""
