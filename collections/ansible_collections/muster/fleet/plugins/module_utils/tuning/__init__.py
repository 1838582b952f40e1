"""Tuning of a node: the table of values, the files that keep them, what is in effect, the paths between GPUs."""
