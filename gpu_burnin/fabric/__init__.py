"""Tests between nodes: their values, what members sign of them, and what one test and a node's tests come to.

What the controller's runs (fleet/fabric) and the admitter's tests (admission/fabric) both judge by. Pure: no I/O.
"""
