"""Tests between nodes: which are run, what their results name, and what they cost. Pure; who carries them out is given.

A round is a set of tests that share no node. `planner.next_round` makes each from what the earlier ones have shown,
`advance.advance` takes the results in, and `claims.claims` says what they name.
"""
