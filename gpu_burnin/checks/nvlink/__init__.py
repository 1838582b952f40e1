"""The nvlink check: copies between every two GPUs."""
