"""The gemm check: exact matrix products in every precision."""
