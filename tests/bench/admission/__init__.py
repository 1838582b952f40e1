"""What standing admission costs at the size of a large fleet: `python -m tests.bench.admission`."""
