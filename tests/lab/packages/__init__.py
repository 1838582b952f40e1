"""A signed APT repository of stand-ins for NVIDIA's packages, and the stand-in machine that they run on.

`python -m tests.lab.packages OUT_DIR` builds it in seconds, without root. docs/operations/lab.md says what is real.
"""
