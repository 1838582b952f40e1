"""The sm check: small kernels on every SM."""
