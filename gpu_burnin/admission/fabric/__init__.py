"""Tests of idle nodes with each other, without a controller: whose turn it is, how a test goes on, what it shows.

service.py begins and ends them; candidates.py reads for it, and writes.py writes; the rest is pure. The state of a test
is on the Nodes of its members, so that any leader goes on with it.
"""
