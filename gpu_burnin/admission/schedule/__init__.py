"""Tests of idle nodes, ever after: whose turn it is, and what the fleet's proofs are worth. Pure: no I/O."""
