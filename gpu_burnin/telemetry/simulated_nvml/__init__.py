"""Simulated GPUs: what NVML and the kernel log say of GPUs that do not exist, in pure Python.

`node` says which GPUs, in the environment of a process tree; `profiles` has their answers as data; `library` gives them
to unmodified nvidia-ml-py. What is read that way is `simulated` and never passes for real: telemetry.nvml_library.
"""
