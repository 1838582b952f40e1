"""The stand-in machine of a lab host: its kernel, its GPUs' driver and NVIDIA's tools, as a scenario tells them to be.

Runs on the host, from /usr/local/lib/muster-lab, with the standard library alone.
"""
