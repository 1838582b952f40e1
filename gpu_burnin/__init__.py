"""The burn-in of GPU nodes: exact checks, counted coverage, signed evidence."""

__version__ = "0.1.0"
